#include "base/log.hpp"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "base/mutex.hpp"
#include "base/repeated_line.hpp"
#include "base/untrusted_input.hpp"

namespace linkspan::base {
namespace {

constexpr char upper(char c) noexcept {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}

/// Number of lines of each kind that are written in a second; 64 is the number of peers of one job
/// that may end together.
constexpr std::array<unsigned, kRepeatedKinds> kAtOnce{1, 16, 64};

constexpr std::string_view what_of(std::size_t kind) {
  constexpr std::array<std::string_view, kRepeatedKinds> kWhat{
      "more connections were dropped before they had shown who they are",
      "more lines about what peers did wrong", "more lines about peers that came or went"};
  return kWhat[kind];
}

}  // namespace

std::optional<Level> parse_level(std::string_view text) noexcept {
  using enum Level;
  const auto is = [text](std::string_view name) {
    return std::ranges::equal(text, name, {}, upper);
  };
  for (Level level : {debug, info, warning, error, off})
    if (is(name_of(level))) return level;
  if (is("WARN")) return warning;
  return std::nullopt;
}

struct Log::Counts {
  struct Kind {
    RepeatedLine lines;
    Level level = Level::off;  // of the last line
  };
  struct Sum {
    std::size_t kind, lines;
    Level level;
  };

  explicit Counts(const Clock& c) : clock(c) {}

  const Clock& clock;
  Mutex mutex;
  std::array<Kind, kRepeatedKinds> kinds LINKSPAN_GUARDED_BY(mutex){Kind{RepeatedLine(kAtOnce[0])},
                                                                    Kind{RepeatedLine(kAtOnce[1])},
                                                                    Kind{RepeatedLine(kAtOnce[2])}};
};

Log::Log(Level threshold, LogSink sink, const Clock& clock)
    : threshold_(sink ? threshold : Level::off),
      sink_(std::move(sink)),
      counts_(std::make_shared<Counts>(clock)) {}

void Log::write(Level level, std::string_view text) const noexcept {
  if (!enabled(level)) return;
  try {
    sink_(level, printable(text));
  } catch (const std::exception&) {
    // No memory: the line is dropped.
  }
}

bool Log::count(Repeated kind, Level level) const noexcept {
  (void)write_counted();
  const MutexLock lock(counts_->mutex);
  Counts::Kind& of = counts_->kinds[static_cast<std::size_t>(kind)];
  of.level = level;
  return of.lines.count(counts_->clock.now());
}

std::optional<Time> Log::write_counted() const noexcept { return write_sums(false); }

void Log::write_all_counted() const noexcept { (void)write_sums(true); }

std::optional<Time> Log::write_sums(bool all) const noexcept {
  std::array<Counts::Sum, kRepeatedKinds> sums{};
  std::optional<Time> next;
  {
    const MutexLock lock(counts_->mutex);
    const Time now = counts_->clock.now();
    for (std::size_t i = 0; i < kRepeatedKinds; ++i) {
      Counts::Kind& of = counts_->kinds[i];
      sums[i] = {i, all ? of.lines.pop_all_suppressed() : of.lines.pop_suppressed(now), of.level};
      if (const auto due = of.lines.due()) next = next ? std::min(*next, *due) : *due;
    }
  }
  for (const auto& [kind, lines, level] : sums) {
    if (lines == 0 || !enabled(level)) continue;
    try {
      write(level, std::to_string(lines) + " " + std::string(what_of(kind)));
    } catch (const std::exception&) {
      // No memory: the line is dropped.
    }
  }
  return next;
}

}  // namespace linkspan::base
