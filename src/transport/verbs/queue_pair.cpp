#include "transport/verbs/queue_pair.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/process.hpp"

namespace linkspan::transport::verbs {
namespace {

constexpr std::uint32_t kPsnMask = 0xffffff;
constexpr std::uint8_t kMaxReads = 16;
// An acknowledgement is awaited for 4.096 us << 14 = 67 ms, in seven attempts.
constexpr std::uint8_t kAckTimeout = 14;
// Soft-RoCE takes 7 as for ever, so a link that is cut would never fail.
constexpr std::uint8_t kRetries = 6;
constexpr std::uint8_t kRnrTimer = 12;  // 0.64 ms; no request of ours needs a receive
constexpr std::uint8_t kHopLimit = 64;

std::uint8_t reads_of(int attribute) noexcept {
  return static_cast<std::uint8_t>(std::clamp<int>(attribute, 1, kMaxReads));
}

}  // namespace

std::uint32_t random_psn() { return static_cast<std::uint32_t>(base::random_u64()) & kPsnMask; }

Result<std::unique_ptr<QueuePair>> QueuePair::create(const Rail& rail, std::uint32_t requests) {
  std::unique_ptr<QueuePair> made(new QueuePair(rail));
  const Library& library = rail.device->library();
  const auto failed = [&](const char* function, int error) {
    return Status(
        Code::system, Scope::transport,
        "no queue pair by RDMA device " + rail.name() + ": " + describe_error(function, error));
  };
  errno = 0;
  // After an error each request has a completion, so there is room for all.
  made->cq_ = library.create_cq(rail.device->context(), static_cast<int>(requests) + 1, nullptr,
                                nullptr, 0);
  if (made->cq_ == nullptr) return failed("ibv_create_cq", errno);
  IbvQpInitAttr attr{};
  attr.send_cq = attr.recv_cq = made->cq_;
  attr.cap = {.max_send_wr = requests,
              .max_recv_wr = 1,
              .max_send_sge = 1,
              .max_recv_sge = 1,
              .max_inline_data = 0};
  attr.qp_type = kQptRc;
  errno = 0;
  made->qp_ = library.create_qp(rail.device->pd(), &attr);
  if (made->qp_ == nullptr) return failed("ibv_create_qp", errno);
  if (Status status = made->to_init(); !status.ok()) return status;
  return made;
}

Status QueuePair::modify(IbvQpAttr& attr, int mask, const char* state) {
  const int error = rail_.device->library().modify_qp(qp_, &attr, mask);
  if (error == 0) return {};
  return {Code::system, Scope::transport,
          "no queue pair by RDMA device " + rail_.name() + ": " +
              describe_error("ibv_modify_qp", error) + ", to " + state};
}

Status QueuePair::to_init() {
  IbvQpAttr attr{};
  attr.qp_state = kQpsInit;
  attr.pkey_index = rail_.pkey_index;
  attr.port_num = rail_.port;
  attr.qp_access_flags = kAccessLocalWrite | kAccessRemoteWrite | kAccessRemoteRead;
  return modify(attr, kQpState | kQpPkeyIndex | kQpPort | kQpAccessFlags, "INIT");
}

Status QueuePair::to_rtr(const QueuePairRoute& peer, const VerbsSettings& settings) {
  IbvQpAttr attr{};
  attr.qp_state = kQpsRtr;
  attr.path_mtu = std::min(peer.mtu, rail_.mtu);
  attr.dest_qp_num = peer.queue_pair;
  attr.rq_psn = peer.psn;
  attr.max_dest_rd_atomic = max_answered_reads();
  attr.min_rnr_timer = kRnrTimer;
  attr.ah_attr.dlid = peer.lid;
  attr.ah_attr.sl = settings.service_level;
  attr.ah_attr.port_num = rail_.port;
  // Within a subnet of InfiniBand the LID is enough.
  if (rail_.link == kLinkEthernet ||
      peer.gid.global.subnet_prefix != rail_.gid.global.subnet_prefix) {
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh = {.dgid = peer.gid,
                        .flow_label = 0,
                        .sgid_index = rail_.gid_index,
                        .hop_limit = kHopLimit,
                        .traffic_class = settings.traffic_class};
  }
  return modify(
      attr,
      kQpState | kQpAv | kQpPathMtu | kQpDestQpn | kQpRqPsn | kQpMaxDestRdAtomic | kQpMinRnrTimer,
      "RTR");
}

Status QueuePair::answer(const QueuePairRoute& peer, const VerbsSettings& settings) {
  return to_rtr(peer, settings);
}

Status QueuePair::connect(const QueuePairRoute& peer, std::uint32_t psn,
                          const VerbsSettings& settings) {
  if (Status status = to_rtr(peer, settings); !status.ok()) return status;
  IbvQpAttr attr{};
  attr.qp_state = kQpsRts;
  attr.sq_psn = psn;
  attr.timeout = kAckTimeout;
  attr.retry_cnt = kRetries;
  attr.rnr_retry = kRetries;
  attr.max_rd_atomic = std::clamp<std::uint8_t>(peer.reads, 1, max_sent_reads());
  return modify(
      attr, kQpState | kQpSqPsn | kQpTimeout | kQpRetryCnt | kQpRnrRetry | kQpMaxQpRdAtomic, "RTS");
}

Status QueuePair::destroy() noexcept {
  const Library& library = rail_.device->library();
  int error = 0;
  if (qp_ != nullptr) error = library.destroy_qp(qp_);
  if (error != 0) {  // it stays, but in ERR it touches no memory either
    IbvQpAttr attr{};
    attr.qp_state = kQpsErr;
    if (library.modify_qp(qp_, &attr, kQpState) == 0) error = 0;
  }
  qp_ = nullptr;
  if (cq_ != nullptr) (void)library.destroy_cq(std::exchange(cq_, nullptr));
  if (error == 0) return {};
  return {Code::system, Scope::transport,
          "RDMA device " + rail_.name() + ": " + describe_error("ibv_destroy_qp", error)};
}

std::uint8_t QueuePair::max_answered_reads() const noexcept {
  return reads_of(rail_.device->attributes().max_qp_rd_atom);
}

std::uint8_t QueuePair::max_sent_reads() const noexcept {
  return reads_of(rail_.device->attributes().max_qp_init_rd_atom);
}

}  // namespace linkspan::transport::verbs
