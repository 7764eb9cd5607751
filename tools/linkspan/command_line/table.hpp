// tools/linkspan/command_line/table.hpp - a text table aligned by spaces, for people and for
// grep.
//
// Threads: a value.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace linkspan::tool {

class Table {
 public:
  struct Column {
    std::string title;
    bool right = false;  ///< Aligned to the right, for numbers.
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// Adds a row with one text a column; missing ones are empty.
  void add(std::vector<std::string> cells);
  std::string text() const;

 private:
  std::string line(const std::vector<std::string>& cells,
                   const std::vector<std::size_t>& widths) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// Cuts the text to `width`, ending in "...".
std::string shortened(const std::string& text, std::size_t width);
/// Formats a number with three or four digits: 393.1, 55.52, 0.984.
std::string number(double value);
/// Formats a size as in row ids: "1GiB", "64MiB", "12345B".
std::string size_name(unsigned long long bytes);

}  // namespace linkspan::tool
