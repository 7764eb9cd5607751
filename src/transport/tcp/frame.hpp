// transport/tcp/frame.hpp - encodes and decodes the heads of the frames that data connections
// carry.
//
// A frame is a head followed by its data. A head is the header common to all our frames
// (base/frame_queue.hpp; its length counts all after it), the fields of the type and, for put and
// get, a list of spans; little-endian. Input is hostile: decode() checks each length against the
// others and the limits below, and nothing more. A frame may have a checksum: CRC32C of head and
// data, with zeros in the place of the sum.
// Threads: pure functions and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/fd_channel.hpp"
#include "linkspan/status.hpp"
#include "transport/wire_region.hpp"

namespace linkspan::transport::tcp {

/// The numbers are wire format.
enum class FrameType : std::uint16_t {
  put = 1,  ///< Data for spans of a region. The header's id is the writer's number of the batch.
  get,      ///< Requests the spans of a region, which come as `data` under the same id.
  data,     ///< Bytes of a requested batch, from `position` on.
  ended,    ///< Reports how a put has ended, after all of it has landed.
  cancel,   ///< Asks for no more data of a get.
};

inline constexpr std::size_t kMaxSpans = 4096;  ///< Spans of a get, at most.
inline constexpr std::size_t kMaxPutSpans =
    256;  ///< Spans of a put, at most: what a staging buffer takes.
inline constexpr std::size_t kMinChunk =
    4096;  ///< Data of a frame: the least that an address may announce,
inline constexpr std::size_t kMaxChunk = 1u << 20;  ///< and the most that is accepted.
inline constexpr std::size_t kMaxText = 512;
inline constexpr std::size_t kMaxNotification = 4096;

struct Span {
  std::uint64_t offset = 0, bytes = 0;
};

struct Head {
  FrameType type = FrameType::put;
  std::uint64_t id = 0;
  std::uint64_t incarnation = 0;  ///< Identifies the sender's Engine.
  std::uint64_t serial = 0;       ///< put, get: of the region.
  Token token{};                  ///< put, get: of the region.
  std::uint64_t position = 0;     ///< put, data: where in the batch the data begins.
  bool last = false;              ///< put, data: no bytes of the batch follow.
  bool summed = false;            ///< put, get, data: it has a checksum. get: so must the data.
  Code code = Code::ok;           ///< data: an error if not ok. ended: the result.
  std::vector<Span> spans{};      ///< put, get.
  std::string text{};             ///< ended: for people.
  /// put, last frame: for the peer's user, delivered after all of the batch has landed.
  std::vector<std::byte> notification{};
  /// put: delivers the notification after that many sent over the control connection. 0 without a
  /// notification.
  std::uint64_t after = 0;
  std::uint64_t data = 0;  ///< put, data: bytes that follow the head.
  // Set by decode() for a frame with a checksum:
  std::uint32_t sum = 0;          ///< As received.
  std::uint32_t sum_of_head = 0;  ///< Computed of the head; continue it with the data.
};

/// Compares the checksum of a received frame with what has arrived.
class FrameSum {
 public:
  /// Begins with the head.
  explicit FrameSum(const Head& head) noexcept
      : summed_(head.summed), expected_(head.sum), sum_(head.sum_of_head) {}
  bool is_summed() const noexcept { return summed_; }
  /// Continues with the data, or the next part of it.
  void add(const void* data, std::size_t bytes) noexcept;
  /// Returns true if all has arrived as it was sent, or the frame has no checksum.
  bool matches() const noexcept { return sum_ == expected_; }

 private:
  bool summed_;
  std::uint32_t expected_, sum_;
};

/// Encodes the head without the data. A checksum covers only the head.
std::vector<std::byte> encode(const Head& head);
/// Continues the checksum of an encoded head with its data, or the next part of it.
void add_to_sum(std::span<std::byte> head, std::span<const std::byte> data) noexcept;

/// Returns the size of the head at the front of `bytes`, or none if too few bytes are there.
/// corrupt: not a frame.
Result<std::optional<std::size_t>> head_bytes(std::span<const std::byte> bytes);
/// Decodes a head of exactly head_bytes(). corrupt: a field has no meaning.
Result<Head> decode(std::span<const std::byte> bytes);

/// Size of a head, at most.
inline constexpr std::size_t kMaxHead = base::kFrameHeaderBytes + 64 + kMaxSpans * sizeof(Span);

}  // namespace linkspan::transport::tcp
