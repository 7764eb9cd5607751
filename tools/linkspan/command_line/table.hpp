// tools/linkspan/command_line/table.hpp - a plain text table, aligned by spaces, for people and for
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
    bool right = false;  ///< Numbers end below each other.
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  /// One text a column; what is missing is empty.
  void add(std::vector<std::string> cells);
  std::string text() const;

 private:
  std::string line(const std::vector<std::string>& cells,
                   const std::vector<std::size_t>& widths) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// Cut to `width` with "..." at its end.
std::string shortened(const std::string& text, std::size_t width);
/// Three or four digits: 393.1, 55.52, 0.984.
std::string number(double value);
/// "1GiB", "64MiB", "12345B": as ids of rows spell it.
std::string size_name(unsigned long long bytes);

}  // namespace linkspan::tool
