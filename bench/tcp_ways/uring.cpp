#include "bench/tcp_ways/uring.hpp"

#include <linux/time_types.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <system_error>
#include <vector>

#include "bench/tcp_ways/ways.hpp"

namespace linkspan::bench {
namespace {

constexpr unsigned kEntries = 8, kChain = 4;  // sends that the kernel has at a time

Status failed(const char* what, int error, Code code = Code::system) {
  if (error == ECANCELED) code = Code::canceled;
  if (error == ENOMEM || error == ENOBUFS) code = Code::no_resource;  // ulimit -l
  return {code, Scope::process, std::string(what) + ": " + std::generic_category().message(error)};
}

}  // namespace

void Ring::Unmap::operator()(std::byte* at) const noexcept { ::munmap(at, bytes); }

Result<Ring::Mapping> Ring::map(const base::Fd& ring, std::size_t bytes, std::uint64_t what) {
  void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                          ring.get(), static_cast<off_t>(what));
  if (at == MAP_FAILED) return failed("mmap of a ring", errno);
  return Mapping(static_cast<std::byte*>(at), Unmap{bytes});
}

Result<std::unique_ptr<Ring>> Ring::create(unsigned entries) {
  io_uring_params params{};
  // One thread, which does its work in the call that waits; kernels before 6.1 do without.
  params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
  long raw = ::syscall(SYS_io_uring_setup, entries, &params);
  if (raw < 0 && errno == EINVAL) {
    params = {};
    raw = ::syscall(SYS_io_uring_setup, entries, &params);
  }
  if (raw < 0) return failed("io_uring_setup", errno, Code::unsupported);
  base::Fd fd(static_cast<int>(raw));
  constexpr unsigned kNeeded = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_NODROP | IORING_FEAT_EXT_ARG;
  if ((params.features & kNeeded) != kNeeded)
    return Status(Code::unsupported, Scope::process, "io_uring of a kernel before 5.11");
  const std::size_t bytes = std::max(params.sq_off.array + params.sq_entries * sizeof(unsigned),
                                     params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe));
  auto rings = map(fd, bytes, IORING_OFF_SQ_RING);
  if (!rings.ok()) return rings.status();
  auto slots = map(fd, params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES);
  if (!slots.ok()) return slots.status();
  return std::unique_ptr<Ring>(
      new Ring(std::move(fd), params, *std::move(rings), *std::move(slots)));
}

Ring::Ring(base::Fd fd, const io_uring_params& params, Mapping rings, Mapping entries)
    : fd_(std::move(fd)), params_(params), rings_(std::move(rings)), entries_(std::move(entries)) {
  for (unsigned i = 0; i < params_.sq_entries; ++i) word(params_.sq_off.array)[i] = i;
}

unsigned* Ring::word(std::uint32_t at) const noexcept {
  return reinterpret_cast<unsigned*>(rings_.get() + at);
}

bool Ring::offers(io_uring_op op) const {
  constexpr unsigned kMost = 256;
  struct alignas(io_uring_probe) Room {
    std::byte bytes[sizeof(io_uring_probe) + kMost * sizeof(io_uring_probe_op)];
  };
  Room room{};
  if (::syscall(SYS_io_uring_register, fd_.get(), IORING_REGISTER_PROBE, &room, kMost) < 0)
    return false;
  const auto* const probe = reinterpret_cast<const io_uring_probe*>(&room);
  return op <= probe->last_op && (probe->ops[op].flags & IO_URING_OP_SUPPORTED) != 0;
}

io_uring_sqe& Ring::add() noexcept {
  auto& slot = reinterpret_cast<io_uring_sqe*>(
      entries_.get())[(tail_ + added_++) & (params_.sq_entries - 1)];
  std::memset(&slot, 0, sizeof slot);
  return slot;
}

Status Ring::submit_and_wait(unsigned count, Duration limit) {
  __kernel_timespec time{};
  time.tv_sec = std::chrono::duration_cast<std::chrono::seconds>(limit).count();
  io_uring_getevents_arg more{};
  more.ts = reinterpret_cast<std::uintptr_t>(&time);
  tail_ += added_;
  std::atomic_ref(*word(params_.sq_off.tail)).store(tail_, std::memory_order_release);
  for (;;) {
    const long taken = ::syscall(SYS_io_uring_enter, fd_.get(), added_, count,
                                 IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &more, sizeof more);
    // It tells what it took even if the time has passed or a signal came then.
    if (taken >= 0) added_ -= static_cast<unsigned>(taken);
    const std::uint32_t done =
        std::atomic_ref(*word(params_.cq_off.tail)).load(std::memory_order_acquire) -
        *word(params_.cq_off.head);
    if (added_ == 0 && done >= count) return {};
    if (taken < 0 && errno == ETIME) return failed("io_uring_enter", errno, Code::timed_out);
    if (taken < 0 && errno != EINTR) return failed("io_uring_enter", errno);
  }
}

std::optional<Ring::Done> Ring::pop() noexcept {
  const std::atomic_ref head(*word(params_.cq_off.head));
  const unsigned at = head.load(std::memory_order_relaxed);
  if (at == std::atomic_ref(*word(params_.cq_off.tail)).load(std::memory_order_acquire))
    return std::nullopt;
  const auto* const all = reinterpret_cast<const io_uring_cqe*>(rings_.get() + params_.cq_off.cqes);
  const io_uring_cqe& entry = all[at & (params_.cq_entries - 1)];
  const Done done{entry.user_data, entry.res, entry.flags};
  head.store(at + 1, std::memory_order_release);
  return done;
}

