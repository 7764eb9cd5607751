#include "tests/support/verbs_end.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <cstring>

#include "tests/support/pattern.hpp"

namespace linkspan::test {

namespace verbs = transport::verbs;

namespace {

constexpr std::uint32_t kPsn = 0x123456;

std::chrono::steady_clock::time_point after(double seconds) {
  return std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(
                                                std::chrono::duration<double>(seconds));
}

}  // namespace

VerbsEnd::Json VerbsEnd::Place::to_json() const {
  return {{"qp", qp_num}, {"rkey", rkey}, {"address", address}, {"gid", gid}};
}

VerbsEnd::Place VerbsEnd::Place::from_json(const Json& json) {
  return {json.at("qp"), json.at("rkey"), json.at("address"),
          json.at("gid").get<std::vector<std::uint8_t>>()};
}

VerbsEnd::VerbsEnd(const verbs::Library& library, const VerbsEndOptions& o)
    : ibv(library), options(o), memory(o.bytes + 2 * kGuard) {
  put_pattern(memory, o.seed, 0);
}

std::unique_ptr<VerbsEnd> VerbsEnd::open(const verbs::Library& library,
                                         const VerbsEndOptions& options) {
  std::unique_ptr<VerbsEnd> made(new VerbsEnd(library, options));
  const bool whole = made->make();
  EXPECT_TRUE(whole) << std::strerror(errno);
  return whole ? std::move(made) : nullptr;
}

bool VerbsEnd::make() {
  int count = 0;
  verbs::IbvDevice** const list = ibv.get_device_list(&count);
  if (list == nullptr) return false;
  if (options.device < count) context = ibv.open_device(list[options.device]);
  ibv.free_device_list(list);
  if (context == nullptr || (pd = ibv.alloc_pd(context)) == nullptr) return false;
  mr = ibv.reg_mr(pd, data(), options.bytes, static_cast<int>(options.access));
  channel = ibv.create_comp_channel(context);
  if (mr == nullptr || channel == nullptr) return false;
  send_cq = ibv.create_cq(context, 256, this, channel, 0);
  recv_cq = ibv.create_cq(context, 256, this, channel, 1);
  if (send_cq == nullptr || recv_cq == nullptr) return false;
  verbs::IbvQpInitAttr init{};
  init.send_cq = send_cq;
  init.recv_cq = recv_cq;
  init.cap = {options.sends, options.receives, options.sges, options.sges, options.inline_bytes};
  init.qp_type = verbs::kQptRc;
  qp = ibv.create_qp(pd, &init);
  return qp != nullptr && move_to(verbs::kQpsInit) == 0;
}

VerbsEnd::~VerbsEnd() {
  const auto end = [](auto* made, int (*destroy)(decltype(made))) {
    if (made == nullptr) return;
    EXPECT_EQ(destroy(made), 0);
  };
  end(qp, ibv.destroy_qp);
  end(recv_cq, ibv.destroy_cq);
  end(send_cq, ibv.destroy_cq);
  end(channel, ibv.destroy_comp_channel);
  end(mr, ibv.dereg_mr);
  end(pd, ibv.dealloc_pd);
  end(context, ibv.close_device);
}

VerbsEnd::Place VerbsEnd::place() const {
  verbs::IbvGid gid{};
  EXPECT_EQ(ibv.query_gid(context, 1, options.gid_index, &gid), 0);
  return {qp->qp_num, mr->rkey, reinterpret_cast<std::uint64_t>(mr->addr),
          std::vector<std::uint8_t>(gid.raw, gid.raw + 16)};
}

int VerbsEnd::move_to(verbs::IbvQpState state) {
  verbs::IbvQpAttr attr{};
  attr.qp_state = state;
  attr.port_num = 1;
  attr.qp_access_flags = verbs::kAccessRemoteWrite | verbs::kAccessRemoteRead;
  const int mask = state == verbs::kQpsInit ? verbs::kQpState | verbs::kQpPkeyIndex |
                                                  verbs::kQpPort | verbs::kQpAccessFlags
                                            : verbs::kQpState;
  return ibv.modify_qp(qp, &attr, mask);
}

verbs::IbvQpState VerbsEnd::state() const {
  verbs::IbvQpAttr attr{};
  verbs::IbvQpInitAttr init{};
  EXPECT_EQ(ibv.query_qp(qp, &attr, verbs::kQpState, &init), 0);
  return attr.qp_state;
}

int VerbsEnd::connect(const Place& to) {
  peer = to;
  verbs::IbvQpAttr attr{};
  attr.qp_state = verbs::kQpsRtr;
  attr.path_mtu = verbs::kMtu1024;
  attr.dest_qp_num = to.qp_num;
  attr.rq_psn = attr.sq_psn = kPsn;
  attr.max_dest_rd_atomic = attr.max_rd_atomic = 4;
  attr.min_rnr_timer = 1;  // 10 us
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(options.gid_index);
  attr.ah_attr.grh.hop_limit = 64;
  std::memcpy(attr.ah_attr.grh.dgid.raw, to.gid.data(), 16);
  if (const int error =
          ibv.modify_qp(qp, &attr,
                        verbs::kQpState | verbs::kQpAv | verbs::kQpPathMtu | verbs::kQpDestQpn |
                            verbs::kQpRqPsn | verbs::kQpMaxDestRdAtomic | verbs::kQpMinRnrTimer);
      error != 0)
    return error;
  attr.qp_state = verbs::kQpsRts;
  attr.timeout = options.timeout;
  attr.retry_cnt = options.retries;
  attr.rnr_retry = options.rnr_retry;
  return ibv.modify_qp(qp, &attr,
                       verbs::kQpState | verbs::kQpTimeout | verbs::kQpRetryCnt |
                           verbs::kQpRnrRetry | verbs::kQpSqPsn | verbs::kQpMaxQpRdAtomic);
}

verbs::IbvSendWr VerbsEnd::request(verbs::IbvWrOpcode opcode, std::uint64_t offset,
                                   std::uint32_t bytes, std::uint64_t to) {
  sges_.assign(1, {reinterpret_cast<std::uint64_t>(data()) + offset, bytes, mr->lkey});
  verbs::IbvSendWr wr{};
  wr.wr_id = offset;
  wr.sg_list = sges_.data();
  wr.num_sge = 1;
  wr.opcode = opcode;
  wr.send_flags = verbs::kSendSignaled;
  wr.wr.rdma.remote_addr = peer.address + to;
  wr.wr.rdma.rkey = peer.rkey;
  return wr;
}

int VerbsEnd::post(verbs::IbvSendWr wr) {
  verbs::IbvSendWr* bad = nullptr;
  return verbs::post_send(qp, &wr, &bad);
}

int VerbsEnd::post_receive(std::uint64_t id, std::uint64_t offset, std::uint32_t bytes) {
  verbs::IbvSge sge{reinterpret_cast<std::uint64_t>(data()) + offset, bytes, mr->lkey};
  verbs::IbvRecvWr wr{id, nullptr, &sge, bytes != 0 ? 1 : 0};
  verbs::IbvRecvWr* bad = nullptr;
  return verbs::post_recv(qp, &wr, &bad);
}

std::optional<verbs::IbvWc> VerbsEnd::completion(verbs::IbvCq* of, double seconds) {
  verbs::IbvWc wc{};
  for (const auto deadline = after(seconds); std::chrono::steady_clock::now() < deadline;) {
    if (verbs::poll_cq(of, 1, &wc) == 1) return wc;
    ::poll(nullptr, 0, 0);
  }
  return std::nullopt;
}

std::optional<verbs::IbvEventType> VerbsEnd::event(double seconds) {
  pollfd readable{context->async_fd, POLLIN, 0};
  if (::poll(&readable, 1, static_cast<int>(seconds * 1000)) != 1) return std::nullopt;
  verbs::IbvAsyncEvent got{};
  if (ibv.get_async_event(context, &got) != 0) return std::nullopt;
  ibv.ack_async_event(&got);
  return got.event_type;
}

}  // namespace linkspan::test
