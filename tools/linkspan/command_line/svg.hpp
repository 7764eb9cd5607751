// tools/linkspan/command_line/svg.hpp - draws bar charts and a matrix as SVG.
//
// Plain SVG 1.1 without external references.
// Threads: pure functions.
#pragma once

#include <string>
#include <vector>

namespace linkspan::tool {

struct ChartBar {
  std::string label, text;        ///< Left and right of the bar.
  double value = 0, ceiling = 0;  ///< A tick at the ceiling; zero: none.
};
/// Bars of one unit, scaled to the longest.
struct Chart {
  std::string title;
  std::vector<ChartBar> bars;
};
/// Draws the charts below each other.
std::string bars_svg(const std::string& title, const std::vector<Chart>& charts);

struct MatrixCell {
  std::string text, hint;  ///< In the cell, and its tooltip.
  double value = 0;        ///< Shades it.
};
/// Draws a matrix. The cell of rows[i] and columns[j] is cells[i * columns.size() + j].
std::string matrix_svg(const std::string& title, const std::vector<std::string>& rows,
                       const std::vector<std::string>& columns,
                       const std::vector<MatrixCell>& cells, const std::vector<std::string>& notes);

}  // namespace linkspan::tool
