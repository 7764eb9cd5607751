// tools/linkspan/ps/exposition.hpp - reads the metrics of Engines, and merges those of several.
//
// The format is the text exposition format of Prometheus, version 0.0.4.
// Threads: values.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace linkspan::tool {

/// One line of metrics. Borrows the text.
struct Sample {
  std::string_view name;    ///< "linkspan_bytes_total"
  std::string_view labels;  ///< Between the braces; empty: none.
  double value = 0;

  /// Returns the value of a label, unescaped. Empty: there is no such label.
  std::string label(std::string_view key) const;
};

/// Parses a line. nullopt: a comment, or not of the format.
std::optional<Sample> parse_sample(std::string_view line);

/// Calls `each` with each line of the text, without its end.
template <class Each>
void for_each_line(std::string_view text, const Each& each) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    each(line);
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
}

/// The families of several Engines, each with one head.
class MergedMetrics {
 public:
  /// Adds the metrics of one Engine. Leaves out lines that are not of the format, and samples that
  /// are of another Engine.
  void add(std::string_view metrics);
  std::string text() const;

 private:
  struct Family {
    std::string help, type, samples;
  };

  struct Beginning {
    std::string_view before;  // engine="...",pid="..."
    std::string now;
  };
  Beginning beginning_of(std::string_view metrics);

  std::map<std::string, Family, std::less<>> families_;
  std::vector<std::string> order_;
  std::set<std::string> engines_;  // their Beginning::now
};

}  // namespace linkspan::tool
