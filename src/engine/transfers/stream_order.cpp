#include "engine/transfers/stream_order.hpp"

#include <atomic>
#include <functional>
#include <string>
#include <thread>

namespace linkspan::engine {
namespace {

constexpr std::size_t kBlockers = 16;    // of a device
constexpr std::size_t kCacheLine = 128;  // flags of different writers lie so far apart
// The values of CU_STREAM_LEGACY and CU_STREAM_PER_THREAD.
constexpr std::uintptr_t kLegacy = 1, kPerThread = 2;

Status refused_order(Code code, std::string what, Where at = {}) {
  return {code, Scope::request, std::move(what), at};
}

Status refuse_capture(const cuda::DeviceScope& scope, const UserStream& stream) {
  const Result<bool> captures = cuda::is_capturing(scope, stream.handle);
  if (!captures.ok()) return captures.status();
  if (!*captures) return {};
  return refused_order(Code::unsupported,
                       "the stream records a CUDA graph: Prepared::capture() makes a prepared "
                       "transfer a part of it; submit others before or after");
}

}  // namespace

/// A stream that waits for a flag in host memory, and an event after that wait.
struct StreamBlocker::BlockerParts {
  const cuda::Device& device;
  cuda::Stream stream;
  cuda::Event passed;
  std::uint64_t* flag;
  cuda::CUdeviceptr flag_device;
  std::uint64_t number = 0;  // of the last StreamBlocker
};

/// Threads: any thread.
class StreamBlockerPool : public std::enable_shared_from_this<StreamBlockerPool> {
 public:
  static Result<std::shared_ptr<StreamBlockerPool>> create(const cuda::Device& device) {
    const auto scope = device.enter();
    if (!scope.ok()) return scope.status();
    auto flags = cuda::PinnedBuffer::create(*scope, kBlockers * kCacheLine);
    if (!flags.ok()) return flags.status();
    // Shared by its StreamBlockers.
    std::shared_ptr<StreamBlockerPool> pool(new StreamBlockerPool(*std::move(flags)));
    const base::MutexLock lock(pool->mutex_);
    for (std::size_t i = 0; i < kBlockers; ++i) {
      auto stream = cuda::Stream::create(*scope);
      if (!stream.ok()) return stream.status();
      auto passed = cuda::Event::create(*scope);
      if (!passed.ok()) return passed.status();
      auto* flag = reinterpret_cast<std::uint64_t*>(pool->flags_.data() + i * kCacheLine);
      *flag = 0;
      pool->idle_.push_back(std::unique_ptr<StreamBlocker::BlockerParts>(
          new StreamBlocker::BlockerParts{device, *std::move(stream), *std::move(passed), flag,
                                          pool->flags_.device_address() + i * kCacheLine}));
    }
    return pool;
  }

  Result<std::shared_ptr<StreamBlocker>> acquire() LINKSPAN_EXCLUDES(mutex_) {
    const base::MutexLock lock(mutex_);
    if (idle_.empty()) return Status::no_resource();
    auto parts = std::move(idle_.back());
    idle_.pop_back();
    ++parts->number;
    return std::shared_ptr<StreamBlocker>(new StreamBlocker(shared_from_this(), std::move(parts)));
  }
  void release(std::unique_ptr<StreamBlocker::BlockerParts> parts) LINKSPAN_EXCLUDES(mutex_) {
    const base::MutexLock lock(mutex_);
    idle_.push_back(std::move(parts));
  }

 private:
  explicit StreamBlockerPool(cuda::PinnedBuffer flags) : flags_(std::move(flags)) {}

