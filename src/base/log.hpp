// base/log.hpp - what the library tells the operator: a level, one line of text, and where it goes.
//
// Whoever detects a failure first logs it, once; callers only pass the Status on. A Log is handed
// down by reference from the Engine, so two Engines of a process may log to different places.
// Off the path of a byte: ask enabled() before a text is put together.
// Threads: immutable after construction; the sink is called by any thread and sees to itself.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

namespace linkspan::base {

enum class Level : std::uint8_t { debug, info, warning, error, off };

/// "WARNING" and so on, as lines and options spell it.
constexpr std::string_view name_of(Level level) noexcept {
  constexpr std::string_view kNames[] = {"DEBUG", "INFO", "WARNING", "ERROR", "OFF"};
  return kNames[static_cast<unsigned>(level)];
}

/// Any case; WARN means WARNING.
std::optional<Level> parse_level(std::string_view text) noexcept;

using LogSink = std::function<void(Level, std::string_view)>;

class Log {
 public:
  /// What is below `threshold` is dropped; `off` drops all. No sink drops all as well.
  Log(Level threshold, LogSink sink);

  bool enabled(Level level) const noexcept { return level >= threshold_ && level < Level::off; }
  /// One line: a text may quote a peer, so it is made printable().
  void write(Level level, std::string_view text) const;

 private:
  Level threshold_;
  LogSink sink_;
};

/// Lines "[WARNING] text" on stderr, each whole. Any thread. Defined in log_spdlog.cpp.
LogSink stderr_sink();

}  // namespace linkspan::base
