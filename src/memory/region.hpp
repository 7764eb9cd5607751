// memory/region.hpp - memory that the user has lent us, and the words that describe it to peers.
//
// A Region is made at registration, where the driver is asked everything that is ever asked about
// it; on the path of a byte it is only read. The registry owns it, batches in flight borrow it.
// Threads: immutable after construction.
// Invariants: lies within its allocation; no two registrations of a life have the same RegionId.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/fd.hpp"
#include "linkspan/types.hpp"

namespace linkspan::memory {

/// The library's one range check. The sum in `offset + bytes <= size` would overflow.
constexpr bool fits(std::uint64_t offset, std::uint64_t bytes, std::uint64_t size) noexcept {
  return offset <= size && bytes <= size - offset;
}

/// Which memory, and in whose life. Not an address: after free and malloc that is another's.
struct RegionId {
  std::uint64_t incarnation = 0;  ///< The owning Engine's life; random.
  std::uint64_t buffer = 0;       ///< CUDA's buffer id. Zero: host memory, which has none.
  std::uint64_t serial = 0;       ///< The registration; never used again in this life.
  friend bool operator==(const RegionId&, const RegionId&) = default;
};

/// One allocation of a row that cuMemMap mapped.
struct MappedChunk {
  std::uint64_t bytes = 0;
  std::uint64_t buffer = 0;  ///< CUDA's id; another when something is mapped there anew.
};

class Region {
 public:
  /// Addresses are numbers: a GPU's memory is not to be followed from here.
  struct Facts {
    RegionId id;
    MemoryKind kind = MemoryKind::host;
    Permissions peers;
    GpuUuid gpu{};
    std::uint64_t address = 0, bytes = 0;
    std::uint64_t allocation = 0, allocation_bytes = 0;  ///< All that a CUDA IPC handle opens.
    /// Of memory mapped by cuMemMap the chunks that it touches, without a gap: they are its
    /// `allocation`. Else empty.
    std::vector<MappedChunk> chunks = {};
    bool pooled = false;  ///< Of a stream-ordered pool.
    /// Serial of the registered region that this is a part of, for one message by a wire. 0: none.
    std::uint64_t part_of = 0;
    /// Of a `shared` region, else null; also the memory's and its keys'. The allocation begins at
    /// offset 0 of the file.
    std::shared_ptr<const base::Fd> memfd = nullptr;
  };
  static Result<std::unique_ptr<const Region>> create(const Facts& f) {
    if (!fits(f.allocation, f.allocation_bytes, ~std::uint64_t{0}) ||
        !fits(f.address - f.allocation, f.bytes, f.allocation_bytes))  // below it: wraps, too big
      return Status(Code::invalid_argument, Scope::request, "region leaves its allocation");
    return std::unique_ptr<const Region>(new Region(f));
  }
  const Facts& facts() const noexcept { return facts_; }
  std::uint64_t bytes() const noexcept { return facts_.bytes; }

 private:
  explicit Region(const Facts& facts) noexcept : facts_(facts) {}
  Facts facts_;
};

/// What lets a peer reach a Region by one transport. The fds stay with the owner, whose control
/// thread sends duplicates over the Unix socket to each peer that asks. A key has none of its own:
/// there are more regions than a process may have descriptors.
struct PublishedKey {
  std::vector<std::byte> bytes;
  std::vector<std::shared_ptr<const base::Fd>> fds;  // also the transport's and other keys'
  bool bearer = false;  ///< Who has the bytes has the memory: they go the way of the fds.
  /// Makes one more fd, for one import by one peer, of what is too costly to keep. May be null.
  std::function<Result<base::Fd>()> last_fd = {};
};

/// Duplicates of the fds of a key, and its last one, for one import by one peer.
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
