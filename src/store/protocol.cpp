#include "store/protocol.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace linkspan::store {
namespace {

/// Memory that an empty Buffer keeps, and consumed bytes that it keeps before it moves the rest.
constexpr std::size_t kKept = std::size_t{64} << 10;

constexpr std::uint8_t kNone = 0xff;

/// Describes each request and its answer, in order: k a key, v a value, i 8 bytes, u 4, b 1;
/// # a count that repeats what follows; * repeats it once for each key of the request; o 8 bytes,
/// and what follows only if they are not zero.
struct RequestFormat {
  const char* name;
  std::uint8_t older;  // its number in the older dialect
  const char *request, *answer;
};
constexpr std::array<RequestFormat, kOps> kRequestFormats = {{
    {"validate", kNone, "u", ""},
    {"set", 0, "kv", ""},
    {"compare_set", 1, "kvv", "v"},
    {"get", 2, "k", "v"},
    {"add", 3, "ki", "i"},
    {"check", 4, "#k", "b"},
    {"wait", 5, "#k", "b"},
    {"num_keys", 6, "", "i"},
    {"delete_key", 8, "k", "i"},
    {"append", kNone, "kv", ""},
    {"multi_get", kNone, "#k", "*v"},
    {"multi_set", kNone, "#kv", ""},
    {"cancel_wait", kNone, "", "b"},
    {"ping", kNone, "u", "u"},
    {"queue_push", kNone, "kv", ""},
    {"queue_pop", kNone, "k", "ov"},
    {"queue_length", kNone, "k", "i"},
    {"list_keys", kNone, "", "#k"},
}};
const RequestFormat& format_of(Op op) { return kRequestFormats.at(static_cast<std::size_t>(op)); }

std::uint64_t number_in(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i > 0; --i)
    value = value << 8 | static_cast<std::uint8_t>(bytes[i - 1]);
  return value;
}

Status beyond(const char* what, std::uint64_t size, std::size_t limit) {
  return {Code::corrupt, Scope::peer,
          std::string(what) + " of " + std::to_string(size) + ", where " + std::to_string(limit) +
              " are allowed"};
}

std::optional<Op> op_of(std::uint8_t code, Dialect dialect) {
  // `validate` (0) is valid only as the first request.
  if (dialect == Dialect::current)
    return code == 0 || code >= kOps ? std::nullopt : std::optional(static_cast<Op>(code));
  const auto found = std::find_if(kRequestFormats.begin(), kRequestFormats.end(),
                                  [code](const RequestFormat& format) {
                                    return format.older != kNone && format.older == code;
                                  });
  if (found == kRequestFormats.end()) return std::nullopt;
  return static_cast<Op>(found - kRequestFormats.begin());
}

}  // namespace

const char* name_of(Op op) noexcept {
  const auto index = static_cast<std::size_t>(op);
  return index < kOps ? kRequestFormats[index].name : "unknown";
}

std::optional<std::uint8_t> code_of(Op op, Dialect dialect) noexcept {
  const auto index = static_cast<std::size_t>(op);
  if (index >= kOps) return std::nullopt;
  if (dialect == Dialect::current) return static_cast<std::uint8_t>(op);
  return kRequestFormats[index].older == kNone ? std::nullopt
                                               : std::optional(kRequestFormats[index].older);
}

void put_number(std::string& to, std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) to.push_back(static_cast<char>(value >> 8 * i & 0xff));
}

void put_text(std::string& to, std::string_view text) {
  put_number(to, text.size(), 8);
  to.append(text);
}

Result<std::string> encode(const Request& request, Dialect dialect) {
  const auto code = code_of(request.op, dialect);
  if (!code)
    return Status(Code::unsupported, Scope::request,
                  std::string("a server of torch 1.13 has no ") + name_of(request.op));
  std::string out(1, static_cast<char>(*code));
  std::string_view shape = format_of(request.op).request;
  std::size_t times = 1;
  if (shape.starts_with('#')) {
    shape.remove_prefix(1);
    times = request.keys.size();
    put_number(out, times, 8);
  }
  auto key = request.keys.begin();
  auto value = request.values.begin();
  for (; times > 0; --times)
    for (const char kind : shape) {
      if (kind == 'k') put_text(out, *key++);
      if (kind == 'v') put_text(out, *value++);
      if (kind == 'i') put_number(out, static_cast<std::uint64_t>(request.number), 8);
      if (kind == 'u') put_number(out, static_cast<std::uint64_t>(request.number), 4);
    }
  return out;
}

