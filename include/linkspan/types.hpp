// linkspan/types.hpp - the words that the API, the engine and the transports share.
//
// Plain values: no behaviour, no ownership. Sizes and offsets are bytes.
// Threads: values; share them like an int.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace linkspan {

using Duration = std::chrono::nanoseconds;

/// `host` is private and pageable, `pinned` is locked for the driver, `shared` is a memfd that
/// Engine::allocate_shared made, `managed` is CUDA's unified memory.
enum class MemoryKind : std::uint8_t { host, pinned, shared, device, managed };
inline constexpr std::size_t kMemoryKinds = 5;

constexpr std::string_view name_of(MemoryKind kind) noexcept {
  constexpr std::string_view kNames[kMemoryKinds] = {"host", "pinned", "shared", "device",
                                                     "managed"};
  return static_cast<std::size_t>(kind) < kMemoryKinds ? kNames[static_cast<std::size_t>(kind)]
                                                       : "unknown";
}

class MemoryKinds {
 public:
  constexpr MemoryKinds() noexcept = default;
  constexpr MemoryKinds(std::initializer_list<MemoryKind> kinds) noexcept {
    for (MemoryKind kind : kinds) bits_ |= 1u << static_cast<unsigned>(kind);
  }
  constexpr bool contains(MemoryKind kind) const noexcept {
    return (bits_ >> static_cast<unsigned>(kind) & 1u) != 0;
  }

 private:
  std::uint32_t bits_ = 0;
};

/// What peers may do, where our side executes. A peer that maps the memory can do all, and to the
/// whole allocation: `exclusive` keeps it from mapping, so the owner executes.
struct Permissions {
  bool read = false, write = false, exclusive = false;
};

/// As cuDeviceGetUuid tells it. Zero: no GPU.
using GpuUuid = std::array<std::byte, 16>;

enum class Op : std::uint8_t { write, read };

// The shapes of a transfer. Offsets are relative to its two regions. What is read may overlap;
// where two blocks of one transfer write the same byte, it ends as either's, byte by byte. A byte
// that one block writes and another reads is undefined.

/// `bytes` bytes at each offset.
struct Block {
  std::uint64_t local_offset = 0, remote_offset = 0, bytes = 0;
};

/// Blocks of one size at page indices: page i is at base + index[i] * page_bytes.
struct Pages {
  std::uint64_t page_bytes = 0;
  std::uint64_t local_base = 0, remote_base = 0;
  std::span<const std::uint32_t> local_index, remote_index;  ///< Equal lengths.
  /// Both lists are in memory of the GPU that copies, or pinned, and stay as they are until the
  /// transfer is quiet: its kernel reads them when it runs, so a kernel before it in the stream
  /// `after` may write them. A page whose index leaves its region is not copied, and the transfer
  /// ends as invalid_argument, other pages copied or not. A page has at most 512 MiB. unreachable:
  /// no kernel of this process copies (the text says why). unsupported: to prepare them.
  bool indices_on_gpu = false;
};

/// A block of `bytes` bytes at the two bases, repeated along up to three levels: of tensors whose
/// rows differ between the sides, the heads that one side needs. With the counts n0, n1, n2 there
/// are n0 * n1 * n2 blocks, for all i, j, k below them at base + i * step0 + j * step1 + k * step2.
struct Strides {
  struct Level {
    std::uint64_t count = 1;  ///< 1: no repetition. 0: the shape has no bytes.
    std::uint64_t local_step = 0, remote_step = 0;  ///< Bytes from each to the next.
  };
  std::uint64_t bytes = 0;
  std::uint64_t local_base = 0, remote_base = 0;
  std::array<Level, 3> levels{};
};

/// A stream of the user's, or none. What handle 0 means depends on how the *caller* was compiled,
/// so the API says it in words; `handle` is a CUstream and counts for `created` only.
struct StreamOrder {
  enum class Flavour : std::uint8_t { none, created, legacy_default, per_thread_default };
  Flavour flavour = Flavour::none;
  GpuUuid gpu{};
  void* handle = nullptr;
};

/// A small message from a peer, delivered after the data that it rode on.
struct Notification {
  std::uint64_t peer = 0;  ///< Peer::id() of the sender.
  std::vector<std::byte> bytes;
};

/// A way that a transfer might have taken, and why it did not.
struct PathRefusal {
  std::string path, reason;
};

/// The answer of Peer::explain(): what a transfer takes, and why nothing better.
struct Explanation {
  std::string path;          ///< "cuda_ipc+copy_engine": mapping or wire, then copier; empty: none.
  std::string executor;      ///< "here", "peer" or "both": whose side runs the copy.
  std::string reason;        ///< Why this path.
  double expected_gbps = 0;  ///< 1e9 bytes a second, by the rates that chose; 0: unknown.
  std::vector<PathRefusal> refused;  ///< Better first.
};

}  // namespace linkspan
