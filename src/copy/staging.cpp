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

constexpr Duration kSpin = milliseconds(2);  // 24 slots of 2 MiB take 0.9 ms of one link

// A slot: its words on a line each, the list, the bytes.
constexpr std::size_t kLine = 128, kAborted = kLine, kList = 2 * kLine, kListEntries = 328;
constexpr std::size_t kBytes = kList + kListEntries * sizeof(Piece);
constexpr std::uint64_t kCongruent = 16;  // what the kernel moves 16 bytes a lane for
static_assert(kBytes % kCongruent == 0);
static_assert(kBytes + Staging::kRuns * (kCongruent - 1) <= Staging::kBeside);
static_assert(Staging::kRuns + Staging::kMaxSlot / GpuCopier::kListBytes < kListEntries);
static_assert(Staging::kSlotsOfAGpu * (Staging::kRuns + 1) < 1000);

}  // namespace

std::size_t Staging::slot_bytes(std::size_t pinned) noexcept {
  constexpr std::size_t kPage = 4096;
  const std::size_t each = pinned / kSlots / kPage * kPage;
  return std::clamp(each - std::min(each, kBeside), kPage, kMaxBytes);
}

Staging::Staging(std::size_t slot_bytes, StagingStreams& lanes) noexcept
    : slot_bytes_(slot_bytes), lanes_(lanes) {
  for (unsigned i = 0; i < kSlots; ++i) slots_[i].index_ = i;
}

Staging::~Staging() {
  for (Slot& slot : slots_)
    if (slot.memory_) lost_.push_back(*std::exchange(slot.memory_, std::nullopt));
  lanes_.free(std::move(lost_));
}

bool Staging::Slot::told() const noexcept {
  auto& word = *reinterpret_cast<std::uint64_t*>(memory_->data());
  return std::atomic_ref(word).load(std::memory_order_acquire) == number_;
}

std::byte* Staging::Slot::at(std::size_t run) const {
  const std::uint64_t address = to_gpu_ ? runs_[run].from : runs_[run].to;
  return memory_->data() + (address - memory_->device_address());
}

Result<Staging::Slot*> Staging::take(const Chunk& chunk) {
  const auto scope = chunk.device->enter();
  if (!scope.ok()) return scope.status();
  Slot& slot = *std::ranges::find(slots_, State::free, &Slot::state_);
  if (!slot.memory_)
    if (Status status = pin(slot, *chunk.device, *scope); !status.ok()) return status;
  slot.device_ = chunk.device;
  slot.to_gpu_ = chunk.to_gpu;
  slot.ctas_ = chunk.ctas;
  slot.status_ = {};
  slot.runs_.clear();
  std::uint64_t at = slot.memory_->device_address() + kBytes;
  for (const Run& run : chunk.runs) {
    at += (run.gpu - at) % kCongruent;
    slot.runs_.push_back({.to = chunk.to_gpu ? run.gpu : at,
                          .from = chunk.to_gpu ? at : run.gpu,
                          .bytes = run.bytes});
    at += run.bytes;
  }
  slot.state_ = State::taken;
  ++busy_;
  return &slot;
}

Status Staging::submit(Slot& slot) {
  const auto scope = slot.device_->enter();
  auto lane = scope.ok() ? lane_of(*slot.device_) : scope.status();
  if (lane.ok()) slot.lane_ = *lane;
  if (!lane.ok() || start(slot, *scope) == 0) {
    Status status = lane.ok() ? std::exchange(slot.status_, {}) : lane.status();
    release(slot);
    return status;
  }
  slot.begun_ = base::Clock::steady().now();
  const cuda::CUdeviceptr word = slot.memory_->device_address();
  const Status written = slot.lane_->stream.write_value(*scope, word, ++slot.number_);
  if (slot.status_.ok()) slot.status_ = written;
  slot.ask_ = written.ok() ? slot.begun_ + kOverdue : slot.begun_;
  slot.state_ = State::submitted;
  return {};
}

