#include "copy/staging.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/no_memory.hpp"
#include "base/numa.hpp"
#include "copy/blocks_kernel.hpp"
#include "copy/chooser.hpp"
#include "copy/gpu_copier.hpp"

namespace linkspan::copy {
namespace {

using std::chrono::milliseconds;

constexpr Duration kSpin = milliseconds(2);  // 24 buffers of 2 MiB take 0.9 ms of one link

// Layout of a buffer: a line for each flag, the list, the bytes.
constexpr std::size_t kLine = 128, kAborted = kLine, kList = 2 * kLine, kListEntries = 328;
constexpr std::size_t kBytes = kList + kListEntries * sizeof(Piece);
constexpr std::uint64_t kCongruent = 16;  // alignment for which the kernel moves 16 bytes a lane
static_assert(kBytes % kCongruent == 0);
static_assert(kBytes + Staging::kRuns * (kCongruent - 1) <= Staging::kOverheadBytes);
static_assert(Staging::kRuns + Staging::kMaxBufferBytes / GpuCopier::kListBytes < kListEntries);
static_assert(Staging::kBuffersPerGpu * (Staging::kRuns + 1) < 1000);

}  // namespace

std::size_t Staging::buffer_bytes(std::size_t pinned) noexcept {
  constexpr std::size_t kPage = 4096;
  const std::size_t each = pinned / kBuffers / kPage * kPage;
  return std::clamp(each - std::min(each, kOverheadBytes), kPage, kMaxBytes);
}

Staging::Staging(std::size_t buffer_bytes, StagingStreams& streams) noexcept
    : buffer_bytes_(buffer_bytes), streams_(streams) {
  for (unsigned i = 0; i < kBuffers; ++i) buffers_[i].index_ = i;
}

Staging::~Staging() {
  for (StagingBuffer& buffer : buffers_)
    if (buffer.memory_) leaked_.push_back(*std::exchange(buffer.memory_, std::nullopt));
  streams_.free(std::move(leaked_));
}

bool StagingBuffer::has_completed() const noexcept {
  auto& flag = *reinterpret_cast<std::uint64_t*>(memory_->data());
  return std::atomic_ref(flag).load(std::memory_order_acquire) == number_;
}

std::byte* StagingBuffer::at(std::size_t run) const {
  const std::uint64_t address = to_gpu_ ? runs_[run].from : runs_[run].to;
  return memory_->data() + (address - memory_->device_address());
}

Result<StagingBuffer*> Staging::acquire(const BufferRequest& chunk) {
  StagingBuffer& buffer =
      *std::ranges::find(buffers_, StagingBufferState::free, &StagingBuffer::state_);
  if (!buffer.memory_) {
    const auto scope = chunk.device->enter();
    if (!scope.ok()) return scope.status();
    if (Status status = pin(buffer, *chunk.device, *scope); !status.ok()) return status;
  }
  buffer.device_ = chunk.device;
  buffer.to_gpu_ = chunk.to_gpu;
  buffer.ctas_ = chunk.ctas;
  buffer.status_ = {};
  buffer.runs_.clear();
  std::uint64_t at = buffer.memory_->device_address() + kBytes;
  for (const StagedRun& run : chunk.runs) {
    at += (run.gpu - at) % kCongruent;
    buffer.runs_.push_back({.to = chunk.to_gpu ? run.gpu : at,
                            .from = chunk.to_gpu ? at : run.gpu,
                            .bytes = run.bytes});
    at += run.bytes;
  }
  buffer.state_ = StagingBufferState::acquired;
  ++busy_;
  return &buffer;
}

Status Staging::submit(StagingBuffer& buffer) {
  SubmittedWork work;
  ++buffer.number_;  // first: the flag has the number of the chunk before
  buffer.status_ = base::or_no_memory([&] { return start(buffer, work); });
  if (work.entries == 0) {
    Status status = std::exchange(buffer.status_, {});
    release(buffer);
    return status;
  }
  buffer.begun_ = base::Clock::steady().now();
  // Without the flag only the stream shows the end.
  buffer.next_query_ = work.has_flag ? buffer.begun_ + kOverdue : buffer.begun_;
  buffer.state_ = StagingBufferState::submitted;
  return {};
}

/// Submits the runs and the flag write, and counts them in `work` also where it fails or throws.
/// Many small runs go by the kernel, which reads or writes the buffer over PCIe: a copy takes
/// 2.4 us, 30 times what 4 KiB take of the link. Few or large ones are copies, which leave the SMs
/// to the user. The rule is that of pinned memory, so its chooser decides.
Status Staging::start(StagingBuffer& buffer, SubmittedWork& work) {
  const auto scope = buffer.device_->enter();
  if (!scope.ok()) return scope.status();
  const auto acquired = acquire_stream(*buffer.device_);
  if (!acquired.ok()) return acquired.status();
  StagingStream& stream = *(buffer.stream_ = *acquired);
  std::uint64_t bytes = 0;
  for (const Piece& run : buffer.runs_) bytes += run.bytes;
  const cuda::CUdeviceptr flag = buffer.memory_->device_address();
  Status status;
  if (choose_gpu({.pieces = buffer.runs_.size(),
                  .bytes = bytes,
                  .link = Link::host,
                  .kernel_available = stream.zero.has_value() && buffer.ctas_ != 0}) ==
      Method::sm_kernel) {
    auto* const list = reinterpret_cast<Piece*>(buffer.memory_->data() + kList);
    status = launch_blocks(*scope, stream.cuda_stream, *stream.device, buffer.ctas_,
                           {.entries = {list, kListEntries},
                            .address = flag + kList,
                            .abort_flag = stream.zero->address(),
                            .aborted = flag + kAborted},
                           buffer.runs_, bytes);
    if (status.ok()) ++work.entries;
  } else {
    for (const Piece& run : buffer.runs_) {
      status = stream.cuda_stream.copy(*scope, run.to, run.from, run.bytes);
      if (!status.ok()) break;
      ++work.entries;
    }
  }
  if (work.entries == 0) return status;
  const Status written = stream.cuda_stream.write_value(*scope, flag, buffer.number_);
  work.has_flag = written.ok();
  return status.ok() ? written : status;
}

StagingBuffer* Staging::next_done() {
  if (idle()) return nullptr;
  const base::Time now = base::Clock::steady().now();
  for (StagingBuffer& buffer : buffers_) {
    if (buffer.state_ != StagingBufferState::submitted ||
        (!buffer.has_completed() && (now < buffer.next_query_ || !query_stream(buffer, now))))
      continue;
    buffer.state_ = StagingBufferState::done;
    release_stream(buffer);
    return &buffer;
  }
  return nullptr;
}

void Staging::release(StagingBuffer& buffer) noexcept {
  if (buffer.stream_ != nullptr) release_stream(buffer);
  buffer.state_ = StagingBufferState::free;
  buffer.device_ = nullptr;
  --busy_;
}

/// Queries the stream of a late buffer. Returns true if the GPU is done with it.
bool Staging::query_stream(StagingBuffer& buffer, base::Time now) {
  buffer.next_query_ = now + kQueryInterval;
  const Status answer = base::or_no_memory([&]() -> Status {
    const auto scope = buffer.stream_->device->enter();
    return scope.ok() ? buffer.stream_->cuda_stream.query(*scope) : scope.status();
  });
  if (answer.ok()) return true;
  // Pending, or neither driver nor memory for an answer: the buffer is not known to be quiet.
  if (answer.scope() != Scope::process) return false;
  buffer.status_ = answer;
  leaked_.push_back(*std::exchange(buffer.memory_, std::nullopt));
  for (StagingBuffer& other : buffers_)
    if (other.stream_ == buffer.stream_) other.next_query_ = now;
  return true;
}

bool Staging::room(const cuda::Device& device) const noexcept {
  const auto its = std::ranges::count_if(
      buffers_, [&device](const StagingBuffer& buffer) { return buffer.device_ == &device; });
  return busy_ < kBuffers && its < kBuffersPerGpu;
}

bool Staging::ready() const noexcept {
  const base::Time now = base::Clock::steady().now();
  return std::ranges::any_of(buffers_, [now](const StagingBuffer& buffer) {
    return buffer.state_ == StagingBufferState::submitted &&
           (buffer.has_completed() || now >= buffer.next_query_);
  });
}

Duration Staging::patience() const noexcept {
  base::Time oldest = base::Time::max();
  for (const StagingBuffer& buffer : buffers_)
    if (buffer.state_ == StagingBufferState::submitted) oldest = std::min(oldest, buffer.begun_);
  const Duration since = base::Clock::steady().now() - oldest;
  return since < kSpin ? Duration::zero() : std::min<Duration>(since / 16, milliseconds(1));
}

/// Returns the stream of a buffer that this GPU works on, or acquires one from the pool.
Result<StagingStream*> Staging::acquire_stream(const cuda::Device& device) {
  for (const StagingBuffer& buffer : buffers_)
    if (buffer.stream_ != nullptr && buffer.device_ == &device) return buffer.stream_;
  return streams_.acquire(device);
}

/// Detaches the buffer from its stream and releases the stream after its last buffer.
void Staging::release_stream(StagingBuffer& buffer) noexcept {
  StagingStream* const stream = std::exchange(buffer.stream_, nullptr);
  if (std::ranges::find(buffers_, stream, &StagingBuffer::stream_) == buffers_.end())
    streams_.release(*stream);
}

Result<std::unique_ptr<StagingStream>> StagingStream::create(const cuda::Device& device) {
  const auto scope = device.enter();
  if (!scope.ok()) return scope.status();
  auto stream = cuda::Stream::create(*scope);
  if (!stream.ok()) return stream.status();
  std::optional<cuda::DeviceBuffer> zero;
  if (device.copy_blocks() != nullptr) {
    auto made = cuda::DeviceBuffer::create(*scope, kLine);
    if (!made.ok()) return made.status();
    const Status filled = stream->fill(*scope, made->address(), 0, made->bytes());
    if (!filled.ok()) return filled;  // the fill precedes any kernel in this stream
    zero.emplace(*std::move(made));
  }
  return std::unique_ptr<StagingStream>(new StagingStream{
      .device = &device, .cuda_stream = *std::move(stream), .zero = std::move(zero)});
}

Status StagingStreams::reserve(const cuda::Device& device, unsigned streams) {
  const base::MutexLock making(making_);
  const auto wanted = [&] {
    const base::MutexLock lock(mutex_);
    return std::ranges::count(all_, &device, [](const PooledStream& e) {
             return e.stream->device;
           }) < static_cast<std::ptrdiff_t>(streams);
  };
  while (wanted()) {
    auto made = add(device, false);
    if (!made.ok()) return made.status();
  }
  return {};
}

Status StagingStreams::reserve(const GpuUuid& gpu, unsigned streams) {
  auto device = topology_->activate(gpu);
  return device.ok() ? reserve(**device, streams) : device.status();
}

Result<StagingStream*> StagingStreams::acquire(const cuda::Device& device) {
  {
    const base::MutexLock lock(mutex_);
    for (PooledStream& entry : all_) {
      if (entry.in_use || entry.stream->device != &device) continue;
      entry.in_use = true;
      return entry.stream.get();
    }
  }
  return add(device, true);
}

Result<StagingStream*> StagingStreams::add(const cuda::Device& device, bool in_use) {
  auto made = StagingStream::create(device);
  if (!made.ok()) return made.status();
  const base::MutexLock lock(mutex_);
  return all_.emplace_back(PooledStream{.stream = *std::move(made), .in_use = in_use}).stream.get();
}

void StagingStreams::release(const StagingStream& stream) noexcept {
  const base::MutexLock lock(mutex_);
  for (PooledStream& entry : all_)
    if (entry.stream.get() == &stream) entry.in_use = false;
}

void StagingStreams::free(std::vector<cuda::PinnedBuffer> memory) noexcept {
  if (topology_ == nullptr || memory.empty()) return;
  (void)base::or_no_memory([&] {  // without memory it is freed here
    topology_->destroyer()->end(
        std::make_unique<std::vector<cuda::PinnedBuffer>>(std::move(memory)));
    return Status();
  });
}

/// Pins the buffer for all GPUs, at one address (fact: Identity.MemoryIsPinnedOnceAndForAllGpus).
Status Staging::pin(StagingBuffer& buffer, const cuda::Device& device,
                    const cuda::DeviceScope& scope) {
  leaked_.reserve(leaked_.size() + kBuffers);  // so that query_stream() allocates nothing
  const base::PreferredNode near(base::numa_node_of(device.info().bus_id));
  auto memory = cuda::PinnedBuffer::create(scope, buffer_bytes_ + kOverheadBytes);
  if (!memory.ok()) return memory.status();
  buffer.memory_.emplace(*std::move(memory));
  *reinterpret_cast<std::uint64_t*>(buffer.memory_->data()) = buffer.number_ = 0;
  return {};
}

}  // namespace linkspan::copy
