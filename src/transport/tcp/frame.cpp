#include "transport/tcp/frame.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/crc32c.hpp"
#include "base/untrusted_input.hpp"

namespace linkspan::transport::tcp {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

Status corrupt_frame(const std::string& what) { return {Code::corrupt, Scope::peer, what}; }

// Bits of the flags.
constexpr std::uint32_t kLast = 1, kSummed = 2, kOrdered = 4;

/// Returns the size of the fields after the header, by type. put: serial, token, position, spans,
/// flags, bytes of the notification, sum; then the spans, the count before the notification if
/// ordered, the notification. get: serial, token, spans, flags, sum, zero. data: position, flags,
/// code, sum, zero. ended: code, zero; then its text.
std::optional<std::size_t> fixed_bytes(FrameType type) {
  switch (type) {
    case FrameType::put:
      return 48;
    case FrameType::get:
      return 40;
    case FrameType::data:
      return 24;
    case FrameType::ended:
      return 8;
    case FrameType::cancel:
      return 0;
  }
  return std::nullopt;
}

class Writer {
 public:
  explicit Writer(std::vector<std::byte>& out) : out_(out) {}
  template <class T>
  void put(const T& value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    out_.insert(out_.end(), bytes, bytes + sizeof value);
  }

 private:
  std::vector<std::byte>& out_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}
  template <class T>
  T read() {
    T value{};
    std::memcpy(&value, left_.data(), sizeof value);
    left_ = left_.subspan(sizeof value);
    return value;
  }
  std::span<const std::byte> left() const { return left_; }

 private:
  std::span<const std::byte> left_;
};

std::uint32_t field(std::span<const std::byte> fields, std::size_t at) {
  std::uint32_t value = 0;
  std::memcpy(&value, fields.data() + at, sizeof value);
  return value;
}
/// Return counts from the fields of a put or get.
std::uint32_t spans_in(FrameType type, std::span<const std::byte> fields) {
  return field(fields, type == FrameType::put ? 32 : 24);
}
std::uint32_t notification_in(FrameType type, std::span<const std::byte> fields) {
  return type == FrameType::put ? field(fields, 40) : 0;
}
bool is_ordered(FrameType type, std::span<const std::byte> fields) {
  return type == FrameType::put && (field(fields, 36) & kOrdered) != 0;
}
/// Returns the position of the checksum in the head of a put, get or data.
std::size_t place_of_sum(FrameType type) {
  return base::kFrameHeaderBytes + (type == FrameType::put ? 44 : type == FrameType::get ? 32 : 16);
}

/// Returns the checksum of the head with zeros in its place.
std::uint32_t sum_of_head(std::span<const std::byte> head, std::size_t place) {
  constexpr std::array<std::byte, 4> kZeros{};
  const std::uint32_t before = base::crc32c(kZeros, base::crc32c(head.first(place)));
  return base::crc32c(head.subspan(place + kZeros.size()), before);
}

}  // namespace

