#include "tools/linkspan/pair/memories.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <span>

#include "base/fd.hpp"
#include "tools/linkspan/pair/data.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kLead = 4096;  // so that no region begins at the start of its allocation
// Allocations on a GPU are a multiple of this (docs/cuda_notes.md, "rates").
constexpr std::uint64_t kGpuPage = std::uint64_t{2} << 20;
constexpr std::uint64_t kMaxStagingBytes = std::uint64_t{8} << 20;

/// Reads all of `text` as a number.
bool read_number(std::string_view text, unsigned& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string Place::name() const {
  std::string out = kind == MemoryKind::device ? "gpu" + std::to_string(gpu)
                    : kind == MemoryKind::host ? "pageable"
                                               : std::string(linkspan::name_of(kind));
  if (region != 0) out += '.' + std::to_string(region);
  return out;
}

std::optional<Place> Place::parse(std::string_view name) {
  unsigned region = 0;
  if (const auto dot = name.find('.'); dot != std::string_view::npos) {
    if (!read_number(name.substr(dot + 1), region)) return std::nullopt;
    name = name.substr(0, dot);
  }
  for (const MemoryKind kind : {MemoryKind::pinned, MemoryKind::host, MemoryKind::shared})
    if (const Place place{.kind = kind}; place.name() == name) return place.with_region(region);
  Place place{.kind = MemoryKind::device, .region = region};
  if (!name.starts_with("gpu") || !read_number(name.substr(3), place.gpu)) return std::nullopt;
  return place;
}

Gpus Gpus::find() {
  Gpus out;
  auto topology = cuda::Topology::create();
  if (topology.ok())
    out.topology_ = *std::move(topology);
  else
    out.why_ = topology.status();
  return out;
}

unsigned Gpus::count() const noexcept {
  return topology_ == nullptr ? 0 : static_cast<unsigned>(topology_->devices().size());
}

bool Gpus::real() const { return count() != 0 && !info(0).name.starts_with("Simulated"); }

const cuda::DeviceInfo& Gpus::info(unsigned gpu) const { return topology_->devices()[gpu]; }

Result<const cuda::Device*> Gpus::device(unsigned gpu) const {
  if (gpu >= count())
    return Status(Code::not_found, Scope::request, "there is no gpu" + std::to_string(gpu));
  return topology_->activate(info(gpu).uuid);
}

std::vector<Place> Gpus::places(unsigned most_gpus) const {
  std::vector<Place> out;
  for (unsigned gpu = 0; gpu < std::min(count(), most_gpus); ++gpu)
    out.push_back({.kind = MemoryKind::device, .gpu = gpu});
  if (count() != 0) out.push_back({.kind = MemoryKind::pinned});
  out.push_back({.kind = MemoryKind::host});
  out.push_back({.kind = MemoryKind::shared});
  return out;
}

Result<std::unique_ptr<Memory>> Memory::create(Engine& engine, const Gpus& gpus, Place place,
                                               std::uint64_t bytes) {
  std::unique_ptr<Memory> memory(new Memory(place, bytes));
  if (Status s = memory->allocate(gpus); !s.ok()) return s;
  auto region =
      place.kind == MemoryKind::shared
          ? engine.allocate_shared(bytes)
          : engine.register_memory(
                static_cast<std::byte*>(memory->allocation()) + memory->allocation_offset_, bytes);
  if (!region.ok()) return region.status();
  memory->region_ = *std::move(region);
  return memory;
}

Memory::~Memory() {
  if (mapped_ != nullptr) ::munmap(mapped_, bytes_ + kLead);
}

Status Memory::allocate(const Gpus& gpus) {
  if (place_.kind == MemoryKind::shared) return {};
  allocation_offset_ = kLead;
  if (place_.kind == MemoryKind::host) {
    void* mapped =
        ::mmap(nullptr, bytes_ + kLead, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return base::Fd::from("mmap", -1).status();
    mapped_ = mapped;
    return {};
  }
  auto device = gpus.device(place_.gpu);
  if (!device.ok()) return device.status();
  auto scope = (*device)->enter();
  if (!scope.ok()) return scope.status();
  if (place_.kind == MemoryKind::pinned) {
    auto buffer = cuda::PinnedBuffer::create(*scope, bytes_ + kLead);
    if (!buffer.ok()) return buffer.status();
    owner_ = *std::move(buffer);
    return {};
  }
  const std::uint64_t pages = (bytes_ + kLead + kGpuPage - 1) / kGpuPage;
  auto buffer = cuda::DeviceBuffer::create(*scope, pages * kGpuPage);
  if (!buffer.ok()) return buffer.status();
  auto staging = cuda::PinnedBuffer::create(*scope, std::min(bytes_, kMaxStagingBytes));
  if (!staging.ok()) return staging.status();
  auto copy = bare::GpuCopy::create(**device);
  if (!copy.ok()) return copy.status();
  device_ = *device;
  owner_ = *std::move(buffer);
  staging_ = *std::move(staging);
  copy_ = *std::move(copy);
  return {};
}

void* Memory::allocation() const noexcept {
  if (const auto* pinned = std::get_if<cuda::PinnedBuffer>(&owner_)) return pinned->data();
  if (const auto* device = std::get_if<cuda::DeviceBuffer>(&owner_))
    return reinterpret_cast<void*>(device->address());  // NOLINT(performance-no-int-to-ptr)
  return mapped_;
}

Status Memory::check_range(std::uint64_t offset, std::uint64_t bytes) const {
  if (offset <= bytes_ && bytes <= bytes_ - offset) return {};
  return {
      Code::invalid_argument, Scope::request,
      std::to_string(bytes) + " bytes at " + std::to_string(offset) + " leave " + place_.name()};
}

Status Memory::put(std::uint64_t offset, std::span<const std::byte> data) {
  if (Status s = check_range(offset, data.size()); !s.ok()) return s;
  if (device_ == nullptr && !data.empty())
    std::memcpy(static_cast<std::byte*>(region_.data()) + offset, data.data(), data.size());
  for (std::uint64_t done = 0; device_ != nullptr && done < data.size();) {
    const std::uint64_t count = std::min(data.size() - done, staging_->bytes());
    std::memcpy(staging_->data(), data.data() + done, count);
    const auto took =
        copy_->run({address() + offset + done, staging_->device_address()}, count, 10s);
    if (!took.ok()) return took.status();
    done += count;
  }
  return {};
}

Status Memory::get(std::uint64_t offset, std::span<std::byte> into) {
  if (Status s = check_range(offset, into.size()); !s.ok()) return s;
  if (device_ == nullptr && !into.empty())
    std::memcpy(into.data(), static_cast<const std::byte*>(region_.data()) + offset, into.size());
  for (std::uint64_t done = 0; device_ != nullptr && done < into.size();) {
    const std::uint64_t count = std::min(into.size() - done, staging_->bytes());
    const auto took =
        copy_->run({staging_->device_address(), address() + offset + done}, count, 10s);
    if (!took.ok()) return took.status();
    std::memcpy(into.data() + done, staging_->data(), count);
    done += count;
  }
  return {};
}

Status Memory::fill(std::uint64_t offset, std::uint64_t bytes, std::uint64_t seed,
                    std::uint64_t from) {
  if (Status s = check_range(offset, bytes); !s.ok()) return s;
  if (device_ == nullptr) {
    put_data({static_cast<std::byte*>(region_.data()) + offset, bytes}, seed, from);
    return {};
  }
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t count = std::min(bytes - done, staging_->bytes());
    put_data({staging_->data(), count}, seed, from + done);
    const auto took =
        copy_->run({address() + offset + done, staging_->device_address()}, count, 10s);
    if (!took.ok()) return took.status();
    done += count;
  }
  return {};
}

Status Memory::check(std::uint64_t offset, std::uint64_t bytes, std::uint64_t seed,
                     std::uint64_t from) {
  const Tile tile{bytes, seed, from};
  return check(offset, {&tile, 1});
}

Status Memory::check(std::uint64_t offset, std::span<const Tile> tiles) {
  std::uint64_t bytes = 0;
  for (const Tile& tile : tiles) bytes += tile.bytes;
  if (Status s = check_range(offset, bytes); !s.ok()) return s;
  const std::uint64_t step = device_ == nullptr ? bytes : staging_->bytes();
  std::uint64_t within = 0;  // bytes of the first tile
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t count = std::min(bytes - done, step);
    const std::byte* actual = static_cast<const std::byte*>(region_.data()) + offset + done;
    if (device_ != nullptr) {
      actual = staging_->data();
      const auto took =
          copy_->run({staging_->device_address(), address() + offset + done}, count, 10s);
      if (!took.ok()) return took.status();
    }
    for (const std::byte* const end = actual + count; actual != end;) {
      const Tile& tile = tiles.front();
      const std::uint64_t part =
          std::min(tile.bytes - within, static_cast<std::uint64_t>(end - actual));
      if (const auto wrong = first_difference({actual, part}, tile.seed, tile.from + within))
        return {Code::corrupt, Scope::request,
                "byte " + std::to_string(offset + done + wrong - 1) + " of " + place_.name() +
                    " is wrong"};
      actual += part;
      done += part;
      within += part;
      if (within != tile.bytes) continue;
      tiles = tiles.subspan(1);
      within = 0;
    }
  }
  return {};
}

}  // namespace linkspan::tool
