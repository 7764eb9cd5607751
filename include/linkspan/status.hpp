// linkspan/status.hpp - the one error type of the library.
//
// A Status says what failed (Code), how much is lost (Scope) and where. OK costs one null
// pointer; a failure allocates once; `no_resource`, the answer of back-pressure, never does.
// Threads: a Status is a value; share it like an int.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

/// What the shared library exports; all else is hidden.
#if defined(_WIN32)
#define LINKSPAN_API
#else
#define LINKSPAN_API __attribute__((visibility("default")))
#endif

namespace linkspan {

enum class Code : std::uint8_t {
  ok,
  invalid_argument,
  unsupported,
  no_resource,
  busy,
  pending,
  timed_out,
  canceled,
  not_found,
  permission_denied,
  truncated,
  unreachable,
  disconnected,
  corrupt,
  cuda,
  system,
  internal,
};

/// "timed_out" and so on, as logs and other languages spell it.
constexpr const char* name_of(Code code) noexcept {
  constexpr const char* kNames[] = {
      "ok",        "invalid_argument", "unsupported",  "no_resource", "busy",
      "pending",   "timed_out",        "canceled",     "not_found",   "permission_denied",
      "truncated", "unreachable",      "disconnected", "corrupt",     "cuda",
      "system",    "internal"};
  const auto index = static_cast<unsigned>(code);
  return index < sizeof kNames / sizeof *kNames ? kNames[index] : "unknown";
}

/// The largest thing that can no longer be used. It tells the caller what to rebuild.
enum class Scope : std::uint8_t { request, peer, transport, process };

/// The caller's file and line. Not std::source_location: clang-tidy 14 has none with libstdc++ 12.
struct Where {
  const char* file;
  int line;
  Where(const char* f = __builtin_FILE(), int l = __builtin_LINE()) : file(f), line(l) {}  // NOLINT
};

class [[nodiscard]] Status {
 public:
  Status() = default;  // OK
  Status(Code code, Scope scope, std::string what, Where at = {})
      : info_(std::make_shared<const Info>(Info{code, scope, std::move(what), at})) {}

  /// Not started; slots come back in progress(). One shared object: free to return in a hot loop.
  static const Status& no_resource() {
    static const Status busy(Code::no_resource, Scope::request, "no free slot");
    return busy;
  }

  bool ok() const noexcept { return info_ == nullptr; }
  Code code() const noexcept { return info_ ? info_->code : Code::ok; }
  Scope scope() const noexcept { return info_ ? info_->scope : Scope::request; }
  /// What failed, without the place; empty for OK.
  const std::string& what() const noexcept {
    static const std::string none;
    return info_ ? info_->what : none;
  }
  std::string to_string() const {
    if (ok()) return "ok";
    return std::string(name_of(info_->code)) + ": " + info_->what + " (" + info_->at.file + ":" +
           std::to_string(info_->at.line) + ")";
  }

 private:
  struct Info {
    Code code;
    Scope scope;
    std::string what;
    Where at;
  };
  std::shared_ptr<const Info> info_;
};

/// A T or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}        // NOLINT(google-explicit-constructor)
  Result(Status error) : status_(std::move(error)) {}  // NOLINT(google-explicit-constructor)
  bool ok() const noexcept { return value_.has_value(); }
  const Status& status() const& noexcept { return status_; }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace linkspan