std::vector<std::byte> encode(const Head& head) {
  std::vector<std::byte> out;
  out.reserve(base::kFrameHeaderBytes + 56 + head.spans.size() * sizeof(Span) + head.text.size() +
              head.notification.size());
  out.resize(base::kFrameHeaderBytes);
  Writer writer(out);
  const auto code = static_cast<std::uint32_t>(head.code);
  const auto spans = static_cast<std::uint32_t>(head.spans.size());
  const bool ordered = head.after != 0 && !head.notification.empty();
  const std::uint32_t flags = (head.last ? kLast : 0) | (head.summed ? kSummed : 0) |
                              (ordered ? kOrdered : 0),
                      no_sum = 0;
  const auto notification = static_cast<std::uint32_t>(head.notification.size());
  switch (head.type) {
    case FrameType::put:
      writer.put(head.serial), writer.put(head.token), writer.put(head.position);
      writer.put(spans), writer.put(flags);
      writer.put(notification), writer.put(no_sum);
      break;
    case FrameType::get:
      writer.put(head.serial), writer.put(head.token);
      writer.put(spans), writer.put(flags);
      writer.put(no_sum), writer.put(std::uint32_t{0});
      break;
    case FrameType::data:
      writer.put(head.position), writer.put(flags), writer.put(code);
      writer.put(no_sum), writer.put(std::uint32_t{0});
      break;
    case FrameType::ended:
      writer.put(code), writer.put(std::uint32_t{0});
      for (const char c : head.text.substr(0, kMaxText)) out.push_back(static_cast<std::byte>(c));
      break;
    case FrameType::cancel:
      break;
  }
  for (const Span& span : head.spans) writer.put(span.offset), writer.put(span.bytes);
  if (ordered) writer.put(head.after);
  out.insert(out.end(), head.notification.begin(), head.notification.end());
  const auto header = base::encode(
      {.length = static_cast<std::uint32_t>(out.size() - base::kFrameHeaderBytes + head.data),
       .op = static_cast<std::uint16_t>(head.type),
       .id = head.id,
       .incarnation = head.incarnation});
  std::ranges::copy(header, out.begin());
  if (head.summed) {
    const std::uint32_t sum = base::crc32c(out);
    std::memcpy(out.data() + place_of_sum(head.type), &sum, sizeof sum);
  }
  return out;
}

void add_to_sum(std::span<std::byte> head, std::span<const std::byte> data) noexcept {
  const auto type =
      static_cast<FrameType>(base::decode_header(head.first<base::kFrameHeaderBytes>()).op);
  const std::size_t place = place_of_sum(type);
  const std::uint32_t sum = base::crc32c(data, field(head, place));
  std::memcpy(head.data() + place, &sum, sizeof sum);
}

void FrameSum::add(const void* data, std::size_t bytes) noexcept {
  sum_ = base::crc32c({static_cast<const std::byte*>(data), bytes}, sum_);
}

Result<std::optional<std::size_t>> head_bytes(std::span<const std::byte> bytes) {
  using Needed = std::optional<std::size_t>;
  if (bytes.size() < base::kFrameHeaderBytes) return Needed();
  const auto header = base::decode_header(bytes.first<base::kFrameHeaderBytes>());
  const auto type = static_cast<FrameType>(header.op);
  const auto fixed = fixed_bytes(type);
  if (header.version < 1 || !fixed)
    return corrupt_frame("a frame of version " + std::to_string(header.version) + " and op " +
                         std::to_string(header.op));
  if (header.length < *fixed) return corrupt_frame("a frame that is too short for its op");
  const std::uint64_t rest = header.length - *fixed;
  std::uint64_t list = 0;
  if (type == FrameType::put || type == FrameType::get) {
    if (bytes.size() < base::kFrameHeaderBytes + *fixed) return Needed();
    const auto fields = bytes.subspan(base::kFrameHeaderBytes);
    const std::uint64_t spans = spans_in(type, fields),
                        notification = notification_in(type, fields);
    if (spans > (type == FrameType::put ? kMaxPutSpans : kMaxSpans))
      return corrupt_frame("a frame of " + std::to_string(spans) + " spans");
    if (notification > kMaxNotification)
      return corrupt_frame("a frame with a notification of " + std::to_string(notification) +
                           " bytes");
    list = spans * sizeof(Span) + notification;
    if (is_ordered(type, fields)) list += sizeof Head::after;
  } else if (type == FrameType::ended) {
    list = rest;
  }
  const bool has_data = type == FrameType::put || type == FrameType::data;
  if (list > rest || (has_data ? rest - list > kMaxChunk : rest != list) ||
      (type == FrameType::ended && rest > kMaxText))
    return corrupt_frame("a frame of " + std::to_string(header.length) + " bytes, op " +
                         std::to_string(header.op));
  return Needed(base::kFrameHeaderBytes + *fixed + list);
}

