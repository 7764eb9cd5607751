// tests/support/fake_verbs/post.cpp - work requests come in.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/support/fake_verbs/fake_verbs.hpp"

namespace linkspan::transport::verbs::fake {
namespace {

using namespace std::chrono_literals;

QpObject& qp_of(IbvQp* qp) { return *static_cast<QpObject*>(qp); }

bool is_known(IbvWrOpcode opcode) { return opcode >= kWrRdmaWrite && opcode <= kWrRdmaRead; }

/// Copies a request into the queue. Returns 0 or an errno. Call under `post`.
int append(QpObject& qp, const IbvSendWr& wr) {
  const IbvQpCap& cap = qp.init.cap;
  const std::uint64_t index = qp.tail;
  if (is_nth(settings().fail_post)) return ENOMEM;
  if (index - qp.retired >= cap.max_send_wr) return ENOMEM;
  if (wr.num_sge < 0 || static_cast<std::uint32_t>(wr.num_sge) > cap.max_send_sge ||
      !is_known(wr.opcode))
    return EINVAL;
  const auto sges = static_cast<std::size_t>(wr.num_sge);
  SendEntry& entry = qp.entry(index);
  entry = {.wr = wr,
           .number = index + 1,
           .bytes = 0,
           .piece_bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(settings().chunk, 1)),
           .pieces = 0,
           .first_piece = 0,
           .landed_pieces = 0,
           .phase = SendEntry::Phase::queued,
           .begun = false,
           .done = false,
           .due = {}};
  const auto elements = qp.elements_of(index);
  for (std::size_t i = 0; i < sges; ++i) {
    elements[i] = wr.sg_list[i];
    entry.bytes += wr.sg_list[i].length;
  }
  if ((wr.send_flags & kSendInline) != 0) {
    if (wr.opcode == kWrRdmaRead || entry.bytes > cap.max_inline_data) return EINVAL;
    std::byte* to = qp.inline_of(index);
    for (const IbvSge& each : elements.first(sges)) {
      std::memcpy(to, reinterpret_cast<const void*>(each.addr), each.length);
      to += each.length;
    }
  }
  entry.wr.next = nullptr;
  entry.wr.sg_list = nullptr;  // the caller's, which may be gone
  const std::uint64_t piece = entry.piece_bytes;
  entry.pieces = entry.bytes / piece + (entry.bytes % piece != 0 || entry.bytes == 0 ? 1 : 0);
  qp.tail = index + 1;
  counters().work_requests.fetch_add(1, std::memory_order_relaxed);
  return 0;
}

int append(QpObject& qp, const IbvRecvWr& wr) {
  QpShared& shared = *qp.shared;
  const std::uint64_t index = shared.tail;
  if (index - shared.head >= qp.init.cap.max_recv_wr) return ENOMEM;
  if (wr.num_sge < 0 || static_cast<std::uint32_t>(wr.num_sge) > qp.init.cap.max_recv_sge)
    return EINVAL;
  RecvSlot& slot = own_segment().receive(shared, index);
  slot.wr_id = wr.wr_id;
  slot.sge_count = static_cast<std::uint32_t>(wr.num_sge);
  std::copy_n(wr.sg_list, wr.num_sge, reinterpret_cast<IbvSge*>(&slot + 1));
  shared.tail = index + 1;
  counters().receives.fetch_add(1, std::memory_order_relaxed);
  return 0;
}

/// Appends a chain. Returns 0 or the errno of the first one that was refused, at `*bad`.
template <class Wr>
int append_all(QpObject& qp, Wr* chain, Wr** bad) {
  for (; chain != nullptr; chain = chain->next) {
    const int error = append(qp, *chain);
    if (error == 0) continue;
    *bad = chain;
    return error;
  }
  return 0;
}

}  // namespace

int post_send(IbvQp* base, IbvSendWr* chain, IbvSendWr** bad) {
  QpObject& qp = qp_of(base);
  ContextObject& context = object_of(qp);
  *bad = chain;
  counters().doorbells.fetch_add(1, std::memory_order_relaxed);
  if (gone() || context.lost()) return EIO;
  if (chain != nullptr && chain->next != nullptr)
    counters().chains.fetch_add(1, std::memory_order_relaxed);
  std::int64_t before = 0;
  int error = 0;
  {
    const std::lock_guard post(qp.post);
    const std::uint32_t state = qp.shared->state;
    if (state != kQpsRts && state != kQpsErr && state != kQpsSqd) return EINVAL;
    before = static_cast<std::int64_t>(qp.tail.load());
    error = append_all(qp, chain, bad);
    before = static_cast<std::int64_t>(qp.tail.load()) - before;
  }
  world().host->wake(context.index);
  bool lost = false;
  for (; before > 0; --before) lost = is_nth(settings().lose_device) || lost;
  if (lost) lose_device(static_cast<std::uint32_t>(settings().lose_which));
  return error;
}

int post_recv(IbvQp* base, IbvRecvWr* chain, IbvRecvWr** bad) {
  QpObject& qp = qp_of(base);
  ContextObject& context = object_of(qp);
  *bad = chain;
  counters().post_recvs.fetch_add(1, std::memory_order_relaxed);
  if (gone() || context.lost()) return EIO;
  int error = 0;
  {
    const std::lock_guard post(qp.post);
    if (qp.shared->state == kQpsReset) return EINVAL;
    error = append_all(qp, chain, bad);
  }
  const Time deadline = now() + 10s;
  while (qp.shared->state == kQpsErr && now() < deadline) {
    const Turns::Call call(context.turns);
    const SharedHold landing(qp.shared->landing, 10s, peers_pad(qp));
    if (!landing || qp.shared->state != kQpsErr) continue;
    if (move_to_error(*world().host, *qp.shared)) break;
  }
  return error;
}

}  // namespace linkspan::transport::verbs::fake
