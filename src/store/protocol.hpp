// store/protocol.hpp - the wire format of PyTorch's TCPStore: requests and answers, in both
// dialects.
//
// The format was established from traces (tests/store_traces) of torch 2.11 and 1.13. A request is
// a byte for its kind, then its fields: numbers are little-endian, a key or value is a u64 length
// and that many bytes, a list a u64 count and that many elements. A client of the current dialect
// begins with `validate` and a magic number; the older dialect has no greeting and other numbers.
// Parsing is incremental: no byte is parsed twice, however slowly bytes arrive.
// Threads: externally synchronised.
// Invariants: no length from a peer exceeds Limits; memory grows with bytes received, never with a
// claimed count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "linkspan/status.hpp"
#include "linkspan/types.hpp"

namespace linkspan::store {

/// Limits of a server (docs/security.md). Those of a value and a request equal torch's server.
struct Limits {
  /// 8 KiB, and the prefix that keys have on the wire. torch's own server counts the prefix.
  std::size_t key = (std::size_t{8} << 10) + 1;
  std::size_t value = std::size_t{8} << 20;
  std::size_t fields = std::size_t{128} << 10;  ///< Keys or pairs of one request.
  std::size_t message = std::size_t{64} << 20;  ///< One request, or one answer.
  std::size_t entries = std::size_t{1} << 20;   ///< Keys and values in queues.
  std::size_t stored = std::size_t{1} << 30;    ///< What all of them allocate.
  std::size_t connections = 4096;
  std::size_t buffered = std::size_t{512} << 20;  ///< For all connections, what they wait for too.
  Duration silence = std::chrono::seconds(10);    ///< Without a byte before the first request.
  Duration stall = std::chrono::seconds(30);      ///< Without a byte of what has begun.
  Duration idle = std::chrono::seconds(60);       ///< Then a connection goes when room is needed.
};
/// Memory of a text of a request beside its bytes.
inline constexpr std::size_t kText = 64;
/// Bounds what a key with its value, a value of a queue or an awaited key allocates, without texts
/// that are too long to lie in their strings.
inline constexpr std::size_t kEntry = 224;
/// Returns what a string has allocated.
std::size_t heap_of(const std::string& text) noexcept;

enum class Dialect : std::uint8_t { current, older };

/// A key that `check` finds at servers of this library alone. Those of clients begin with "/".
inline constexpr const char* kOurServer = "linkspan/";

/// Values are wire format of the current dialect.
enum class Op : std::uint8_t {
  validate,
  set,
  compare_set,
  get,
  add,
  check,
  wait,
  num_keys,
  delete_key,
  append,
  multi_get,
  multi_set,
  cancel_wait,
  ping,
  queue_push,
  queue_pop,
  queue_length,
  list_keys,
};
inline constexpr std::size_t kOps = 18;
const char* name_of(Op op) noexcept;
/// Returns nullopt if that dialect has no such request.
std::optional<std::uint8_t> code_of(Op op, Dialect dialect) noexcept;

inline constexpr std::uint32_t kMagic = 0x3C85F7CE;
enum CheckAnswer : std::uint8_t { kReady = 0, kNotReady = 1 };
enum WaitAnswer : std::uint8_t { kStopWaiting = 0, kWaitCanceled = 1 };

/// The key, without torch's prefix, where torch counts the workers of a store.
inline constexpr const char* kWorkers = "init/";

struct Message {
  std::vector<std::string> keys{}, values{};
  std::int64_t number = 0;
};
struct Request : Message {
  Op op = Op::validate;
};

void put_number(std::string& to, std::uint64_t value, std::size_t bytes);
void put_text(std::string& to, std::string_view text);
/// Encodes a request. unsupported: that dialect has no such request.
Result<std::string> encode(const Request& request, Dialect dialect);

/// Received bytes that were not parsed yet.
class Buffer {
 public:
  void append(std::string_view bytes);
  std::size_t size() const noexcept { return bytes_.size() - at_; }
  std::size_t allocated() const noexcept { return heap_of(bytes_); }
  /// Consumes the next bytes, at most size(). Valid until append().
  std::string_view consume(std::size_t count) noexcept;
  std::string_view peek(std::size_t count) const noexcept;

 private:
  std::string bytes_;
  std::size_t at_ = 0;
};

/// Parses the fields of one request or answer as they arrive.
class MessageReader {
 public:
  static MessageReader of_request(Op op, const Limits& limits);
  /// `keys`: number of keys in the request, and the maximum of values in its answer.
  static MessageReader of_answer(Op op, std::size_t keys, const Limits& limits);

  /// Returns true once the message is complete. corrupt: it exceeds a limit; close the connection.
  Result<bool> read(Buffer& from);
  Message& message() noexcept { return message_; }
  /// Returns the bytes that count against Limits::message.
  std::size_t bytes() const noexcept { return bytes_; }
  std::size_t allocated() const noexcept;

 private:
  MessageReader(std::string_view shape, std::uint64_t repeat, const Limits& limits)
      : shape_(shape), left_(repeat), limits_(&limits) {}
  Result<bool> read_field(char kind, Buffer& from);
  Result<bool> read_text(std::vector<std::string>& into, std::size_t limit, Buffer& from);

  std::string_view shape_;  // as the table in protocol.cpp has it
  std::size_t at_ = 0;      // in shape_
  std::uint64_t left_;      // times that shape_ is still to come
  const Limits* limits_;
  std::optional<std::uint64_t> length_;  // of the text that is to come
  std::size_t bytes_ = 0, heap_ = 0;     // heap_: of the texts
  Message message_;
};

/// Parses the requests of one connection from its first byte.
class RequestParser {
 public:
  /// Without a dialect, detects it from the first bytes.
  explicit RequestParser(const Limits& limits, std::optional<Dialect> dialect = std::nullopt)
      : limits_(&limits), dialect_(dialect) {}

  void feed(std::string_view bytes) { buffer_.append(bytes); }
  /// Returns the next request, or nullopt if more bytes are needed. corrupt: not a client, or
  /// beyond the limits.
  Result<std::optional<Request>> next();
  /// nullopt: not detected yet.
  std::optional<Dialect> dialect() const noexcept { return dialect_; }
  /// Returns true while a request is incomplete.
  bool midway() const noexcept { return buffer_.size() != 0 || reader_.has_value(); }
  std::size_t allocated() const noexcept {
    return buffer_.allocated() + (reader_ ? reader_->allocated() : std::size_t{0});
  }

 private:
  bool greeted();

  const Limits* limits_;
  std::optional<Dialect> dialect_;
  Buffer buffer_;
  Op op_ = Op::validate;
  std::optional<MessageReader> reader_;  // of op_
};

}  // namespace linkspan::store
