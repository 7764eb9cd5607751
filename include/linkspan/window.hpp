// linkspan/window.hpp - lets kernels write into a peer's memory and raise signals there.
//
//   auto window = peer.window({.local = mine, .remote = theirs, .local_pad = my_pad,
//                              .remote_pad = their_pad}).value();
//   kernel<<<...>>>(window.device(), ...);   // #include "linkspan/device/put.cuh" and friends
//
// A pad (signal pad) contains the counters that kernels or CPUs of its owner wait for. It is
// registered memory of PadLayout::bytes() bytes, 16-byte aligned, and zero before the other side
// may write to it. Both sides publish a region and a pad, and each makes a window onto the other's.
// A pad serves one window at a time on each side, and may be read and written by the peer.
//
// Path of a byte: a kernel's store to mapped peer memory, or kernel -> proxy queue -> this Engine
// -> any transport.
// Threads: any thread.
// Invariants: a handle may be copied; the memory that kernels use stays mapped while a handle
// lives. Dropping the last handle aborts the waits of kernels that still use the window. Code on
// this CPU must leave its waits before that; cancel() ends them. Deregistering the local region or
// pad ends the window. Puts and signals that the proxy had accepted are still executed, before
// those of later windows onto that peer, and Engine::close() waits for them; cancel() drops those
// not begun.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "linkspan/device/window.cuh"
#include "linkspan/region.hpp"
#include "linkspan/status.hpp"
#include "linkspan/types.hpp"

namespace linkspan {

namespace engine {
class EngineImpl;
struct HandleAccess;
class WindowState;
}  // namespace engine

struct WindowOptions {
  Region local{};              ///< The proxy sends from it and reads into it.
  RemoteRegion remote{};       ///< Kernels write into it.
  Region local_pad{};          ///< The peer raises signals and sends mailbox messages here.
  RemoteRegion remote_pad{};   ///< Kernels raise signals here.
  device::PadLayout layout{};  ///< Must be equal on both sides.
  /// Selects the GPU whose kernels use the window. Zero: the GPU of the local region, else that of
  /// the local pad. If both are host memory, device() is for code on this CPU.
  GpuUuid gpu{};
  bool force_proxy = false;  ///< Uses the proxy even if the peer's memory is mapped; for tests.
  /// Sets how many operations the proxy queue has room for, and how long a kernel waits for room.
  std::uint32_t queue = 1024;
  Duration patience = std::chrono::seconds(1);
};

class LINKSPAN_API Window {  // NOLINT(cppcoreguidelines-special-member-functions)
 public:
  Window() = default;  ///< Refers to no window.
  Window(const Window&) = default;
  Window(Window&&) noexcept = default;
  /// Copies or moves, by value. The old value releases the regions before the Engine.
  Window& operator=(Window other) noexcept {
    impl_.swap(other.impl_);
    state_.swap(other.state_);
    return *this;
  }
  ~Window() = default;
  bool valid() const noexcept { return state_ != nullptr; }

  /// Returns the handle that kernels of the window's GPU take by value.
  device::Window device() const;
  /// Returns "mapped", or "proxy: " and why the memory is not mapped.
  std::string path() const;
  /// Returns why the window ended, else ok: the peer ended, a transfer of the proxy failed, or
  /// cancel(). Kernels' waits then return `aborted`, their proxy operations `failed`.
  Status failure() const;
  /// Ends the waits of all kernels that use the window, permanently: failure() is `canceled`. Drops
  /// the proxy operations that have not begun.
  Status cancel() const;

  // The same counters from the CPU.
  /// Adds `n` to the peer's signal, ordered after this thread's stores to memory that both map. The
  /// sum is written when this returns. If this CPU does not map the peer's pad (a GPU's), the
  /// Engine writes the sum; no kernel may raise the same signal then.
  Status raise(std::uint32_t index, std::uint64_t n = 1,
               Duration timeout = std::chrono::seconds(10)) const;
  /// Waits until the local signal is at least `at_least`, and returns its value. Data put before
  /// that signal is then visible to this thread and to kernels that start later. Polls without
  /// pause for 50 us, then every 50 us, because a GPU's store cannot wake a thread. timed_out,
  /// disconnected, canceled. unsupported: the local pad is not in host memory.
  Result<std::uint64_t> wait_signal(std::uint32_t index, std::uint64_t at_least,
                                    Duration timeout) const;

 private:
  friend struct engine::HandleAccess;
  Window(std::shared_ptr<engine::EngineImpl> core, std::shared_ptr<engine::WindowState> state);

  std::shared_ptr<engine::EngineImpl> impl_;    // also the Engine's and other handles'
  std::shared_ptr<engine::WindowState> state_;  // also other handles'
};

}  // namespace linkspan
