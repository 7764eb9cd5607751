// engine/windows/proxy_orders.hpp - the orders of a window's kernels, and the flag that ends their
// waits.
//
// On the path of a byte: kernels write orders into a queue in mapped host memory, as
// device/proxy.cuh defines; the window's proxy reads them here and publishes its progress.
// Threads: under the WindowSet's mutex; the kernels write beside it.
// Invariants: orders are read in the order of their tickets, each once.
#pragma once

#include <memory>
#include <vector>

#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "cuda/topology.hpp"
#include "linkspan/device/proxy.cuh"

namespace linkspan::engine {

/// Returns a pointer to memory whose address is a number.
template <class T>
T* pointer(std::uint64_t address) {
  return reinterpret_cast<T*>(address);  // NOLINT(performance-no-int-to-ptr)
}

class ProxyOrders {
 public:
  /// Makes the memory and sets the abort flag of `window`, and its proxy unless `capacity` is 0.
  /// Without a device it is for CPU code; `destroyer` may be null then.
  static Result<ProxyOrders> create(const cuda::Device* device,
                                    const std::shared_ptr<cuda::DeferredDestroyer>& destroyer,
                                    std::uint32_t capacity, device::Window& window);

  std::uint64_t taken() const noexcept { return taken_; }
  std::uint64_t done() const noexcept { return done_; }
  /// Returns the next order, or null if there is none that would be begun.
  const device::ProxyEntry* front() const noexcept;
  void pop() noexcept { ++taken_; }
  void count_done() noexcept { ++done_; }
  /// Writes the state that kernels read.
  void publish(bool failed) const noexcept;
  void abort_waits();
  /// Ends waits of kernels and lets at most one more queue of orders begin.
  void retire();

 private:
  /// Memory that kernels and the proxy share. Destroyed by the DeferredDestroyer.
  struct OnGpu {
    cuda::PinnedBuffer queue;
    cuda::DeviceBuffer flags;  // the abort flag, then the tickets
    cuda::Stream stream;       // writes the abort flag
  };

  const cuda::Device* device_ = nullptr;
  std::shared_ptr<OnGpu> on_gpu_;          // destroyed by the DeferredDestroyer; null: host memory
  std::vector<device::ProxyEntry> host_;   // the queue, its state, and the flags
  device::ProxyEntry* entries_ = nullptr;  // address for this CPU; its state follows the queue
  std::uint64_t capacity_ = 0;             // 0: kernels order nothing
  std::uint64_t taken_ = 0, done_ = 0;
  std::uint64_t begin_until_ = ~std::uint64_t{0};  // first order that is not begun any more
};

}  // namespace linkspan::engine
