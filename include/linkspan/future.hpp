// linkspan/future.hpp - the results of calls that return at once: Engine::connect_async(),
// deregister_async() and invalidate_async(), Peer::lookup_async() and lookup_set_async().
//
//   Future<Peer> met = engine.connect_async("tcp:decode:4711", {.timeout = 5s});
//   Status added = queue.add(met, 7);             // CompletionQueue: when it is done
//   if (met.done()) auto peer = met.wait({});     // what connect() would have returned
//
// A call waits on a thread of the Engine, never on the caller's. The Engine has up to 8 threads for
// connects, 8 for lookups and 8 for deregistrations, so that a host that does not answer delays no
// lookup. Calls for one address, peer or region run one after the other.
// Errors: those of the waiting call, and four more. timed_out also: no thread was free before the
// call's timeout, which counts from the call; nothing was started. no_resource: 1024 calls of the
// kind are outstanding, or no thread can be started. canceled: cancel(), or the Engine was closed.
// system: no memory.
// Threads: any thread. An InterruptCheck of the caller is not polled.
// Invariants: a handle may be copied and may outlive the Engine; dropping it does not affect the
// call. The last one of a lookup keeps its regions imported.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "linkspan/status.hpp"
#include "linkspan/types.hpp"

namespace linkspan {

namespace engine {
class FutureState;
struct HandleAccess;
}  // namespace engine

/// What all futures share, whatever their result.
class LINKSPAN_API AnyFuture {
 public:
  /// Returns whether the result is final. Costs one load. True: no call.
  bool done() const noexcept;
  /// Ends the call `canceled` unless it is done; its thread returns within 0.1 s. A peer that was
  /// connected meanwhile is closed again. A region whose end was canceled may be deregistered
  /// again.
  void cancel() const;

 protected:
  AnyFuture() = default;
  explicit AnyFuture(std::shared_ptr<engine::FutureState> state) : state_(std::move(state)) {}
  /// Returns the final status. pending: `timeout` passed first. invalid_argument: no call.
  Status await(Duration timeout) const;
  /// Returns the result of a call that ended ok.
  const void* value() const noexcept;

 private:
  friend class CompletionQueue;

  std::shared_ptr<engine::FutureState> state_;  // also the CallQueue's until it is done
};

template <class T>
class Future : public AnyFuture {
 public:
  /// Result<T>, or Status if the call returns nothing more.
  using Outcome = std::conditional_t<std::is_void_v<T>, Status, Result<T>>;

  Future() = default;  ///< Refers to no call.

  /// Waits until the call is done, and returns what it returned, also repeatedly. pending:
  /// `timeout` passed first; the call continues.
  Outcome wait(Duration timeout) const {
    Status end = await(timeout);
    if constexpr (!std::is_void_v<T>)
      if (end.ok()) return *static_cast<const T*>(value());
    return end;
  }

 private:
  friend struct engine::HandleAccess;
  explicit Future(std::shared_ptr<engine::FutureState> state) : AnyFuture(std::move(state)) {}
};

}  // namespace linkspan
