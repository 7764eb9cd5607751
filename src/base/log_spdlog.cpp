// The one file that includes spdlog: its headers take 12 s to compile.
#define SPDLOG_LEVEL_NAMES \
  { "TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", "OFF" }
#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <memory>

#include "base/log.hpp"

namespace linkspan::base {
namespace {

spdlog::level::level_enum level_of(Level level) noexcept {
  switch (level) {
    case Level::debug:
      return spdlog::level::debug;
    case Level::info:
      return spdlog::level::info;
    case Level::warning:
      return spdlog::level::warn;
    case Level::error:
      return spdlog::level::err;
    case Level::off:
      break;
  }
  return spdlog::level::off;
}

}  // namespace

LogSink stderr_sink() {
  // Not in spdlog's registry: that is global, and the user's program may have its own.
  auto logger = std::make_shared<spdlog::logger>("linkspan",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("[%l] %v");
  logger->set_level(spdlog::level::trace);  // Log has chosen already
  logger->flush_on(spdlog::level::trace);
  // The copies of the std::function share the logger.
  return [logger](Level level, std::string_view text) {
    logger->log(level_of(level), spdlog::string_view_t(text.data(), text.size()));
  };
}

}  // namespace linkspan::base
