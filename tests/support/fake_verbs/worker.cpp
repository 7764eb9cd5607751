// tests/support/fake_verbs/worker.cpp - the thread of an open device.
//
// It makes one step at a time, between which calls have their turn: a piece of a work request
// lands, a completion is given, or queues of a failed queue pair are flushed. Completions of one
// queue pair come in the order of its requests.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/support/fake_verbs/fake_verbs.hpp"

namespace linkspan::transport::verbs::fake {
namespace {

using namespace std::chrono_literals;
constexpr auto kAtLeastEach = 100ms;
constexpr int kStepsOfTurn = 8;
/// So many requests may have landed, or are candidates in any order, before the first is complete.
constexpr std::uint64_t kWindow = 64;

bool is_write(IbvWrOpcode opcode) {
  return opcode == kWrRdmaWrite || opcode == kWrRdmaWriteWithImm;
}

std::uint64_t below(ContextObject& context, std::uint64_t limit) {
  return std::uniform_int_distribution<std::uint64_t>(0, limit - 1)(context.random);
}

std::chrono::nanoseconds lateness(ContextObject& context) {
  const auto late = static_cast<std::uint64_t>(settings().late_us);
  return late != 0 ? std::chrono::nanoseconds(below(context, late * 1000)) : 0ns;
}

/// Returns how long a target asks the initiator to wait for a receive (InfiniBand, table 45).
std::chrono::microseconds rnr_delay(std::uint32_t timer) {
  constexpr int kDelays[32] = {655360, 10,    20,    30,     40,     60,     80,     120,
                               160,    240,   320,   480,    640,    960,    1280,   1920,
                               2560,   3840,  5120,  7680,   10240,  15360,  20480,  30720,
                               40960,  61440, 81920, 122880, 163840, 245760, 327680, 491520};
  return std::chrono::microseconds(kDelays[timer % 32]);
}

IbvWcOpcode completed(IbvWrOpcode opcode) {
  if (opcode == kWrRdmaRead) return kWcRdmaRead;
  return is_write(opcode) ? kWcRdmaWrite : kWcSend;
}

/// Gives the completion of a request, if it has one, and leaves it behind if it is in front. False:
/// try again. The request's place may be used again as soon as its completion is there.
bool complete(QpObject& qp, std::uint64_t index, IbvWcStatus status) {
  SendEntry& entry = qp.entry(index);
  const bool front = index == qp.head;
  const bool told = !entry.done && (status != kWcSuccess || qp.init.sq_sig_all != 0 ||
                                    (entry.wr.send_flags & kSendSignaled) != 0);
  Completion given{};
  if (status != kWcSuccess) std::memset(&given.wc, 0x5a, sizeof given.wc);
  given.wc.wr_id = entry.wr.wr_id;
  given.wc.status = status;
  given.wc.qp_num = qp.qp_num;
  given.retires = front ? entry.number : 0;
  if (status == kWcSuccess) {
    given.wc.opcode = completed(entry.wr.opcode);
    given.wc.byte_len = static_cast<std::uint32_t>(entry.bytes);
  } else {
    given.wc.vendor_err = 0x5a000000U + static_cast<std::uint32_t>(status);
  }
  const bool was_done = std::exchange(entry.done, true);
  if (front) qp.head = index + 1;
  const bool silent = object_of(qp).lost() && settings().lost_silent != 0;
  if (!told || silent || add_completion(*world().host, qp.shared->send_cq, given, false))
    return true;
  entry.done = was_done;
  if (front) qp.head = index;
  return false;
}

/// The queue pair, a request of which has failed, errs. False: try again.
bool err(QpObject& qp) {
  const SharedHold landing(qp.shared->landing, 1s, peers_pad(qp));
  if (!landing || !move_to_error(*world().host, *qp.shared)) return false;
  qp.connection.failed = false;
  return true;
}

/// Gives completions to what is in front. False: nothing of it was ready; `next` is when it may be.
bool advance_head(QpObject& qp, bool flush, Time& next) {
  bool moved = false;
  while (qp.head < qp.tail) {
    SendEntry& entry = qp.entry(qp.head);
    const bool landed = entry.phase == SendEntry::Phase::landed;
    if (!entry.done && !flush) {
      if (!landed) break;
      if (now() < entry.due) {
        next = std::min(next, entry.due);
        break;
      }
    }
    if (!complete(qp, qp.head, landed ? kWcSuccess : kWcWrFlushErr)) {
      next = now();
      break;
    }
    moved = true;
  }
  return moved;
}

/// Chooses the request whose next piece lands. Null: none may.
SendEntry* choose(QpObject& qp, std::uint64_t& index) {
  ContextObject& context = object_of(qp);
  const std::uint64_t head = qp.head, end = std::min(qp.tail.load(), head + kWindow);
  const bool unordered = settings().unordered != 0;
  std::uint64_t reads = 0, candidates = 0;
  SendEntry* chosen = nullptr;
  for (std::uint64_t i = head; i < end; ++i) {
    SendEntry& entry = qp.entry(i);
    const bool read = entry.wr.opcode == kWrRdmaRead;
    if (entry.phase == SendEntry::Phase::landed) {
      reads += read ? 1 : 0;  // its completion is late: it is outstanding
      continue;
    }
    if (reads != 0 && (entry.wr.send_flags & kSendFence) != 0) break;
    if (read && reads >= std::max<std::uint64_t>(qp.connection.attr.max_rd_atomic, 1)) break;
    const bool any_order = unordered && is_write(entry.wr.opcode);
    if (chosen != nullptr && !any_order) break;
    ++candidates;
    if (chosen == nullptr || below(context, candidates) == 0) {
      chosen = &entry;
      index = i;
    }
    if (!any_order) break;
  }
  return chosen;
}

/// The peer did not answer. Returns true when it has not for so long that the request fails.
bool exceeds_retries(QpObject& qp, Time& next) {
  Connection& c = qp.connection;
  const Time time = now();
  if (c.unreachable_since == Time{}) c.unreachable_since = time;
  const std::chrono::nanoseconds each(c.attr.timeout == 0 ? 0
                                                          : std::int64_t{4096} << c.attr.timeout);
  const Time deadline = c.unreachable_since + each * (c.attr.retry_cnt + 1);
  if (c.attr.timeout != 0 && time >= deadline) return true;
  c.not_before = time + (each == 0ns ? 10ms : std::min<std::chrono::nanoseconds>(each, 10ms));
  next = std::min(next, c.not_before);
  return false;
}

/// The target had no receive. Returns true when that was once too often.
bool exceeds_rnr_retries(QpObject& qp, Time& next) {
  Connection& c = qp.connection;
  counters().rnrs.fetch_add(1);
  if (c.attr.rnr_retry != 7 && c.rnr_tries >= c.attr.rnr_retry) return true;
  ++c.rnr_tries;
  const QpShared& there = c.host->segment().qp(qp.shared->route.qp_num);
  c.not_before = now() + rnr_delay(there.min_rnr_timer);
  next = std::min(next, c.not_before);
  return false;
}

/// Whether a message shall meet no receive although there is one.
bool roll_rnr(QpObject& qp, const SendEntry& entry) {
  Connection& c = qp.connection;
  if (entry.wr.opcode == kWrRdmaWrite || entry.wr.opcode == kWrRdmaRead || c.rnr_rolled)
    return false;
  c.rnr_rolled = true;
  return below(object_of(qp), 100) < static_cast<std::uint64_t>(settings().rnr_percent);
}

void landed_piece(QpObject& qp, SendEntry& entry, bool ended, Time& next) {
  ContextObject& context = object_of(qp);
  Connection& c = qp.connection;
  c.unreachable_since = {};
  const std::int64_t rate = settings().rate;
  if (rate > 0 && !ended)
    context.free_at = std::max(context.free_at, now()) +
                      std::chrono::nanoseconds(static_cast<std::int64_t>(
                          static_cast<double>(std::min(entry.piece_bytes, entry.bytes)) * 1e9 /
                          static_cast<double>(rate)));
  if (ended) {
    entry.phase = SendEntry::Phase::landed;
    entry.due = now() + lateness(context);
    c.rnr_tries = 0;
    c.rnr_rolled = false;
    return;
  }
  if (entry.landed_pieces < entry.pieces) return;
  if (entry.wr.opcode == kWrRdmaWrite || entry.wr.opcode == kWrRdmaRead) {
    entry.phase = SendEntry::Phase::landed;
    entry.due = now() + lateness(context);
  } else if (const auto late = lateness(context); late != 0ns && settings().unordered == 0) {
    c.not_before = now() + late;  // the bytes are there, the target is told later
    next = std::min(next, c.not_before);
  }
}

/// Makes one step of a queue pair. False: there is none to make; `next` is when there may be.
bool step(QpObject& qp, Time& next) {
  if (qp.connection.failed && !err(qp)) {
    next = std::min(next, now() + 100us);
    return false;
  }
  if (qp.head == qp.tail) return false;
  ContextObject& context = object_of(qp);
  const std::uint32_t state = qp.shared->state;
  const bool flush = state == kQpsErr;
  if (advance_head(qp, flush, next)) return true;
  if (state != kQpsRts || context.held) return false;
  const Time time = now();
  Connection& c = qp.connection;
  if (time < c.not_before || time < context.free_at) {
    next = std::min(next, std::max(c.not_before, context.free_at));
    return false;
  }
  std::uint64_t index = 0;
  SendEntry* const entry = choose(qp, index);
  if (entry == nullptr) return false;
  IbvWcStatus status = kWcSuccess;
  Outcome outcome = Outcome::failed;
  const bool ended = entry->landed_pieces == entry->pieces;
  const bool begins = !entry->begun;
  entry->begun = true;
  if (begins) entry->first_piece = below(context, entry->pieces);
  if (begins && is_nth(settings().fail_send))
    status = kWcRetryExcErr;
  else if (roll_rnr(qp, *entry))
    outcome = Outcome::no_receive;
  else
    outcome = land(qp, index, status);
  switch (outcome) {
    case Outcome::landed:
      landed_piece(qp, *entry, ended, next);
      return true;
    case Outcome::again:
      next = std::min(next, time + 100us);
      return false;
    case Outcome::unreachable:
      if (!exceeds_retries(qp, next)) return false;
      status = kWcRetryExcErr;
      break;
    case Outcome::no_receive:
      if (!exceeds_rnr_retries(qp, next)) return false;
      status = kWcRnrRetryExcErr;
      break;
    case Outcome::failed:
      break;
  }
  c.failed = complete(qp, index, status);
  if (!c.failed || !err(qp)) next = std::min(next, time + 100us);
  return true;
}

void sleep_until(ContextShared& shared, std::uint32_t seen, Time next) {
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(next - now());
  if (left <= 0ns) return;
  const timespec time{static_cast<time_t>(left / 1s), static_cast<long>((left % 1s).count())};
  shared.sleeping = 1;
  syscall(SYS_futex, &shared.wake, FUTEX_WAIT, seen, &time, nullptr, 0);
  shared.sleeping = 0;
}

}  // namespace

void run(ContextObject& context) {
  ContextShared& shared = own_segment().contexts[context.index];
  std::size_t first = 0;
  while (!context.stop) {
    const std::uint32_t seen = shared.wake;
    Time next = now() + kAtLeastEach;
    bool moved = false;
    {
      const auto turn = context.turns.step();
      const std::size_t count = context.qps.size();
      first = count != 0 ? below(context, count) : 0;
      for (std::size_t i = 0; i < count && !moved; ++i) {
        QpObject& qp = *context.qps[(first + i) % count];
        for (int made = 0; made < kStepsOfTurn && step(qp, next); ++made) {
          moved = true;
          if (context.turns.called()) break;
        }
      }
    }
    if (!moved) sleep_until(shared, seen, next);
  }
}

}  // namespace linkspan::transport::verbs::fake
