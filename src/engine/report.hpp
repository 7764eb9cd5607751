// engine/report.hpp - the words that dumps and log lines are made of.
//
// Threads: pure functions and values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "linkspan/types.hpp"

namespace linkspan::engine {

/// In quotes, what a terminal would obey as '?': a peer has chosen the name.
std::string quoted(std::string_view name);
std::string age_of(Duration age);  ///< "12.3 s", "4 ms"
std::string hex_of(std::uint64_t number);
/// Of a GPU, as nvidia-smi spells it.
std::string gpu_name(const GpuUuid& gpu);

/// A list that ends after kMax entries with how many more there are.
class Listing {
 public:
  static constexpr std::size_t kMax = 64;

  explicit Listing(const char* of) noexcept : of_(of) {}
  /// For each entry; false: it is only counted.
  bool room() noexcept { return ++seen_ <= kMax; }
  std::string rest() const;  ///< " and 12 more", or nothing
  std::string more() const;  ///< the same as a line: "and 12 more transfers"

 private:
  const char* of_;
  std::size_t seen_ = 0;
};

}  // namespace linkspan::engine