/// Runs that lie scattered on the GPU go by the kernel, which reads or writes the slot over PCIe:
/// copies take 2.4 us each, 30 times what 4 KiB take of the link. Few, or large ones, are copies:
/// the GPU's SMs are the user's then. The same rule as for pinned memory, hence its chooser.
unsigned Staging::start(Slot& slot, const cuda::DeviceScope& scope) {
  const Lane& lane = *slot.lane_;
  std::uint64_t bytes = 0;
  for (const Piece& run : slot.runs_) bytes += run.bytes;
  if (choose_gpu({.pieces = slot.runs_.size(),
                  .bytes = bytes,
                  .link = Link::host,
                  .kernel_available = lane.zero.has_value() && slot.ctas_ != 0}) ==
      Method::sm_kernel) {
    auto* const list = reinterpret_cast<Piece*>(slot.memory_->data() + kList);
    const cuda::CUdeviceptr device = slot.memory_->device_address();
    slot.status_ = launch_blocks(scope, lane.stream, *lane.device, slot.ctas_,
                                 {.entries = {list, kListEntries},
                                  .address = device + kList,
                                  .abort_word = lane.zero->address(),
                                  .aborted = device + kAborted},
                                 slot.runs_, bytes);
    return slot.status_.ok() ? 1 : 0;
  }
  unsigned queued = 0;
  for (const Piece& run : slot.runs_) {
    slot.status_ = lane.stream.copy(scope, run.to, run.from, run.bytes);
    if (!slot.status_.ok()) break;
    ++queued;
  }
  return queued;
}

Staging::Slot* Staging::next_done() {
  if (idle()) return nullptr;
  const base::Time now = base::Clock::steady().now();
  for (Slot& slot : slots_) {
    if (slot.state_ != State::submitted ||
        (!slot.told() && (now < slot.ask_ || !ask_stream(slot, now))))
      continue;
    slot.state_ = State::done;
    leave_lane(slot);
    return &slot;
  }
  return nullptr;
}

void Staging::release(Slot& slot) noexcept {
  if (slot.lane_ != nullptr) leave_lane(slot);
  slot.state_ = State::free;
  slot.device_ = nullptr;
  --busy_;
}

/// True: the GPU is done with it.
bool Staging::ask_stream(Slot& slot, base::Time now) {
  slot.ask_ = now + kAskAgain;
  const auto scope = slot.lane_->device->enter();
  const Status answer = scope.ok() ? slot.lane_->stream.query(*scope) : scope.status();
  if (answer.ok()) return true;
  // Pending, or a driver that cannot tell now: what is not known to be quiet is not.
  if (answer.scope() != Scope::process) return false;
  slot.status_ = answer;
  lost_.push_back(*std::exchange(slot.memory_, std::nullopt));
  for (Slot& other : slots_)
    if (other.lane_ == slot.lane_) other.ask_ = now;
  return true;
}

bool Staging::room(const cuda::Device& device) const noexcept {
  const auto its = std::ranges::count_if(
      slots_, [&device](const Slot& slot) { return slot.device_ == &device; });
  return busy_ < kSlots && its < kSlotsOfAGpu;
}

bool Staging::ready() const noexcept {
  const base::Time now = base::Clock::steady().now();
  return std::ranges::any_of(slots_, [now](const Slot& slot) {
    return slot.state_ == State::submitted && (slot.told() || now >= slot.ask_);
  });
}

Duration Staging::patience() const noexcept {
  base::Time oldest = base::Time::max();
  for (const Slot& slot : slots_)
    if (slot.state_ == State::submitted) oldest = std::min(oldest, slot.begun_);
  const Duration since = base::Clock::steady().now() - oldest;
  return since < kSpin ? Duration::zero() : std::min<Duration>(since / 16, milliseconds(1));
}

/// That of a slot which the GPU works at, or one of the pool's.
Result<Staging::Lane*> Staging::lane_of(const cuda::Device& device) {
  for (const Slot& slot : slots_)
    if (slot.lane_ != nullptr && slot.device_ == &device) return slot.lane_;
  return lanes_.take(device);
}

