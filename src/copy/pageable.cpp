#include "copy/pageable.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <iterator>
#include <utility>

#include "copy/blocks_kernel.hpp"
#include "copy/chooser.hpp"
#include "copy/gpu_copier.hpp"

namespace linkspan::copy {
namespace {

using std::chrono::milliseconds;

constexpr Duration kSpin = milliseconds(2);  // 24 slots of 2 MiB take 0.9 ms of one link

// A slot: its words on a line each, the list, the bytes.
constexpr std::size_t kLine = 128, kAborted = kLine, kList = 2 * kLine, kListEntries = 320;
constexpr std::size_t kBytes = kList + kListEntries * sizeof(Piece);
constexpr std::uint64_t kCongruent = 16;  // what the kernel moves 16 bytes a lane for
static_assert(kBytes % kCongruent == 0);
static_assert(kBytes + PageableCopies::kRuns * (kCongruent - 1) <= PageableCopies::kBeside);
static_assert(PageableCopies::kRuns + PageableCopies::kMostBytes / GpuCopier::kListBytes <
              kListEntries);
static_assert(PageableCopies::kSlotsOfAGpu * (PageableCopies::kRuns + 1) < 1000);

/// Where in the slot each piece lies. Runs of the GPU's are runs there too.
template <class Each>
void lay_out(const PageableCopies::Chunk& chunk, Each each) {
  std::uint64_t at = kBytes;
  const Piece* before = nullptr;
  for (const Piece& piece : chunk.pieces) {
    const bool joined = before != nullptr && PageableCopies::joins(*before, piece, chunk.to_gpu);
    if (!joined) at += ((chunk.to_gpu ? piece.to : piece.from) - at) % kCongruent;
    each(piece, at, joined);
    at += piece.bytes;
    before = &piece;
  }
}

void* host(std::uint64_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

std::size_t PageableCopies::slot_bytes(std::size_t pinned) noexcept {
  constexpr std::size_t kPage = 4096;
  const std::size_t each = pinned / kSlots / kPage * kPage;
  return std::clamp(each - std::min(each, kBeside), kPage, kMostBytes);
}

bool PageableCopies::Slot::told() const noexcept {
  auto& word = *reinterpret_cast<std::uint64_t*>(memory->data());
  return std::atomic_ref(word).load(std::memory_order_acquire) == number;
}

Status PageableCopies::begin(const Chunk& chunk) {
  const auto scope = chunk.device->enter();
  if (!scope.ok()) return scope.status();
  auto lane = lane_of(*chunk.device);
  if (!lane.ok()) return lane.status();
  Slot& slot = *std::ranges::find(slots_, nullptr, &Slot::lane);
  if (!slot.memory)
    if (Status status = pin(slot, *scope); !status.ok()) return status;
  slot.chunk = chunk;
  slot.lane = *lane;
  runs_.clear();
  std::byte* const data = slot.memory->data();
  lay_out(chunk, [&](const Piece& piece, std::uint64_t at, bool joined) {
    if (chunk.to_gpu) std::memcpy(data + at, host(piece.from), piece.bytes);
    if (joined) {
      runs_.back().bytes += piece.bytes;
      return;
    }
    const std::uint64_t there = slot.memory->device_address() + at;
    runs_.push_back({.to = chunk.to_gpu ? piece.to : there,
                     .from = chunk.to_gpu ? there : piece.from,
                     .bytes = piece.bytes});
  });
  slot.status = {};
  if (submit(slot, *scope) == 0) {
    slot.lane = nullptr;
    return std::exchange(slot.status, {});
  }
  slot.begun = base::Clock::steady().now();
  const cuda::CUdeviceptr word = slot.memory->device_address();
  const Status written = slot.lane->stream.write_value(*scope, word, ++slot.number);
  if (slot.status.ok()) slot.status = written;
  slot.ask = written.ok() ? slot.begun + kOverdue : slot.begun;
  ++busy_;
  return {};
}

/// Runs that lie scattered on the GPU go by the kernel, which reads or writes the slot over PCIe:
/// copies take 2.4 us each, 30 times what 4 KiB take of the link. Few, or large ones, are copies:
/// the GPU's SMs are the user's then. The same rule as for pinned memory, hence its chooser.
unsigned PageableCopies::submit(Slot& slot, const cuda::DeviceScope& scope) {
  const Lane& lane = *slot.lane;
  std::uint64_t bytes = 0;
  for (const Piece& run : runs_) bytes += run.bytes;
  if (choose_gpu({.pieces = runs_.size(),
                  .bytes = bytes,
                  .link = Link::host,
                  .kernel_available = lane.zero.has_value() && slot.chunk.ctas != 0}) ==
      Method::sm_kernel) {
    auto* const list = reinterpret_cast<Piece*>(slot.memory->data() + kList);
    const cuda::CUdeviceptr device = slot.memory->device_address();
    slot.status = launch_blocks(scope, lane.stream, *lane.device, slot.chunk.ctas,
                                {.entries = {list, kListEntries},
                                 .address = device + kList,
                                 .abort_word = lane.zero->address(),
                                 .aborted = device + kAborted},
                                runs_, bytes);
    return slot.status.ok() ? 1 : 0;
  }
  unsigned queued = 0;
  for (const Piece& run : runs_) {
    slot.status = lane.stream.copy(scope, run.to, run.from, run.bytes);
    if (!slot.status.ok()) break;
    ++queued;
  }
  return queued;
}

std::optional<PageableCopies::Ended> PageableCopies::end_one() {
  if (idle()) return std::nullopt;
  const base::Time now = base::Clock::steady().now();
  for (Slot& slot : slots_) {
    if (slot.lane == nullptr || (!slot.told() && (now < slot.ask || !ask_stream(slot, now))))
      continue;
    if (!slot.chunk.to_gpu && slot.status.ok()) {
      const std::byte* const data = slot.memory->data();
      lay_out(slot.chunk, [data](const Piece& piece, std::uint64_t at, bool) {
        std::memcpy(host(piece.to), data + at, piece.bytes);
      });
    }
    slot.lane = nullptr;
    --busy_;
    return Ended{slot.chunk.cookie, std::exchange(slot.status, {})};
  }
  return std::nullopt;
}

/// True: the GPU is done with it.
bool PageableCopies::ask_stream(Slot& slot, base::Time now) {
  slot.ask = now + kAskAgain;
  const auto scope = slot.lane->device->enter();
  const Status answer = scope.ok() ? slot.lane->stream.query(*scope) : scope.status();
  if (answer.ok()) return true;
  // Pending, or a driver that cannot tell now: what is not known to be quiet is not.
  if (answer.scope() != Scope::process) return false;
  slot.status = answer;
  lost_.push_back(*std::exchange(slot.memory, std::nullopt));
  for (Slot& other : slots_)
    if (other.lane == slot.lane) other.ask = now;
  return true;
}

bool PageableCopies::room(const cuda::Device& device) const noexcept {
  const auto its = std::ranges::count_if(slots_, [&device](const Slot& slot) {
    return slot.lane != nullptr && slot.lane->device == &device;
  });
  return busy_ < kSlots && its < kSlotsOfAGpu;
}

bool PageableCopies::ready() const noexcept {
  const base::Time now = base::Clock::steady().now();
  return std::ranges::any_of(slots_, [now](const Slot& slot) {
    return slot.lane != nullptr && (slot.told() || now >= slot.ask);
  });
}

Duration PageableCopies::patience() const noexcept {
  base::Time oldest = base::Time::max();
  for (const Slot& slot : slots_)
    if (slot.lane != nullptr) oldest = std::min(oldest, slot.begun);
  const Duration since = base::Clock::steady().now() - oldest;
  return since < kSpin ? Duration::zero() : std::min<Duration>(since / 16, milliseconds(1));
}

Result<PageableCopies::Lane*> PageableCopies::lane_of(const cuda::Device& device) {
  for (const auto& lane : lanes_)
    if (lane->device == &device) return lane.get();
  std::unique_ptr<Lane> lane = spare_.take(device);
  if (lane == nullptr) {
    auto made = Lane::create(device);
    if (!made.ok()) return made.status();
    lane = *std::move(made);
  }
  return lanes_.emplace_back(std::move(lane)).get();
}

Result<std::unique_ptr<PageableLanes::Lane>> PageableLanes::Lane::create(
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

Status PageableLanes::make(const cuda::Device& device, unsigned lanes) {
  std::vector<std::unique_ptr<Lane>> all;
  for (unsigned i = 0; i < lanes; ++i) {
    auto made = Lane::create(device);
    if (!made.ok()) return made.status();
    all.push_back(*std::move(made));
  }
  const base::MutexLock lock(mutex_);
  std::move(all.begin(), all.end(), std::back_inserter(spare_));
  return {};
}

std::unique_ptr<PageableLanes::Lane> PageableLanes::take(const cuda::Device& device) {
  const base::MutexLock lock(mutex_);
  const auto found = std::ranges::find(spare_, &device, &Lane::device);
  if (found == spare_.end()) return nullptr;
  std::unique_ptr<Lane> lane = std::move(*found);
  spare_.erase(found);
  return lane;
}

/// For all GPUs, at one address (fact: Identity.MemoryIsPinnedOnceAndForAllGpus).
Status PageableCopies::pin(Slot& slot, const cuda::DeviceScope& scope) const {
  auto memory = cuda::PinnedBuffer::create(scope, slot_bytes_ + kBeside);
  if (!memory.ok()) return memory.status();
  slot.memory.emplace(*std::move(memory));
  *reinterpret_cast<std::uint64_t*>(slot.memory->data()) = slot.number = 0;
  return {};
}

}  // namespace linkspan::copy
