// tools/linkspan/command_line/svg.hpp - pictures of what was measured: bars, and a matrix.
//
// Plain SVG 1.1 that any browser shows; nothing in it comes from elsewhere.
// Threads: pure functions.
#pragma once

#include <string>
#include <vector>

namespace linkspan::tool {

struct ChartBar {
  std::string label, text;        ///< Left of the bar, behind it.
  double value = 0, ceiling = 0;  ///< A tick at the ceiling; zero: none.
};
/// Bars of one unit, the longest as long as there is room.
struct Chart {
  std::string title;
  std::vector<ChartBar> bars;
};
/// One below the other.
std::string bars_svg(const std::string& title, const std::vector<Chart>& charts);

struct MatrixCell {
  std::string text, hint;  ///< In the cell; what the mouse shows.
  double value = 0;        ///< Shades it.
};
/// `cells` row by row: rows[i] to columns[j] is cells[i * columns.size() + j].
std::string matrix_svg(const std::string& title, const std::vector<std::string>& rows,
                       const std::vector<std::string>& columns,
                       const std::vector<MatrixCell>& cells, const std::vector<std::string>& notes);

}  // namespace linkspan::tool