std::size_t heap_of(const std::string& text) noexcept {
  static const std::size_t in_place = std::string().capacity();
  return text.capacity() > in_place ? text.capacity() + 1 : 0;
}

void Buffer::append(std::string_view bytes) {
  if (at_ == bytes_.size() || at_ > kKept) {
    bytes_.erase(0, std::exchange(at_, 0));
    if (bytes_.empty() && bytes_.capacity() > kKept) bytes_.shrink_to_fit();
  }
  bytes_.append(bytes);
}

std::string_view Buffer::consume(std::size_t count) noexcept {
  const auto consumed = peek(count);
  at_ += consumed.size();
  return consumed;
}

std::string_view Buffer::peek(std::size_t count) const noexcept {
  return std::string_view(bytes_).substr(at_, count);
}

MessageReader MessageReader::of_request(Op op, const Limits& limits) {
  return {format_of(op).request, 1, limits};
}

MessageReader MessageReader::of_answer(Op op, std::size_t keys, const Limits& limits) {
  const std::string_view shape = format_of(op).answer;
  if (shape.starts_with('*')) return {shape.substr(1), keys, limits};
  return {shape, 1, limits};
}

std::size_t MessageReader::allocated() const noexcept {
  return heap_ + sizeof(std::string) * (message_.keys.capacity() + message_.values.capacity());
}

Result<bool> MessageReader::read(Buffer& from) {
  if (shape_.starts_with('#') || shape_.starts_with('o')) {
    if (from.size() < 8) return false;
    const std::uint64_t count = number_in(from.consume(8));
    const bool list = shape_.front() == '#';
    if (list && count > limits_->fields) return beyond("a list", count, limits_->fields);
    message_.number = static_cast<std::int64_t>(count);
    left_ = list ? count : count != 0 ? 1u : 0u;
    shape_.remove_prefix(1);
  }
  for (; left_ > 0; --left_, at_ = 0)
    for (; at_ < shape_.size(); ++at_) {
      auto whole = read_field(shape_[at_], from);
      if (!whole.ok() || !*whole) return whole;
      if (bytes_ > limits_->message) return beyond("a message", bytes_, limits_->message);
    }
  return true;
}

Result<bool> MessageReader::read_field(char kind, Buffer& from) {
  if (kind == 'k') return read_text(message_.keys, limits_->key, from);
  if (kind == 'v') return read_text(message_.values, limits_->value, from);
  const std::size_t bytes = kind == 'b' ? 1 : kind == 'u' ? 4 : 8;
  if (from.size() < bytes) return false;
  message_.number = static_cast<std::int64_t>(number_in(from.consume(bytes)));
  return true;
}

Result<bool> MessageReader::read_text(std::vector<std::string>& into, std::size_t limit,
                                      Buffer& from) {
  if (!length_) {
    if (from.size() < 8) return false;
    length_ = number_in(from.consume(8));
    if (*length_ > limit) return beyond("a text", *length_, limit);
  }
  if (from.size() < *length_) return false;
  const auto text = from.consume(static_cast<std::size_t>(*length_));
  length_.reset();
  bytes_ += text.size() + kText;
  heap_ += heap_of(into.emplace_back(text));
  return true;
}

bool RequestParser::greeted() {
  if (dialect_) return true;
  const auto first = buffer_.peek(5);
  if (first.empty()) return false;
  if (first[0] != 0) {
    dialect_ = Dialect::older;
  } else if (first.size() == 5) {  // in the older dialect it would be a `set` whose key has 970 MiB
    const bool current = number_in(first.substr(1)) == kMagic;
    dialect_ = current ? Dialect::current : Dialect::older;
    if (current) (void)buffer_.consume(5);
  }
  return dialect_.has_value();
}

Result<std::optional<Request>> RequestParser::next() {
  if (!greeted()) return std::optional<Request>();
  if (!reader_) {
    const auto first = buffer_.consume(1);
    if (first.empty()) return std::optional<Request>();
    const auto code = static_cast<std::uint8_t>(first[0]);
    const auto op = op_of(code, *dialect_);
    if (!op)
      return Status(Code::corrupt, Scope::peer,
                    "request " + std::to_string(code) + " is none of TCPStore's");
    op_ = *op;
    reader_ = MessageReader::of_request(op_, *limits_);
  }
  auto whole = reader_->read(buffer_);
  if (!whole.ok()) return whole.status();
  if (!*whole) return std::optional<Request>();
  Request request;
  static_cast<Message&>(request) = std::move(reader_->message());
  request.op = op_;
  reader_.reset();
  return std::optional(std::move(request));
}

}  // namespace linkspan::store
