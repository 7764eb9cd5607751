// linkspan/device/proxy.cuh - queues a kernel's orders for the host if the peer's memory is not
// mapped.
//
// The queue is in mapped host memory. Kernels write entries. The Engine takes them in order, runs
// each as a transfer over a transport that reaches the peer, and raises signals by writing them
// there.
//
// MEMORY MODEL
//   Order     the Engine takes entries of one window in the order of their tickets. Consecutive
//             copies run together. A signal is written when all copies before it are applied at the
//             peer, and the next entry starts when the signal is there.
//   Entry     fields by ordinary stores, then its number by a release at system scope after a
//             barrier of the scope: so the host copies what all lanes had written.
//   Room      the host frees an entry by a release after it has read it; the next writer of the
//             entry acquires that.
//   Signal    add: the host keeps each signal's sum and writes that, so a signal that is raised by
//             a proxied window has no other producer (Window::atomics is 0).
//   Failure   the first transfer that fails ends the queue: all later entries answer `failed`.
//   A ticket is taken only when there is room, so that a call that gives up leaves no gap.
#pragma once

#include "linkspan/device/window.cuh"

namespace linkspan::device {

enum class ProxyOp : uint32_t {
  put = 1,  ///< Copies `bytes` from local to remote; both are offsets in the two regions.
  get = 2,  ///< Copies from remote to local.
  add = 3,  ///< Adds `value` to the word at offset `remote` of the peer's pad.
  set = 4,  ///< Stores `value` to that word.
};

struct alignas(64) ProxyEntry {
  uint64_t number = 0;  ///< Ticket + 1, written after the other fields.
  uint64_t op = 0, local = 0, remote = 0, bytes = 0, value = 0;
  uint64_t unused[2] = {};
};

/// Indices of the words of ProxyQueue::state.
enum ProxyState : uint32_t { kProxyTaken, kProxyFailed, kProxyDone, kProxyStateWords = 4 };

namespace detail {

/// Queues an entry, with one lane. What the scope's lanes wrote before its barrier precedes the
/// entry.
LINKSPAN_COLD Outcome enqueue(const ProxyQueue queue, const uint32_t* abort, ProxyOp op,
                              uint64_t local, uint64_t remote, uint64_t bytes, uint64_t value) {
  Patience patience({queue.patience, abort});
  uint64_t ticket = load_relaxed(queue.tickets);
  for (;;) {
    // Both loads are issued before either is used, so that they cost one round trip to the host.
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

// A caller passes a copy of its Window. Out of line, because else each caller loads the fields of
// the queue on its way to mapped memory, too.
template <Scope S>
LINKSPAN_COLD Outcome queue_copy(const Window& window, ProxyOp op, const void* local,
                                 uint64_t remote, uint64_t bytes) {
  const uint64_t offset =
      reinterpret_cast<uint64_t>(local) - reinterpret_cast<uint64_t>(window.local);
  if (!within(remote, bytes, window.remote_bytes) || !within(offset, bytes, window.local_bytes))
    return Outcome::out_of_range;
  sync<S>();
  Outcome end = Outcome::ok;
  if (rank<S>() == 0) end = enqueue(window.proxy, window.abort, op, offset, remote, bytes, 0);
  return agree<S>(end);
}

/// Queues a write of a word of the pad. The host applies this lane's earlier entries first.
template <Scope S>
LINKSPAN_COLD Outcome queue_word(const Window& window, ProxyOp op, uint64_t pad_offset,
                                 uint64_t value) {
  Outcome end = Outcome::ok;
  if (rank<S>() == 0) end = enqueue(window.proxy, window.abort, op, 0, pad_offset, 8, value);
  return agree<S>(end);
}

/// Waits until everything that the lanes of the scope have queued is applied.
template <Scope S>
LINKSPAN_COLD Outcome drain_queue(const Window& window, Bound bound) {
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
