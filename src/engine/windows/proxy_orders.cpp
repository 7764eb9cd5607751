#include "engine/windows/proxy_orders.hpp"

#include <atomic>
#include <cstring>
#include <utility>

namespace linkspan::engine {
namespace {

using device::ProxyEntry;

constexpr std::uint64_t kTicketsAt = 128;  // after the abort flag, in a cache line of its own

}  // namespace

Result<ProxyOrders> ProxyOrders::create(const cuda::Device* device,
                                        const std::shared_ptr<cuda::DeferredDestroyer>& destroyer,
                                        std::uint32_t capacity, device::Window& window) {
  ProxyOrders made;
  made.device_ = device;
  made.capacity_ = capacity;
  const std::size_t queue_bytes = (std::size_t{capacity} + 1) * sizeof(ProxyEntry);
  unsigned char* entries = nullptr;  // as the window's kernels see them
  unsigned char* flags = nullptr;
  if (device != nullptr) {
    const auto scope = device->enter();
    if (!scope.ok()) return scope.status();
    auto queue = cuda::PinnedBuffer::create(*scope, queue_bytes);
    if (!queue.ok()) return queue.status();
    auto on_gpu = cuda::DeviceBuffer::create(*scope, 2 * kTicketsAt);
    if (!on_gpu.ok()) return on_gpu.status();
    auto stream = cuda::Stream::create(*scope);
    if (!stream.ok()) return stream.status();
    std::memset(queue->data(), 0, queue_bytes);
    if (Status status = stream->fill(*scope, on_gpu->address(), 0, 2 * kTicketsAt); !status.ok())
      return status;
    if (Status status = stream->synchronize(*scope); !status.ok()) return status;
    made.entries_ = reinterpret_cast<ProxyEntry*>(queue->data());
    entries = pointer<unsigned char>(queue->device_address());
    flags = pointer<unsigned char>(on_gpu->address());
    made.on_gpu_ = cuda::DeferredDestroyer::end_by(
        destroyer, std::unique_ptr<OnGpu>(
                       new OnGpu{*std::move(queue), *std::move(on_gpu), *std::move(stream)}));
  } else {
    made.host_.resize(capacity + 1 + 2 * kTicketsAt / sizeof(ProxyEntry));
    made.entries_ = made.host_.data();
    entries = reinterpret_cast<unsigned char*>(made.entries_);
    flags = entries + queue_bytes;
  }
  window.abort = reinterpret_cast<std::uint32_t*>(flags);
  if (capacity == 0) return made;
  window.proxy.entries = reinterpret_cast<ProxyEntry*>(entries);
  window.proxy.state =
      reinterpret_cast<std::uint64_t*>(entries + std::size_t{capacity} * sizeof(ProxyEntry));
  window.proxy.tickets = reinterpret_cast<std::uint64_t*>(flags + kTicketsAt);
  window.proxy.capacity = capacity;
  return made;
}

const ProxyEntry* ProxyOrders::front() const noexcept {
  if (capacity_ == 0 || taken_ >= begin_until_) return nullptr;
  const ProxyEntry* const next = &entries_[taken_ % capacity_];
  return device::detail::load_acquire(&next->number) == taken_ + 1 ? next : nullptr;
}

void ProxyOrders::publish(bool failed) const noexcept {
  if (capacity_ == 0) return;
  auto* const state = reinterpret_cast<std::uint64_t*>(entries_ + capacity_);
  device::detail::store_release(state + device::kProxyDone, done_);
  device::detail::store_release(state + device::kProxyTaken, taken_);
  device::detail::store_release(state + device::kProxyFailed, std::uint64_t{failed ? 1u : 0u});
}

void ProxyOrders::abort_waits() {
  if (on_gpu_ != nullptr) {
    const auto scope = device_->enter();  // of a lost context no kernel is left
    if (scope.ok()) (void)on_gpu_->stream.write_value(*scope, on_gpu_->flags.address(), 1);
  } else {
    std::atomic_ref(entries_[capacity_ + 1].number).store(1, std::memory_order_release);
  }
}

void ProxyOrders::retire() {
  if (begin_until_ != ~std::uint64_t{0}) return;
  begin_until_ = taken_ + capacity_;
  abort_waits();
}

}  // namespace linkspan::engine
