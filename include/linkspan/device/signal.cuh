// linkspan/device/signal.cuh - 64-bit counters that one side raises and the other waits for.
//
// MEMORY MODEL
//   signal_add()   release at system scope by one lane: a reader that sees the value sees what that
//                  lane, and before a barrier its block, did earlier. For a whole block:
//                  __syncthreads(), then signal_add() by one thread; put_signal() has both.
//   wait_signal()  acquire at system scope by one lane, then a barrier of the scope: all lanes see
//                  what came before the raise. With thread scope other lanes need their own
//                  barrier.
//   Counter        only grows, is never reset, and is compared with >=: a raise before the wait is
//                  not lost. Window::atomics says how many producers may raise it.
//   Covers         ordinary loads and stores and puts, by kernels and CPUs. A transfer of the host
//                  is covered if the proxy raised the signal after it.
//   Progress       the wait needs the raiser to run: two processes on one GPU take turns of
//                  milliseconds. The bound ends the wait at the latest.
#pragma once

#include "linkspan/device/proxy.cuh"

namespace linkspan::device {

/// Adds `n` to the peer's signal. Each lane calls it for itself.
LINKSPAN_DEVICE Outcome signal_add(const Window& window, uint32_t index, uint64_t n = 1) {
  if (index >= window.layout.signals) return Outcome::out_of_range;
  if (window.proxied())
    return detail::queue_word<Scope::thread>(Window(window), ProxyOp::add, uint64_t{index} * 8, n);
  detail::add_release(detail::word_at(window.remote_pad, uint64_t{index} * 8), n);
  return Outcome::ok;
}

/// Waits until our signal `index` is at least `at_least`. After timed_out or aborted nothing is
/// known of the data.
template <Scope S = Scope::thread>
LINKSPAN_DEVICE Outcome wait_signal(const Window& window, uint32_t index, uint64_t at_least,
                                    Bound bound) {
  if (index >= window.layout.signals) return Outcome::out_of_range;
  Outcome end = Outcome::ok;
  if (detail::rank<S>() == 0)
    end = detail::wait_at_least(detail::word_at(window.local_pad, uint64_t{index} * 8), at_least,
                                bound);
  return detail::agree<S>(end);
}

/// Returns our signal's present value; acquires at system scope.
LINKSPAN_DEVICE uint64_t read_signal(const Window& window, uint32_t index) {
  if (index >= window.layout.signals) return 0;
  return detail::load_acquire(detail::word_at(window.local_pad, uint64_t{index} * 8));
}

}  // namespace linkspan::device
