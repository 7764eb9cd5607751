// base/log.hpp - what the library reports to the operator: a level, one line of text, and where it
// goes.
//
// The code that detects a failure logs it, once; callers only pass the Status on. A Log is handed
// down by reference from the Engine, so two Engines of a process may log to different places. Off
// the path of a byte: ask enabled() before a text is put together.
// Threads: any thread. The sink is called by any thread and sees to itself; no lock of a Log is
// held meanwhile, but callers hold theirs, so a sink neither waits nor calls what is not ours: a
// sink that may do either is called by a LogQueue.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "base/clock.hpp"

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

/// Kinds of lines that others cause at will. In each second the first few of a kind are written and
/// the others only counted.
enum class Repeated : std::uint8_t {
  stranger,  ///< A connection ended before its handshake.
  peer,      ///< A peer did something wrong, or was dropped for it.
  life,      ///< A peer connected or ended.
};
inline constexpr std::size_t kRepeatedKinds = 3;

class Log {
 public:
  /// Drops lines below `threshold`, and all of them with `off` or without a sink. `clock`
  /// outlives it, and measures the seconds of repeated lines.
  Log(Level threshold, LogSink sink, const Clock& clock = Clock::steady());

  bool enabled(Level level) const noexcept { return level >= threshold_ && level < Level::off; }
  /// Writes one line, made printable() because it may quote a peer. Dropped if memory is exhausted.
  void write(Level level, std::string_view text) const noexcept;

  /// As write() of what `text()` returns, or only counted. May throw what `text()` throws.
  template <class Text>
  void write_repeated(Repeated kind, Level level, const Text& text) const {
    if (enabled(level) && count(kind, level)) write(level, text());
  }
  /// Writes how many lines were only counted in seconds that are over. Returns when there will be
  /// more to write.
  std::optional<Time> write_counted() const noexcept;
  /// Writes the same for seconds that are not over yet.
  void write_all_counted() const noexcept;

 private:
  struct Counts;
  bool count(Repeated kind, Level level) const noexcept;
  std::optional<Time> write_sums(bool all) const noexcept;

  Level threshold_;
  LogSink sink_;
  std::shared_ptr<Counts> counts_;  // shared by the copies
};

/// Writes lines "[WARNING] text" to stderr, each whole, and never waits for its reader. A line that
/// stderr has no room for waits for it on a LogQueue; the end of the last copy of the sink gives
/// these half a second. Any thread.
LogSink stderr_sink();

}  // namespace linkspan::base
