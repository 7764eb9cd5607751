// Kernels that KERNEL_GUIDE.md explains, one for each pattern; its text quotes them from here.
//
// Each is launched as one block (the fan-in as several). A kernel tells by `*failed` that a wait
// has ended without what it waited for; what it would have read then is not looked at.
#pragma once

#include "linkspan/device/packet.cuh"

namespace patterns {

using linkspan::device::Bound;
using linkspan::device::MailboxReceiver;
using linkspan::device::MailboxSender;
using linkspan::device::Outcome;
using linkspan::device::put_signal;
using linkspan::device::Scope;
using linkspan::device::signal_add;
using linkspan::device::wait_signal;
using linkspan::device::Window;

using u32 = unsigned;
using u64 = unsigned long long;

/// This lane and all lanes of the block; a host has one.
LINKSPAN_DEVICE u32 lane() { return linkspan::device::detail::rank<Scope::block>(); }
LINKSPAN_DEVICE u32 lanes() { return linkspan::device::detail::lanes<Scope::block>(); }
LINKSPAN_DEVICE void barrier() { linkspan::device::detail::sync<Scope::block>(); }

// [put and signal]
// The initiator: the bytes, then the signal. Whoever sees the signal sees the bytes.
__global__ void give(Window window, const unsigned char* source, u64 bytes, u32* failed) {
  if (put_signal<Scope::block>(window, 0, source, bytes, /*index=*/0) != Outcome::ok) *failed = 1;
}

// The target: all lanes of the block may read what has come when this wait says ok.
__global__ void take(Window window, u64 nth, u64 nanoseconds, u32* failed) {
  const Bound bound = window.within(nanoseconds);
  if (wait_signal<Scope::block>(window, /*index=*/0, nth, bound) != Outcome::ok) *failed = 1;
}
// [end]

// [ping-pong]
// Small messages there and back: packets need no fence, so each takes about 1 us. A sender and a
// receiver keep in registers what is constant for the mailbox.
__global__ void ping(Window window, u32 rounds, u64 before, u64 nanoseconds, u32* failed) {
  const Bound bound = window.within(nanoseconds);
  MailboxSender<Scope::block> sender(window, 0, bound, before + 1);
  MailboxReceiver<Scope::block> receiver(window, 0, bound, before + 1);
  for (u64 i = before + 1; i <= before + rounds; ++i) {
    if (sender.send(0, &i, sizeof i) != Outcome::ok ||
        receiver.receive(8, sizeof i) != Outcome::ok) {
      *failed = 1;
      return;
    }
  }
}
__global__ void pong(Window window, u32 rounds, u64 before, u64 nanoseconds, u32* failed) {
  const Bound bound = window.within(nanoseconds);
  MailboxSender<Scope::block> sender(window, 0, bound, before + 1);
  MailboxReceiver<Scope::block> receiver(window, 0, bound, before + 1);
  for (u64 i = before + 1; i <= before + rounds; ++i) {
    if (receiver.receive(0, sizeof i) != Outcome::ok ||
        sender.send(8, window.local, sizeof i) != Outcome::ok) {
      *failed = 1;
      return;
    }
  }
}
// [end]

// [double buffering]
// A stream of pieces through two halves of the peer's region. Signal 1 says that a piece is there;
// signal 2, on the way back, that its half is free again: the consumer raises it behind its last
// load, and the producer waits for it before it overwrites.
__global__ void produce(Window window, u32* piece, u64 words, u32 pieces, u64 before,
                        u64 nanoseconds, u32* failed) {
  const Bound bound = window.within(nanoseconds);
  for (u64 i = before; i < before + pieces; ++i) {
    if (i >= 2 && wait_signal<Scope::block>(window, 2, i - 1, bound) != Outcome::ok) {
      *failed = 1;
      return;
    }
    for (u64 k = lane(); k < words; k += lanes()) piece[k] = static_cast<u32>(i * 1000003 + k);
    if (put_signal<Scope::block>(window, i % 2 * words * 4, piece, words * 4, 1) != Outcome::ok) {
      *failed = 1;
      return;
    }
    barrier();  // all lanes have read `piece`
  }
}
__global__ void consume(Window window, u64 words, u32 pieces, u64 before, u64 nanoseconds,
                        u32* wrong, u32* failed) {
  const Bound bound = window.within(nanoseconds);
  for (u64 i = before; i < before + pieces; ++i) {
    if (wait_signal<Scope::block>(window, 1, i + 1, bound) != Outcome::ok) {
      *failed = 1;
      return;
    }
    const u32* half = reinterpret_cast<const u32*>(window.local + i % 2 * words * 4);
    for (u64 k = lane(); k < words; k += lanes())
      if (half[k] != static_cast<u32>(i * 1000003 + k)) *wrong = 1;
    barrier();  // all lanes have read this half
    if (lane() == 0 && signal_add(window, 2) != Outcome::ok) *failed = 1;
  }
}
// [end]

// [ring]
// A running sum around a ring: each waits for its left neighbour, adds its own, gives it to the
// right. `left` is only waited on: its pad is this GPU's, as right's is.
__global__ void ring(Window left, Window right, u32 rank, u32* values, u64 words, u64 nth,
                     u64 nanoseconds, u32* failed) {
  u32* sum = reinterpret_cast<u32*>(left.local);  // where the left neighbour puts
  if (rank != 0) {
    if (wait_signal<Scope::block>(left, 3, nth, left.within(nanoseconds)) != Outcome::ok) {
      *failed = 1;
      return;
    }
    for (u64 k = lane(); k < words; k += lanes()) values[k] += sum[k];
  }
  if (put_signal<Scope::block>(right, 0, values, words * 4, 3) != Outcome::ok) *failed = 1;
  if (rank == 0 && wait_signal<Scope::block>(left, 3, nth, left.within(nanoseconds)) != Outcome::ok)
    *failed = 1;
}
// [end]

// [fan-in]
// Many producers, one consumer, one counter: each block puts into a place of its own and adds one.
// A counter with several producers needs Window::atomics.
__global__ void report(Window window, const unsigned char* mine, u64 bytes, u64 place,
                       u32* failed) {
  if (put_signal<Scope::block>(window, place * bytes, mine, bytes, 4) != Outcome::ok) *failed = 1;
}
__global__ void collect(Window window, u64 reports, u64 nanoseconds, u32* failed) {
  const Bound bound = window.within(nanoseconds);
  if (wait_signal<Scope::block>(window, 4, reports, bound) != Outcome::ok) *failed = 1;
}
// [end]

// [all-to-all]
// Tokens to their experts: rank r has a window onto each other rank, and in each region a part for
// each source. First the rows, then, with the release of the signal, how many there are.
struct Rows {
  const unsigned char* data;  // this rank's rows for one destination, one behind the other
  u32 count;
};
__global__ void dispatch(const Window* to, const Rows* rows, u32 ranks, u32 rank, u64 row_bytes,
                         u64 part_bytes, u32* failed) {
  for (u32 step = 1; step < ranks; ++step) {
    const u32 peer = (rank + step) % ranks;  // not all to the same one first
    const Rows& mine = rows[peer];
    const u64 at = rank * part_bytes;
    Outcome end = linkspan::device::put<Scope::block>(to[peer], at, &mine.count, 4);
    if (end == Outcome::ok)
      end =
          put_signal<Scope::block>(to[peer], at + 16, mine.data, mine.count * row_bytes, 5 + rank);
    if (end != Outcome::ok) *failed = 1;
  }
}
__global__ void combine(const Window* from, u32 ranks, u32 rank, u64 nth, u64 part_bytes,
                        u64 nanoseconds, u32* counts, u32* failed) {
  for (u32 step = 1; step < ranks; ++step) {
    const u32 peer = (rank + step) % ranks;
    const Bound bound = from[peer].within(nanoseconds);
    if (wait_signal<Scope::block>(from[peer], 5 + peer, nth, bound) != Outcome::ok) {
      *failed = 1;
      return;
    }
    if (lane() == 0)
      counts[peer] = *reinterpret_cast<const u32*>(from[peer].local + peer * part_bytes);
    // Here the rows at local + peer * part_bytes + 16 are this block's to read.
  }
}
// [end]

}  // namespace patterns
