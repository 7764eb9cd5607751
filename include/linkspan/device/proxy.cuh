// linkspan/device/proxy.cuh - what a kernel asks of the host where the peer's memory is not mapped.
//
// A queue in mapped host memory: kernels write entries, the Engine takes them in order and runs
// each as a transfer, over whichever transport reaches the peer, and raises signals by writing them
// there.
//
// MEMORY MODEL
//   Order     entries of one window are taken in the order of their tickets. Copies that follow
//             each other run together; a signal is written when all copies before it are applied at
//             the peer, and the next entry starts when it is there.
//   Entry     fields by ordinary stores, then its number by a release at system scope behind a
//             barrier of the scope: so the host copies what all lanes had written.
//   Room      the host has read an entry before it says so, by a release that the next writer of
//             the entry acquires.
//   Signal    add: the host keeps each signal's sum and writes that, so a signal that is raised by
//             a proxied window has no other producer (Window::atomics is 0).
//   Failure   the first transfer that fails ends the queue: everything behind it answers `failed`.
//   A ticket is taken only when there is room, so that a call that gives up leaves no gap.
#pragma once

#include "linkspan/device/window.cuh"

namespace linkspan::device {

enum class ProxyOp : uint32_t {
  put = 1,  ///< bytes from local to remote, offsets of the two regions.
  get = 2,  ///< The other way.
  add = 3,  ///< value to the word at offset `remote` of the peer's pad.
  set = 4,  ///< value into it.
};

struct alignas(64) ProxyEntry {
  uint64_t number = 0;  ///< Its ticket + 1, when the rest is there.
  uint64_t op = 0, local = 0, remote = 0, bytes = 0, value = 0;
  uint64_t unused[2] = {};
};

/// Words of ProxyQueue::state.
enum ProxyState : uint32_t { kProxyTaken, kProxyFailed, kProxyDone, kProxyStateWords = 4 };

namespace detail {

/// By one lane; what the scope's lanes wrote comes before.
LINKSPAN_COLD Outcome enqueue(const ProxyQueue queue, const uint32_t* abort, ProxyOp op,
                              uint64_t local, uint64_t remote, uint64_t bytes, uint64_t value) {
  Patience patience({queue.patience, abort});
  uint64_t ticket = load_relaxed(queue.tickets);
  for (;;) {
    // Both before the first is needed: one way to the host.
    const uint64_t failed = load_relaxed(queue.state + kProxyFailed);
    const uint64_t taken = load_acquire(queue.state + kProxyTaken);
    if (failed != 0) return Outcome::failed;
    if (ticket - taken < queue.capacity || ticket < taken) {  // `ticket` may be older than `taken`
      const uint64_t seen = exchange_if(queue.tickets, ticket, ticket + 1);
      if (seen == ticket) break;
      ticket = seen;
      continue;
    }
    if (const Outcome spent = patience.spent(); spent != Outcome::ok) return spent;
  }
  ProxyEntry& entry = queue.entries[ticket % queue.capacity];
  entry.op = static_cast<uint64_t>(op);
  entry.local = local;
  entry.remote = remote;
  entry.bytes = bytes;
  entry.value = value;
  store_release(&entry.number, ticket + 1);
  return Outcome::ok;
}

template <Scope S>
LINKSPAN_DEVICE Outcome queue_copy(const Window& window, ProxyOp op, const void* local,
                                   uint64_t remote, uint64_t bytes) {
  const uint64_t offset =
      reinterpret_cast<uint64_t>(local) - reinterpret_cast<uint64_t>(window.local);
  if (!within(offset, bytes, window.local_bytes)) return Outcome::out_of_range;
  sync<S>();
  Outcome end = Outcome::ok;
  if (rank<S>() == 0) end = enqueue(window.proxy, window.abort, op, offset, remote, bytes, 0);
  return agree<S>(end);
}

/// What this lane queued before is applied before the word is written.
template <Scope S>
LINKSPAN_DEVICE Outcome queue_word(const Window& window, ProxyOp op, uint64_t pad_offset,
                                   uint64_t value) {
  Outcome end = Outcome::ok;
  if (rank<S>() == 0) end = enqueue(window.proxy, window.abort, op, 0, pad_offset, 8, value);
  return agree<S>(end);
}

/// Until all that any lane of the scope has queued so far is applied.
template <Scope S>
LINKSPAN_DEVICE Outcome drain_queue(const Window& window, Bound bound) {
  sync<S>();
  Outcome end = Outcome::ok;
  if (rank<S>() == 0) {
    end = wait_at_least(window.proxy.state + kProxyDone, load_relaxed(window.proxy.tickets), bound);
    if (load_relaxed(window.proxy.state + kProxyFailed) != 0) end = Outcome::failed;
  }
  return agree<S>(end);
}

}  // namespace detail
}  // namespace linkspan::device
