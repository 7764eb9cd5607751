// linkspan/window.hpp - a peer's memory for kernels: they write there and raise signals themselves.
//
//   auto window = *peer.window(mine, theirs, my_pad, their_pad);
//   kernel<<<...>>>(window.device(), ...);   // #include "linkspan/device/put.cuh" and friends
//
// A pad is ordinary registered memory of PadLayout::bytes() bytes, 16-byte aligned and zero before
// the other side may write to it: the counters that kernels (or CPUs) of its owner wait for. Both
// sides publish a region and a pad, and each makes a window onto the other's. A pad serves one
// window at a time on each side.
//
// Threads: any thread. A handle may be copied; while one lives, what the kernels use stays mapped.
// A kernel that still uses a window when its last handle goes has its waits aborted. What kernels
// had ordered by then (a put or a signal through a proxy that answered ok) is still done, as what
// they stored themselves is: Engine::close() waits for it. After cancel() it is not.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "linkspan/device/window.cuh"
#include "linkspan/status.hpp"
#include "linkspan/types.hpp"

namespace linkspan {

namespace engine {
class EngineImpl;
class WindowState;
}  // namespace engine

struct WindowOptions {
  device::PadLayout layout{};  ///< The same on both sides.
  /// Whose kernels use it. Zero: the GPU of the local region, else of the local pad; where both are
  /// host memory, none: device() is then for code of this CPU.
  GpuUuid gpu{};
  bool force_proxy = false;  ///< Even where the peer's memory is mapped; for tests.
  /// Of the proxy: how many orders may wait, and how long a kernel waits for room.
  std::uint32_t queue = 1024;
  Duration patience = std::chrono::seconds(1);
};

class LINKSPAN_API Window {  // NOLINT(cppcoreguidelines-special-member-functions)
 public:
  Window() = default;  ///< None.
  Window(const Window&) = default;
  Window(Window&&) noexcept = default;
  /// By value, for both kinds. The old one lets go of the regions before the Engine.
  Window& operator=(Window other) noexcept {
    impl_.swap(other.impl_);
    state_.swap(other.state_);
    return *this;
  }
  ~Window() = default;
  bool valid() const noexcept { return state_ != nullptr; }

  /// For kernels of the window's GPU, by value.
  device::Window device() const;
  /// "mapped", or "proxy: " and why it is not mapped.
  std::string path() const;
  /// What ended it: the peer's death, or the first transfer of the proxy that failed. Waits of
  /// kernels then end `aborted`, what they ask of the proxy `failed`.
  Status failure() const;
  /// Ends the waits of all kernels that use it, for good: failure() is `canceled`. What the proxy
  /// was asked for and has not begun is dropped.
  Status cancel() const;

  // The same counters from the CPU.
  /// Adds `n` to the peer's signal, behind what this thread did to memory that both map. Where this
  /// CPU does not map the peer's pad (that of a GPU), the Engine writes the sum: no kernel may
  /// raise the same signal then. It is there when this returns.
  Status raise(std::uint32_t index, std::uint64_t n = 1,
               Duration timeout = std::chrono::seconds(10)) const;
  /// Until our signal is at least that: its value then. What was put before it is visible here, and
  /// to kernels that start after. timed_out, disconnected, canceled. unsupported: our pad is not in
  /// host memory. A GPU's store wakes nobody: it looks for 50 us, then every 50 us.
  Result<std::uint64_t> wait_signal(std::uint32_t index, std::uint64_t at_least,
                                    Duration timeout) const;

 private:
  friend class engine::EngineImpl;
  Window(std::shared_ptr<engine::EngineImpl> core, std::shared_ptr<engine::WindowState> state);

  std::shared_ptr<engine::EngineImpl> impl_;    // also the Engine's and other handles'
  std::shared_ptr<engine::WindowState> state_;  // also other handles'
};

}  // namespace linkspan
