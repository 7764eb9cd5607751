// linkspan/status.hpp - Status and Result<T>, the error types of every call of the library.
//
// A Status names what failed (Code), the largest thing that can no longer be used (Scope), a text
// and the place in the source. It is returned unchanged from where the failure was detected.
// Threads: a Status is an immutable value; copies may be used by any thread.
// Invariants: OK is a null pointer. A failure allocates once; `no_resource`, which reports
// back-pressure, never does.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

/// Marks what the shared library exports; all other symbols are hidden.
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

/// Returns the code as logs and other languages spell it: "timed_out".
constexpr const char* name_of(Code code) noexcept {
  constexpr const char* kNames[] = {
      "ok",        "invalid_argument", "unsupported",  "no_resource", "busy",
      "pending",   "timed_out",        "canceled",     "not_found",   "permission_denied",
      "truncated", "unreachable",      "disconnected", "corrupt",     "cuda",
      "system",    "internal"};
  const auto index = static_cast<unsigned>(code);
  return index < sizeof kNames / sizeof *kNames ? kNames[index] : "unknown";
}

/// Names the largest thing that can no longer be used, and so what the caller must rebuild.
enum class Scope : std::uint8_t { request, peer, transport, process };

/// Records the caller's file and line. std::source_location is not used because clang-tidy 14 lacks
/// it with libstdc++ 12.
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

  /// Returns the Status of work that was not started: try again after progress(). It is one shared
  /// object, so returning it does not allocate.
  static const Status& no_resource() {
    static const Status busy(Code::no_resource, Scope::request, "no free slot");
    return busy;
  }

  bool ok() const noexcept { return info_ == nullptr; }
  Code code() const noexcept { return info_ ? info_->code : Code::ok; }
  Scope scope() const noexcept { return info_ ? info_->scope : Scope::request; }
  /// Returns the text without the place; empty for OK.
  const std::string& what() const noexcept {
    static const std::string none;
    return info_ ? info_->what : none;
  }
  /// Returns "CODE: TEXT (FILE:LINE)", or "ok".
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

/// Is thrown by Result::value() if there is none. what() is the Status as text.
class LINKSPAN_API BadResultAccess : public std::runtime_error {
 public:
  explicit BadResultAccess(Status error)
      : std::runtime_error(error.to_string()), error_(std::move(error)) {}
  const Status& error() const noexcept { return error_; }

 private:
  Status error_;
};

/// Contains a T, or the Status that explains why there is none, as std::expected of C++23 does.
/// Check it before `*` and `->`, which are undefined after a failure, or take value().
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}        // NOLINT(google-explicit-constructor)
  Result(Status error) : status_(std::move(error)) {}  // NOLINT(google-explicit-constructor)
  bool ok() const noexcept { return value_.has_value(); }
  explicit operator bool() const noexcept { return ok(); }
  const Status& status() const& noexcept { return status_; }
  const Status& error() const& noexcept { return status_; }  ///< As status(); ok without a failure.
  /// Returns the T. Throws BadResultAccess after a failure.
  T& value() & { return check(), *value_; }
  const T& value() const& { return check(), *value_; }
  T&& value() && { return check(), *std::move(value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  void check() const {
    if (!ok()) throw BadResultAccess(status_);
  }

  std::optional<T> value_;
  Status status_;
};

}  // namespace linkspan