// ---- the ways
// ------------------------------------------------------------------------------------
namespace {

Status offered(io_uring_op op, const char* name) {
  const auto ring = Ring::create(kEntries);
  if (!ring.ok()) return ring.status();
  if ((*ring)->offers(op)) return {};
  return {Code::unsupported, Scope::process, std::string("io_uring without ") + name};
}

io_uring_sqe& add(Ring& ring, std::uint8_t op, int socket, msghdr& message) {
  io_uring_sqe& slot = ring.add();
  slot.opcode = op;
  slot.fd = socket;
  slot.addr = reinterpret_cast<std::uintptr_t>(&message);
  slot.len = 1;
  slot.msg_flags = MSG_WAITALL | MSG_NOSIGNAL;
  return slot;
}

/// Chained, so that one is behind the other on the stream. MSG_WAITALL: a frame is sent whole, or
/// the rest of its chain not at all.
Result<ZeroCopy> send_by(std::uint8_t op, int to, std::vector<Frame>& frames, const Begin& begin) {
  const auto made = Ring::create(kEntries);
  if (!made.ok()) return made.status();
  Ring& ring = **made;
  begin();
  ZeroCopy told;
  unsigned waiting = 0,
           in_use = 0;  // sends that have not ended, memory that the kernel still reads
  const auto collect = [&]() -> Status {
    Status status = ring.submit_and_wait(std::max(waiting, 1u), kLimit);
    while (const auto done = ring.pop()) {
      if ((done->flags & IORING_CQE_F_NOTIF) != 0) {
        --in_use;
        if ((static_cast<unsigned>(done->res) & IORING_NOTIF_USAGE_ZC_COPIED) != 0) ++told.copied;
        continue;
      }
      --waiting;
      if ((done->flags & IORING_CQE_F_MORE) != 0) ++in_use;
      // That the rest of its chain was canceled may be told before the cause.
      if (done->res < 0 && (status.ok() || status.code() == Code::canceled))
        status = failed("io_uring, a send", -done->res);
      if (status.ok() && static_cast<std::uint64_t>(done->res) != done->user_data)
        status = Status(Code::truncated, Scope::peer, "io_uring sent half a frame");
    }
    return status;
  };
  // Not before the kernel has let go of the memory.
  const auto give_up = [&](Status why) {
    ::shutdown(to, SHUT_RDWR);
    while (waiting + in_use != 0 && collect().code() != Code::timed_out) continue;
    return why;
  };
  for (std::size_t next = 0; next < frames.size();) {
    const std::size_t chain = std::min<std::size_t>(kChain, frames.size() - next);
    for (std::size_t i = 0; i < chain; ++i, ++next) {
      io_uring_sqe& slot = add(ring, op, to, frames[next].message);
      slot.user_data = sizeof(Head) + frames[next].head.bytes;
      if (i + 1 < chain) slot.flags = IOSQE_IO_LINK;
      if (op != IORING_OP_SENDMSG_ZC) continue;
      slot.ioprio = IORING_SEND_ZC_REPORT_USAGE;
      ++told.sends;
    }
    for (waiting = static_cast<unsigned>(chain); waiting != 0;)
      if (Status s = collect(); !s.ok()) return give_up(s);
  }
  while (in_use != 0)
    if (Status s = collect(); !s.ok()) return give_up(s);
  return told;
}

}  // namespace

Status uring_offered() { return offered(IORING_OP_SENDMSG, "SENDMSG"); }
Status uring_zerocopy_offered() { return offered(IORING_OP_SENDMSG_ZC, "SENDMSG_ZC"); }

Result<ZeroCopy> uring_send(int to, std::vector<Frame>& frames, const Begin& begin) {
  return send_by(IORING_OP_SENDMSG, to, frames, begin);
}
Result<ZeroCopy> uring_send_zerocopy(int to, std::vector<Frame>& frames, const Begin& begin) {
  return send_by(IORING_OP_SENDMSG_ZC, to, frames, begin);
}

Status uring_receive(int from, Incoming& incoming, const Begin& begin) {
  const auto made = Ring::create(kEntries);
  if (!made.ok()) return made.status();
  Ring& ring = **made;
  begin();
  while (!incoming.done()) {
    add(ring, IORING_OP_RECVMSG, from, incoming.next());
    if (Status s = ring.submit_and_wait(1, kLimit); !s.ok()) {
      ::shutdown(from, SHUT_RDWR);  // so that the kernel lets go of the memory
      (void)ring.submit_and_wait(1, kLimit);
      return s;
    }
    const auto done = ring.pop();
    if (!done) return {Code::internal, Scope::process, "io_uring has lost a receive"};
    if (done->res == 0)
      return {Code::disconnected, Scope::peer, "io_uring: the other end is closed"};
    if (Status s = done->res < 0 ? failed("io_uring, a receive", -done->res)
                                 : incoming.got(static_cast<std::size_t>(done->res));
        !s.ok())
      return s;
  }
  return {};
}

}  // namespace linkspan::bench