  cuda::PinnedBuffer flags_;
  base::Mutex mutex_;
  std::vector<std::unique_ptr<StreamBlocker::BlockerParts>> idle_ LINKSPAN_GUARDED_BY(mutex_);
};

StreamBlocker::StreamBlocker(std::shared_ptr<StreamBlockerPool> pool,
                             std::unique_ptr<BlockerParts> parts)
    : pool_(std::move(pool)), parts_(std::move(parts)) {}

StreamBlocker::~StreamBlocker() {
  open();
  pool_->release(std::move(parts_));
}

Status StreamBlocker::arm(const UserStream& stream) {
  const auto scope = parts_->device.enter();
  if (!scope.ok()) return scope.status();
  Status status = parts_->stream.wait_value(*scope, parts_->flag_device, parts_->number);
  if (status.ok()) status = parts_->passed.record(*scope, parts_->stream.get());
  if (status.ok()) status = cuda::make_wait(*scope, stream.handle, parts_->passed);
  return status;
}

void StreamBlocker::open() noexcept {
  std::atomic_ref(*parts_->flag).store(parts_->number, std::memory_order_release);
}

StreamOrders::StreamOrders(cuda::Topology* topology) : topology_(topology) {}
StreamOrders::~StreamOrders() = default;

Result<UserStream> StreamOrders::find(const StreamOrder& order, const GpuUuid& gpu) const {
  using enum StreamOrder::Kind;
  if (order.kind == none) return UserStream{};
  if (topology_ == nullptr)
    return refused_order(Code::unsupported, "a stream was named, and this process has no GPU");
  const auto raw = reinterpret_cast<std::uintptr_t>(order.handle);
  if (order.kind == created && raw == 0)
    return refused_order(Code::invalid_argument,
                         "stream handle 0 of the kind `created`: say legacy_default or "
                         "per_thread_default, which of them 0 means is the compiler's choice");
  const GpuUuid& wanted = order.gpu != GpuUuid{} ? order.gpu : gpu;
  if (wanted == GpuUuid{})
    return refused_order(Code::invalid_argument,
                         "no memory of a GPU is here that could tell whose stream it is: set "
                         "StreamOrder::gpu");
  auto device = topology_->open(wanted);
  if (!device.ok()) return device.status();
  const std::uintptr_t handle = order.kind == legacy_default       ? kLegacy
                                : order.kind == per_thread_default ? kPerThread
                                                                   : raw;
  std::uint64_t key = handle;
  if (handle == kPerThread) key = std::hash<std::thread::id>{}(std::this_thread::get_id()) | 1u;
  key ^= reinterpret_cast<std::uintptr_t>(*device);
  return UserStream{
      .device = *device, .handle = reinterpret_cast<cuda::CUstream>(handle), .key = key};
}

Result<ResolvedStreams> StreamOrders::resolve(const StreamOrder& after, const StreamOrder& release,
                                              const GpuUuid& gpu) {
  using enum StreamOrder::Kind;
  if (after.kind == none && release.kind == none) return ResolvedStreams{};
  auto before = find(after, gpu);
  if (!before.ok()) return before.status();
  auto behind = find(release, gpu);
  if (!behind.ok()) return behind.status();
  ResolvedStreams streams;
  streams.after = *before;
  streams.release = *behind;
  streams.deferral = topology_->destroyer()->defer();
  const cuda::Device* device = before->device != nullptr ? before->device : behind->device;
  auto scope = device->enter();
  if (!scope.ok()) return scope.status();
  streams.scope.emplace(*std::move(scope));
  if (before->device != nullptr) {
    if (Status status = refuse_capture(*streams.scope, *before); !status.ok()) return status;
  }
  if (behind->device != nullptr) {
    const bool same = behind->device == before->device && behind->handle == before->handle;
    const auto there = behind->device->enter();
    if (!there.ok()) return there.status();
    if (Status status = same ? Status() : refuse_capture(*there, *behind); !status.ok())
      return status;
    const auto pool = blocker_pool(*behind->device);
    if (!pool.ok()) return pool.status();
    auto blocker = (*pool)->acquire();
    if (!blocker.ok()) return blocker.status();
    streams.blocker = *std::move(blocker);
  }
  if (before->device != nullptr) {
    auto mark = before->device->events().acquire();
    if (!mark.ok()) return mark.status();
    if (Status status = (*mark)->record(*streams.scope, before->handle); !status.ok())
      return status;
    streams.mark.emplace(*std::move(mark));
  }
  return streams;
}

void StreamOrders::make_ready() {
  if (topology_ == nullptr) return;
  for (const cuda::Device* device : topology_->all_active()) (void)blocker_pool(*device);
}

Result<std::shared_ptr<StreamBlockerPool>> StreamOrders::blocker_pool(const cuda::Device& device) {
  {
    const base::MutexLock lock(mutex_);
    if (const auto made = blocker_pools_.find(&device); made != blocker_pools_.end())
      return made->second;
  }
  // Without the lock: creation may wait for work on that GPU, and threads for other GPUs must not.
  auto fresh = StreamBlockerPool::create(device);
  if (!fresh.ok()) return fresh.status();
  const base::MutexLock lock(mutex_);
  return blocker_pools_.try_emplace(&device, *std::move(fresh)).first->second;
}

void TransferStreams::adopt(ResolvedStreams& resolved) {
  after = resolved.after;
  mark = std::move(resolved.mark);
  deferral = std::move(resolved.deferral);
  wants_release = resolved.release.device != nullptr;
}

Result<bool> TransferStreams::passed() const {
  if (!mark) return true;
  const auto scope = after.device->enter();
  if (!scope.ok()) return scope.status();
  return (*mark)->done(*scope);
}

StreamRelease TransferStreams::release(std::shared_ptr<StreamBlocker> by, bool quiet) {
  wants_release = false;  // a later event would be too late
  StreamRelease release{.event = std::move(release_event), .blocks = false};
  if (release.event || quiet) return release;
  blocker = std::move(by);
  release.blocks = true;
  return release;
}

void TransferStreams::end() {
  mark.reset();
  if (const auto blocks = std::exchange(blocker, nullptr)) blocks->open();
  deferral = {};
}

}  // namespace linkspan::engine
