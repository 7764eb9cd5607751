// engine/diagnostics/report.hpp - texts for dumps and log lines.
//
// Off the path of a byte.
// Threads: pure functions and values.
// Invariants: none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "linkspan/types.hpp"

namespace linkspan::engine {

/// Quotes a name, with '?' for quotes and control characters: a peer may have chosen it.
std::string quoted(std::string_view name);
/// Formats a duration, as "12.3 s" or "4 ms".
std::string age_of(Duration age);
/// Formats a number as 16 hexadecimal digits.
std::string hex_of(std::uint64_t number);
/// Formats a GPU's UUID as nvidia-smi does.
std::string gpu_name(const GpuUuid& gpu);

/// Limits a list to kMax entries and counts the rest.
class Listing {
 public:
  static constexpr std::size_t kMax = 64;

  explicit Listing(const char* of) noexcept : of_(of) {}
  /// Called for each entry. Returns false if the entry is to be left out.
  bool room() noexcept { return ++seen_ <= kMax; }
  std::string rest() const;  ///< Returns " and 12 more", or nothing.
  std::string more() const;  ///< Returns the same as a line: "and 12 more transfers".

 private:
  const char* of_;
  std::size_t seen_ = 0;
};

}  // namespace linkspan::engine
