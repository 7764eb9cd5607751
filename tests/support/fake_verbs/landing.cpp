// tests/support/fake_verbs/landing.cpp - one piece of a work request reaches the other side.
//
// The thread of the initiator's device does what the target's network card would do. It holds the
// landing lock of the target's queue pair meanwhile, so that the target's fence finds nothing half
// done.
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/support/fake_verbs/fake_verbs.hpp"

namespace linkspan::transport::verbs::fake {
namespace {

using namespace std::chrono_literals;
constexpr auto kBusy = 2ms;
constexpr std::size_t kMaxElements = 64;

bool is_write(IbvWrOpcode opcode) {
  return opcode == kWrRdmaWrite || opcode == kWrRdmaWriteWithImm;
}
bool is_send(IbvWrOpcode opcode) { return opcode == kWrSend || opcode == kWrSendWithImm; }
bool takes_receive(IbvWrOpcode opcode) { return is_send(opcode) || opcode == kWrRdmaWriteWithImm; }

/// Where the bytes of a message are on one side, and of which of them GPUs show late.
struct Scatter {
  iovec parts[kMaxElements];
  MrShared* late[kMaxElements];
  std::size_t count = 0;
};

/// Appends the part of an element that lies in [begin, begin + bytes) of the message. `at` is where
/// the element begins in the message.
void add_part(Scatter& to, std::uint64_t view, std::uint64_t length, std::uint64_t at,
              std::uint64_t begin, std::uint64_t bytes, MrShared* late = nullptr) {
  const std::uint64_t from = std::max(at, begin), end = std::min(at + length, begin + bytes);
  if (from >= end || to.count == kMaxElements) return;
  to.late[to.count] = late;
  to.parts[to.count++] = {reinterpret_cast<void*>(view + (from - at)), end - from};
}

/// Finds elements in memory of a host. False: one of them is not valid for that use.
bool resolve(Segment& segment, std::uint32_t pd, std::span<const IbvSge> elements, unsigned access,
             std::uint64_t begin, std::uint64_t bytes, Scatter& to) {
  std::uint64_t at = 0;
  for (const IbvSge& each : elements) {
    if (each.length == 0) continue;
    MrShared* const mr = segment.find(each.lkey, false, pd, each.addr, each.length, access);
    if (mr == nullptr) return false;
    const bool late = access != 0 && mr->shadow != 0;
    add_part(to, (late ? mr->shadow : mr->view) + (each.addr - mr->iova), each.length, at, begin,
             bytes, late ? mr : nullptr);
    at += each.length;
  }
  return true;
}

/// Delays the bytes that were copied to `parts` if the memory shows them late (gpu_late).
void tell_late(Host& host, const Scatter& parts) {
  for (std::size_t i = 0; i < parts.count; ++i) {
    MrShared* const mr = parts.late[i];
    if (mr == nullptr) continue;
    const auto at = reinterpret_cast<std::uint64_t>(parts.parts[i].iov_base);
    add_late(host, *mr, at - mr->shadow, parts.parts[i].iov_len);
  }
}

/// The target's end of a queue pair, whose landing lock is held.
struct Target {
  Host& host;
  Segment& segment;
  QpShared& qp;
  Pad& pad;  // of this thread
};

/// The target's queue pair errs because of what the initiator asked. False: try again.
bool refuse(const Target& target, IbvEventType event) {
  if (!target.qp.landing.commit()) return false;
  if (!move_to_error(target.host, target.qp)) return false;
  add_event(target.host, target.qp.context, event, target.qp.number);
  target.host.wake(target.qp.context);
  return true;
}

/// Whether the two queue pairs are each other's.
bool answers(const QpObject& qp, const QpShared& target) {
  const QpShared& ours = *qp.shared;
  const Route& back = target.route;
  return target.number == ours.route.qp_num &&
         (target.state == kQpsRtr || target.state == kQpsRts) && back.qp_num == qp.qp_num &&
         back.to.host == ours.route.from.host && back.to.device == ours.route.from.device &&
         back.from.device == ours.route.to.device && back.gid_type == ours.route.gid_type &&
         (target.expects_first == 0 || target.rq_psn == qp.connection.attr.sq_psn);
}

/// Whether packets go from device to device.
bool reachable(const QpObject& qp) {
  const Route& route = qp.shared->route;
  const Host* const host = qp.connection.host.get();
  const DeviceShared& here = *object_of(qp).device;
  if (host == nullptr || !host->alive() || here.lost != 0 || here.port_down != 0) return false;
  const DeviceShared& there = host->segment().devices[route.to.device];
  const auto stale = [](const Address& address, const DeviceShared& device) {
    return address.ipv4 && address.generation != device.generation % 15;
  };
  return there.lost == 0 && there.port_down == 0 && !stale(route.from, here) &&
         !stale(route.to, there);
}

/// The message ends at the target: takes the receive and tells of it.
Outcome finish(const QpObject& qp, const SendEntry& entry, const Target& target,
               IbvWcStatus status) {
  if (!target.qp.landing.commit()) return Outcome::again;
  const std::uint64_t head = target.qp.head;
  Completion taken{};
  taken.wc.wr_id = target.segment.receive(target.qp, head).wr_id;
  taken.wc.status = status;
  taken.wc.opcode = is_send(entry.wr.opcode) ? kWcRecv : kWcRecvRdmaWithImm;
  taken.wc.byte_len = static_cast<std::uint32_t>(entry.bytes);
  taken.wc.qp_num = target.qp.number;
  taken.wc.src_qp = qp.qp_num;
  taken.wc.wc_flags = entry.wr.opcode == kWrSend ? 0 : static_cast<unsigned>(kWcWithImm);
  taken.wc.imm_data = entry.wr.opcode == kWrSend ? 0x5a5a5a5a : entry.wr.imm_data;
  const bool solicited = (entry.wr.send_flags & kSendSolicited) != 0;
  if (!add_completion(target.host, target.qp.recv_cq, taken, solicited)) return Outcome::again;
  target.qp.head = head + 1;
  return Outcome::landed;
}

/// Copies a piece between the initiator's elements and a range of the target.
Outcome copy_to_range(const SendEntry& entry, const Scatter& local, const Target& target,
                      std::uint64_t begin, std::uint64_t bytes, IbvWcStatus& status) {
  const bool write = is_write(entry.wr.opcode);
  const unsigned access = write ? kAccessRemoteWrite : kAccessRemoteRead;
  const std::uint64_t address = entry.wr.wr.rdma.remote_addr;
  if (entry.bytes == 0) return Outcome::landed;  // no key is looked at
  MrShared* const mr =
      target.segment.find(entry.wr.wr.rdma.rkey, true, target.qp.pd, address, entry.bytes, access);
  if (mr == nullptr || (target.qp.access & access) != access ||
      (!write && target.qp.max_dest_rd_atomic == 0)) {
    if (!refuse(target, kEventQpAccessErr)) return Outcome::again;
    status = mr == nullptr || write ? kWcRemAccessErr : kWcRemInvReqErr;
    return Outcome::failed;
  }
  if (!write) show_late(target.host);
  const std::uint64_t offset = address - mr->iova + begin;
  const std::uint64_t there = (write && mr->shadow != 0 ? mr->shadow : mr->view) + offset;
  const int error = target.host.copy(local.parts, local.count, there, bytes, write,
                                     target.qp.landing, target.pad);
  if (error == ESRCH) return Outcome::unreachable;
  if (error == EAGAIN) return Outcome::again;
  if (error == 0 && write && mr->shadow != 0 && !add_late(target.host, *mr, offset, bytes))
    return Outcome::again;
  if (error == 0) return Outcome::landed;
  status = kWcGeneralErr;
  return Outcome::failed;
}

/// Copies a piece of a send into the receive that is next.
Outcome copy_to_receive(const QpObject& qp, const SendEntry& entry, const Scatter& local,
                        const Target& target, std::uint64_t begin, std::uint64_t bytes,
                        IbvWcStatus& status) {
  RecvSlot& slot = target.segment.receive(target.qp, target.qp.head);
  const std::span elements(reinterpret_cast<const IbvSge*>(&slot + 1), slot.sge_count);
  std::uint64_t room = 0;
  for (const IbvSge& each : elements) room += each.length;
  Scatter remote;
  const bool fits = room >= entry.bytes;
  if (!fits ||
      !resolve(target.segment, target.qp.pd, elements, kAccessLocalWrite, begin, bytes, remote)) {
    if (finish(qp, entry, target, fits ? kWcLocProtErr : kWcLocLenErr) == Outcome::again ||
        !refuse(target, fits ? kEventQpFatal : kEventQpReqErr))
      return Outcome::again;
    status = fits ? kWcRemOpErr : kWcRemInvReqErr;
    return Outcome::failed;
  }
  std::uint64_t done = 0;
  for (std::size_t i = 0; i < remote.count; ++i) {
    const iovec& part = remote.parts[i];
    Scatter from;
    std::uint64_t at = 0;
    for (std::size_t j = 0; j < local.count; ++j) {
      add_part(from, reinterpret_cast<std::uint64_t>(local.parts[j].iov_base),
               local.parts[j].iov_len, at, done, part.iov_len);
      at += local.parts[j].iov_len;
    }
    const int error =
        target.host.copy(from.parts, from.count, reinterpret_cast<std::uint64_t>(part.iov_base),
                         part.iov_len, true, target.qp.landing, target.pad);
    if (error != 0) return error == EAGAIN ? Outcome::again : Outcome::unreachable;
    done += part.iov_len;
  }
  tell_late(target.host, remote);
  return Outcome::landed;
}

/// Gathers a piece of the initiator's memory. False: an element is not valid.
bool gather(QpObject& qp, std::uint64_t index, std::uint64_t begin, std::uint64_t bytes,
            Scatter& local) {
  const SendEntry& entry = qp.entry(index);
  if ((entry.wr.send_flags & kSendInline) != 0) {
    add_part(local, reinterpret_cast<std::uint64_t>(qp.inline_of(index)), entry.bytes, 0, begin,
             bytes);
    return true;
  }
  const unsigned access = entry.wr.opcode == kWrRdmaRead ? kAccessLocalWrite : 0U;
  if (access == 0) show_late(*world().host);  // it may be sent what has landed here
  return resolve(own_segment(), qp.shared->pd,
                 qp.elements_of(index).first(static_cast<std::size_t>(entry.wr.num_sge)), access,
                 begin, bytes, local);
}

}  // namespace

Outcome land(QpObject& qp, std::uint64_t index, IbvWcStatus& status) {
  SendEntry& entry = qp.entry(index);
  const std::uint64_t piece = entry.piece_bytes;
  const bool copies = entry.landed_pieces < entry.pieces;
  const std::uint64_t begin =
      copies ? (entry.first_piece + entry.landed_pieces) % entry.pieces * piece : 0;
  const std::uint64_t bytes =
      copies ? std::min(piece, entry.bytes - std::min(entry.bytes, begin)) : 0;
  Scatter local;
  if (copies && !gather(qp, index, begin, bytes, local)) {
    status = kWcLocProtErr;
    return Outcome::failed;
  }
  if (entry.bytes > 1U << 30) {
    status = kWcLocLenErr;
    return Outcome::failed;
  }
  if (!reachable(qp)) return Outcome::unreachable;
  Host& host = *qp.connection.host;
  QpShared& there = host.segment().qp(qp.shared->route.qp_num);
  const SharedHold landing(there.landing, kBusy, nullptr, SharedLock::As::copier);
  if (!landing) return Outcome::again;
  const Target target{host, host.segment(), there, own_segment().contexts[object_of(qp).index].pad};
  if (!answers(qp, there)) return Outcome::unreachable;
  const bool needs_receive =
      is_send(entry.wr.opcode) || (entry.wr.opcode == kWrRdmaWriteWithImm && !copies);
  if (needs_receive && there.head == there.tail) return Outcome::no_receive;
  if (there.expects_first != 0) {
    if (!there.landing.commit()) return Outcome::again;
    there.expects_first = 0;
    if (there.state == kQpsRtr) add_event(host, there.context, kEventCommEst, there.number);
  }
  if (!copies)
    return takes_receive(entry.wr.opcode) ? finish(qp, entry, target, kWcSuccess) : Outcome::landed;
  const Outcome outcome = is_send(entry.wr.opcode)
                              ? copy_to_receive(qp, entry, local, target, begin, bytes, status)
                              : copy_to_range(entry, local, target, begin, bytes, status);
  if (outcome == Outcome::landed) {
    if (entry.wr.opcode == kWrRdmaRead) tell_late(*world().host, local);
    ++entry.landed_pieces;
    counters().bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  return outcome;
}

}  // namespace linkspan::transport::verbs::fake