/// The last of its slots gives it back.
void Staging::leave_lane(Slot& slot) noexcept {
  Lane* const lane = std::exchange(slot.lane_, nullptr);
  if (std::ranges::find(slots_, lane, &Slot::lane_) == slots_.end()) lanes_.release(*lane);
}

Result<std::unique_ptr<StagingStreams::Lane>> StagingStreams::Lane::create(
    const cuda::Device& device) {
  const auto scope = device.enter();
  if (!scope.ok()) return scope.status();
  auto stream = cuda::Stream::create(*scope);
  if (!stream.ok()) return stream.status();
  std::optional<cuda::DeviceBuffer> zero;
  if (device.copy_blocks() != nullptr) {
    auto made = cuda::DeviceBuffer::create(*scope, kLine);
    if (!made.ok()) return made.status();
    const Status filled = stream->fill(*scope, made->address(), 0, made->bytes());
    if (!filled.ok()) return filled;  // else done before any kernel of this stream
    zero.emplace(*std::move(made));
  }
  return std::unique_ptr<Lane>(
      new Lane{.device = &device, .stream = *std::move(stream), .zero = std::move(zero)});
}

Status StagingStreams::reserve(const cuda::Device& device, unsigned lanes) {
  const base::MutexLock making(making_);
  const auto wanted = [&] {
    const base::MutexLock lock(mutex_);
    return std::ranges::count(all_, &device, [](const Entry& e) { return e.lane->device; }) <
           static_cast<std::ptrdiff_t>(lanes);
  };
  while (wanted()) {
    auto made = add(device, false);
    if (!made.ok()) return made.status();
  }
  return {};
}

Status StagingStreams::reserve(const GpuUuid& gpu, unsigned lanes) {
  auto device = topology_->activate(gpu);
  return device.ok() ? reserve(**device, lanes) : device.status();
}

Result<StagingStreams::Lane*> StagingStreams::take(const cuda::Device& device) {
  {
    const base::MutexLock lock(mutex_);
    for (Entry& entry : all_) {
      if (entry.taken || entry.lane->device != &device) continue;
      entry.taken = true;
      return entry.lane.get();
    }
  }
  return add(device, true);
}

Result<StagingStreams::Lane*> StagingStreams::add(const cuda::Device& device, bool taken) {
  auto made = Lane::create(device);
  if (!made.ok()) return made.status();
  const base::MutexLock lock(mutex_);
  return all_.emplace_back(Entry{.lane = *std::move(made), .taken = taken}).lane.get();
}

void StagingStreams::release(const Lane& lane) noexcept {
  const base::MutexLock lock(mutex_);
  for (Entry& entry : all_)
    if (entry.lane.get() == &lane) entry.taken = false;
}

void StagingStreams::free(std::vector<cuda::PinnedBuffer> memory) noexcept {
  if (topology_ == nullptr || memory.empty()) return;
  (void)base::or_no_memory([&] {  // else it is freed here
    topology_->destroyer()->end(
        std::make_unique<std::vector<cuda::PinnedBuffer>>(std::move(memory)));
    return Status();
  });
}

/// For all GPUs, at one address (fact: Identity.MemoryIsPinnedOnceAndForAllGpus).
Status Staging::pin(Slot& slot, const cuda::Device& device, const cuda::DeviceScope& scope) {
  lost_.reserve(lost_.size() + kSlots);  // the end of this needs no memory
  const base::PreferredNode near(base::numa_node_of(device.info().bus_id));
  auto memory = cuda::PinnedBuffer::create(scope, slot_bytes_ + kBeside);
  if (!memory.ok()) return memory.status();
  slot.memory_.emplace(*std::move(memory));
  *reinterpret_cast<std::uint64_t*>(slot.memory_->data()) = slot.number_ = 0;
  return {};
}

}  // namespace linkspan::copy
