// linkspan/types.hpp - the value types that the API, the engine and the transports share.
//
// They own nothing. Sizes and offsets are bytes, times are nanoseconds.
// Threads: values; copies may be used by any thread.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace linkspan {

using Duration = std::chrono::nanoseconds;

/// Names the kind of a memory. `host` is private and pageable, `pinned` is page-locked by the
/// driver, `shared` is a memfd from Engine::allocate_shared(), `device` is a GPU's, `managed` is
/// CUDA's unified memory.
enum class MemoryKind : std::uint8_t { host, pinned, shared, device, managed };
inline constexpr std::size_t kMemoryKinds = 5;

constexpr std::string_view name_of(MemoryKind kind) noexcept {
  constexpr std::string_view kNames[kMemoryKinds] = {"host", "pinned", "shared", "device",
                                                     "managed"};
  return static_cast<std::size_t>(kind) < kMemoryKinds ? kNames[static_cast<std::size_t>(kind)]
                                                       : "unknown";
}

/// A set of MemoryKind.
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

/// Names how TCP is protected. `loopback_only`: it does not leave the host. `insecure`: it does,
/// and anyone who can reach the port becomes a peer. `authenticated`: peers prove that they know
/// the shared secret, and all messages are authenticated. `encrypted`: TLS 1.3 with a key of the
/// secret encrypts them as well; both sides must agree. docs/security.md says what each promises.
enum class Security : std::uint8_t { loopback_only, insecure, authenticated, encrypted };
inline constexpr std::size_t kSecurities = 4;

constexpr std::string_view name_of(Security security) noexcept {
  constexpr std::string_view kNames[kSecurities] = {"loopback_only", "insecure", "authenticated",
                                                    "encrypted"};
  return static_cast<std::size_t>(security) < kSecurities
             ? kNames[static_cast<std::size_t>(security)]
             : "unknown";
}
/// Returns the Security of that name, or nullopt.
constexpr std::optional<Security> parse_security(std::string_view name) noexcept {
  for (std::size_t i = 0; i < kSecurities; ++i)
    if (name == name_of(static_cast<Security>(i))) return static_cast<Security>(i);
  return std::nullopt;
}

/// Grants peers access to a region. The owner enforces `read` and `write` only for copies that it
/// executes itself: a peer that maps the memory can access the whole allocation. `exclusive`
/// forbids mapping, so the owner executes every copy.
struct Permissions {
  bool read = false, write = false, exclusive = false;
};

/// Identifies a GPU as cuDeviceGetUuid does. All zero: no GPU.
using GpuUuid = std::array<std::byte, 16>;

enum class Op : std::uint8_t { write, read };

// The shapes of a transfer. Offsets are relative to its two regions. Source ranges may overlap. A
// byte that two blocks of one transfer write gets the value of either, byte by byte. A byte that
// one block writes and another reads is undefined.

/// Copies `bytes` bytes between the two offsets.
struct Block {
  std::uint64_t local_offset = 0, remote_offset = 0, bytes = 0;
};

/// Copies blocks of one size at page indices: page i is at base + index[i] * page_bytes.
struct Pages {
  std::uint64_t page_bytes = 0;
  std::uint64_t local_base = 0, remote_base = 0;
  std::span<const std::uint32_t> local_index, remote_index;  ///< Equal lengths.
  /// States that both lists are in pinned memory or in memory of the GPU that copies, and do not
  /// change until the transfer is quiet. The copy kernel reads them when it runs, so a kernel
  /// earlier in the stream `after` may write them. A page whose index leaves its region is not
  /// copied, and the transfer ends `invalid_argument`; other pages may or may not be copied. A page
  /// has at most 512 MiB. unreachable: no kernel of this process copies (the text says why).
  /// unsupported: Peer::prepare() of such lists.
  bool indices_on_gpu = false;
};

/// Copies a block of `bytes` bytes that is repeated along up to three levels. One use: the heads
/// that one side needs of tensors whose row lengths differ between the sides. With the counts n0,
/// n1, n2 there are n0 * n1 * n2 blocks, at base + i * step0 + j * step1 + k * step2 for all
/// i < n0, j < n1, k < n2.
struct Strides {
  struct Level {
    std::uint64_t count = 1;  ///< 1: no repetition. 0: the shape has no bytes.
    std::uint64_t local_step = 0, remote_step = 0;  ///< Bytes from one block to the next.
  };
  std::uint64_t bytes = 0;
  std::uint64_t local_base = 0, remote_base = 0;
  std::array<Level, 3> levels{};
};

/// Describes what a transfer copies between its two regions. Borrows the lists.
using Shape = std::variant<std::span<const Block>, Pages, Strides>;

/// Names a CUDA stream of the user, or none. The default streams have names here because the
/// meaning of handle 0 depends on how the caller was compiled. `handle` is a CUstream and is used
/// for `created` only.
struct StreamOrder {
  enum class Kind : std::uint8_t { none, created, legacy_default, per_thread_default };
  Kind kind = Kind::none;
  GpuUuid gpu{};
  void* handle = nullptr;
};

/// A small message from a peer. One that was sent with a transfer is delivered after its data.
struct Notification {
  std::uint64_t peer = 0;  ///< Peer::id() of the sender.
  std::vector<std::byte> bytes;
};

/// A path that a transfer did not take, and the reason.
struct PathRefusal {
  std::string path, reason;
};

/// The result of Peer::explain(): the path of a transfer, and why better paths are refused.
struct Explanation {
  std::string path;  ///< Mapping or transport, then copier: "cuda_ipc+copy_engine". Empty: no path.
  std::string executor;      ///< The side that runs the copy: "here", "peer" or "both".
  std::string reason;        ///< Why this path was chosen.
  double expected_gbps = 0;  ///< In 1e9 bytes/s, by the rates that the choice used. 0: unknown.
  std::vector<PathRefusal> refused;  ///< The best refused path first.
};

}  // namespace linkspan