Result<Head> decode(std::span<const std::byte> bytes) {
  const auto header = base::decode_header(bytes.first<base::kFrameHeaderBytes>());
  Head head{.type = static_cast<FrameType>(header.op),
            .id = header.id,
            .incarnation = header.incarnation};
  head.data = header.length - (bytes.size() - base::kFrameHeaderBytes);
  Reader reader(bytes.subspan(base::kFrameHeaderBytes));
  std::uint32_t spans = 0, flags = 0, code = 0, notification = 0, zero = 0;
  switch (head.type) {
    case FrameType::put:
      head.serial = reader.read<std::uint64_t>();
      head.token = reader.read<Token>();
      head.position = reader.read<std::uint64_t>();
      spans = reader.read<std::uint32_t>();
      flags = reader.read<std::uint32_t>();
      notification = reader.read<std::uint32_t>();
      head.sum = reader.read<std::uint32_t>();
      break;
    case FrameType::get:
      head.serial = reader.read<std::uint64_t>();
      head.token = reader.read<Token>();
      spans = reader.read<std::uint32_t>();
      flags = reader.read<std::uint32_t>();
      head.sum = reader.read<std::uint32_t>();
      zero = reader.read<std::uint32_t>();
      break;
    case FrameType::data:
      head.position = reader.read<std::uint64_t>();
      flags = reader.read<std::uint32_t>();
      code = reader.read<std::uint32_t>();
      head.sum = reader.read<std::uint32_t>();
      zero = reader.read<std::uint32_t>();
      break;
    case FrameType::ended:
      code = reader.read<std::uint32_t>();
      (void)reader.read<std::uint32_t>();
      head.text = base::printable(
          {reinterpret_cast<const char*>(reader.left().data()), reader.left().size()});
      break;
    case FrameType::cancel:
      break;
  }
  const std::uint32_t known = head.type == FrameType::get   ? kSummed
                              : head.type == FrameType::put ? kLast | kSummed | kOrdered
                                                            : kLast | kSummed;
  if ((flags & ~known) != 0 || zero != 0) return corrupt_frame("a frame of flags that are unknown");
  const auto end = base::end_of_transfer(code);
  if (!end) return corrupt_frame("a frame of an unknown code");
  head.last = (flags & kLast) != 0;
  head.summed = (flags & kSummed) != 0;
  if (!head.summed && head.sum != 0) return corrupt_frame("a sum of a frame that has none");
  if (head.summed) head.sum_of_head = sum_of_head(bytes, place_of_sum(head.type));
  head.code = *end;
  std::uint64_t left = head.type == FrameType::get ? ~std::uint64_t{0} : head.data;
  head.spans.reserve(spans);
  for (std::uint32_t i = 0; i < spans; ++i) {
    const auto offset = reader.read<std::uint64_t>();
    const Span span{offset, reader.read<std::uint64_t>()};
    if (span.bytes == 0 || span.bytes > left)
      return corrupt_frame("a span without bytes, or of too many");
    left -= span.bytes;
    head.spans.push_back(span);
  }
  if (notification != 0 && !head.last) return corrupt_frame("a notification before the last frame");
  if ((flags & kOrdered) != 0) {
    head.after = reader.read<std::uint64_t>();
    if (head.after == 0 || notification == 0)
      return corrupt_frame("an order of a notification that is none");
  }
  head.notification.assign(reader.left().begin(), reader.left().begin() + notification);
  if (head.type == FrameType::put && left != 0)
    return corrupt_frame("data that belongs to no span");
  if (head.type == FrameType::get && spans == 0) return corrupt_frame("a question for nothing");
  if ((head.type == FrameType::put || head.type == FrameType::data) && head.data == 0 && !head.last)
    return corrupt_frame("a frame without data");
  return head;
}

}  // namespace linkspan::transport::tcp
