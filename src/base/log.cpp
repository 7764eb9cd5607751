#include "base/log.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/peer_words.hpp"

namespace linkspan::base {
namespace {

constexpr char upper(char c) noexcept {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
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

Log::Log(Level threshold, LogSink sink)
    : threshold_(sink ? threshold : Level::off), sink_(std::move(sink)) {}

void Log::write(Level level, std::string_view text) const {
  if (!enabled(level)) return;
  sink_(level, printable(text));
}

}  // namespace linkspan::base
