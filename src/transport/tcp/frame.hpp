// transport/tcp/frame.hpp - what goes over a connection: the heads of frames, encoded and decoded.
//
// A frame is a head and then its data. A head is the header of every frame of ours (base/
// fd_channel.hpp; its length counts all behind it), fields of the op, and for put and get a list of
// spans. Little-endian. What a peer sends is hostile: decode() checks each length against the
// others and the limits below, nothing more. A frame may have a sum: CRC32C of head and data, with
// zeros in the place of the sum.
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

/// Numbers are wire format.
enum class FrameType : std::uint16_t {
  put = 1,  ///< Data for the spans of a region. The header's id: the writer's number of the batch.
  get,      ///< Asks for the spans of a region, as `data` under the same id.
  data,     ///< Bytes from `position` on of all that was asked for.
  ended,    ///< Of a put: all of it has landed, and how.
  cancel,   ///< Of a get: no more of it is wanted.
};

inline constexpr std::size_t kMaxSpans = 4096;      ///< Of a get.
inline constexpr std::size_t kMaxPutSpans = 256;    ///< What a staging slot takes.
inline constexpr std::size_t kMinChunk = 4096;      ///< Data of a frame: what an address may say,
inline constexpr std::size_t kMaxChunk = 1u << 20;  ///< and what is taken whatever it says.
inline constexpr std::size_t kMaxText = 512;
inline constexpr std::size_t kMaxNotification = 4096;

struct Span {
  std::uint64_t offset = 0, bytes = 0;
};

struct Head {
  FrameType type = FrameType::put;
  std::uint64_t id = 0;
  std::uint64_t incarnation = 0;  ///< Of the sender's Engine.
  std::uint64_t serial = 0;       ///< put, get: of the region.
  Token token{};                  ///< The same.
  std::uint64_t position = 0;     ///< put, data: where in the batch its data begins.
  bool last = false;              ///< put, data: the batch has no bytes behind this.
  bool summed = false;            ///< put, get, data: it has a sum. get: what answers it has one.
  Code code = Code::ok;           ///< data: not ok: it is none. ended: how it went.
  std::vector<Span> spans{};      ///< put, get.
  std::string text{};             ///< ended: for people.
  /// put, the last of its batch: for the user there, once all of it has landed.
  std::vector<std::byte> notification{};
  /// put: the user there hears the notification behind so many that the writer has sent over the
  /// control connection. 0 without a notification.
  std::uint64_t after = 0;
  std::uint64_t data = 0;  ///< Bytes that follow; of put and data.
  // By decode(), of one that is summed:
  std::uint32_t sum = 0;          ///< As it came.
  std::uint32_t sum_of_head = 0;  ///< As it is here; the data's goes on from it.
};

/// Without the data. The sum of one that is summed is the head's alone.
std::vector<std::byte> encode(const Head& head);
/// Of an encoded head that is summed: the sum goes on with the first, or next, of its data.
void add_to_sum(std::span<std::byte> head, std::span<const std::byte> data) noexcept;

/// How much of what begins with `bytes` is its head. None: too few bytes to tell. corrupt: no
/// frame.
Result<std::optional<std::size_t>> head_bytes(std::span<const std::byte> bytes);
/// Of as many bytes as that. corrupt: a field that makes no sense.
Result<Head> decode(std::span<const std::byte> bytes);

/// Longer ones are no frames.
inline constexpr std::size_t kMaxHead = base::kFrameHeaderBytes + 64 + kMaxSpans * sizeof(Span);

}  // namespace linkspan::transport::tcp
