// memory/region.hpp - memory that the user has registered, and the keys that describe it to peers.
//
// A Region is made at registration, where all queries to the driver about it are made; the path of
// a byte only reads it. The registry owns it, batches in flight borrow it.
// Threads: immutable after construction.
// Invariants: a Region is within its allocation; no two registrations of an incarnation have the
// same RegionId.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/fd.hpp"
#include "linkspan/types.hpp"

namespace linkspan::memory {

/// Returns whether the range is within `size`. This is the library's only range check: the sum in
/// `offset + bytes <= size` would overflow.
constexpr bool fits(std::uint64_t offset, std::uint64_t bytes, std::uint64_t size) noexcept {
  return offset <= size && bytes <= size - offset;
}

/// Identifies registered memory. Not an address: after free and malloc an address is other memory.
struct RegionId {
  std::uint64_t incarnation = 0;  ///< Identifies the owning Engine; random.
  std::uint64_t buffer = 0;       ///< CUDA's buffer id. Zero: host memory.
  std::uint64_t serial = 0;  ///< Identifies the registration; never reused in this incarnation.
  friend bool operator==(const RegionId&, const RegionId&) = default;
};

/// Names who provides the pages of a region.
enum class PageSource : std::uint8_t {
  other,
  pool,    ///< A stream-ordered pool of CUDA's.
  kernel,  ///< The kernel alone: host memory as AnonymousRanges finds it.
};

/// One of several adjacent allocations that cuMemMap mapped.
struct MappedChunk {
  std::uint64_t bytes = 0;
  std::uint64_t buffer = 0;  ///< CUDA's id; changes when other memory is mapped there.
};

class Region {
 public:
  /// Describes the memory. Addresses are integers: memory of a GPU cannot be dereferenced
  /// here.
  struct Facts {
    RegionId id;
    MemoryKind kind = MemoryKind::host;
    Permissions peers;
    GpuUuid gpu{};
    std::uint64_t address = 0, bytes = 0;
    std::uint64_t allocation = 0, allocation_bytes = 0;  ///< What a CUDA IPC handle opens.
    /// For memory mapped by cuMemMap, the adjacent chunks that the region touches; together they
    /// are its `allocation`. Else empty.
    std::vector<MappedChunk> chunks = {};
    PageSource pages = PageSource::other;
    /// Serial of the registered region of which this is a part, for one message over a network
    /// transport. 0: not a part.
    std::uint64_t part_of = 0;
    /// For a `shared` region, else null. Shared with the backing and its keys. The allocation
    /// begins at offset 0 of the file.
    std::shared_ptr<const base::Fd> memfd = nullptr;
  };
  /// Makes a Region. invalid_argument: it is not within its allocation.
  static Result<std::unique_ptr<const Region>> create(const Facts& f) {
    if (!fits(f.allocation, f.allocation_bytes, ~std::uint64_t{0}) ||
        !fits(f.address - f.allocation, f.bytes,
              f.allocation_bytes))  // an address below it wraps and is too big
      return Status(Code::invalid_argument, Scope::request, "region leaves its allocation");
    return std::unique_ptr<const Region>(new Region(f));
  }
  const Facts& facts() const noexcept { return facts_; }
  std::uint64_t bytes() const noexcept { return facts_.bytes; }

 private:
  explicit Region(const Facts& facts) noexcept : facts_(facts) {}
  Facts facts_;
};

/// Lets a peer access a Region by one transport. The fds stay with the owner, whose control
/// thread sends duplicates over the Unix socket to each peer that asks. Keys share their fds,
/// because there are more regions than a process may have descriptors.
struct PublishedKey {
  std::vector<std::byte> bytes;
  std::vector<std::shared_ptr<const base::Fd>> fds;  // shared with the transport and other keys
  bool bearer = false;  ///< The bytes alone give access: they are sent as the fds are.
  /// Makes one more fd for one import by one peer, of what is too costly to keep open. May be null.
  std::function<Result<base::Fd>()> last_fd = {};
};

/// Returns duplicates of the fds of a key, and its last one, for one import by one peer.
inline Result<std::vector<base::Fd>> fds_for_peer(const PublishedKey& key) {
  std::vector<base::Fd> out;
  for (const auto& fd : key.fds) {
    auto duplicate = fd->duplicate();
    if (!duplicate.ok()) return duplicate.status();
    out.push_back(*std::move(duplicate));
  }
  if (!key.last_fd) return out;
  auto last = key.last_fd();
  if (!last.ok()) return last.status();
  out.push_back(*std::move(last));
  return out;
}

}  // namespace linkspan::memory
