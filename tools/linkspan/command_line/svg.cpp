#include "tools/linkspan/command_line/svg.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>

namespace linkspan::tool {
namespace {

constexpr int kLine = 22, kLabels = 300, kBars = 420, kMargin = 16, kTexts = 270;
constexpr int kCell = 116, kCellHigh = 40, kSide = 90;

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

std::string text_at(int x, int y, const std::string& text, const char* style = "") {
  return "<text x=\"" + std::to_string(x) + "\" y=\"" + std::to_string(y) + "\" " + style + ">" +
         escaped(text) + "</text>\n";
}

std::string rectangle(int x, int y, int width, int height, const std::string& fill) {
  return "<rect x=\"" + std::to_string(x) + "\" y=\"" + std::to_string(y) + "\" width=\"" +
         std::to_string(width) + "\" height=\"" + std::to_string(height) + "\" fill=\"" + fill +
         "\"/>\n";
}

std::string picture(int width, int height, const std::string& title, const std::string& inside) {
  const std::string size =
      "width=\"" + std::to_string(width) + "\" height=\"" + std::to_string(height) + "\"";
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" " + size + " font-family=\"sans-serif\"" +
         " font-size=\"13\">\n" + rectangle(0, 0, width, height, "#ffffff") +
         text_at(kMargin, kMargin + 8, title, "font-weight=\"bold\"") + inside + "</svg>\n";
}

/// Returns a color from nearly white to blue, on a logarithmic scale.
std::string shade(double value, double most) {
  const double part = value > 0 && most > 0 ? std::max(0.0, 1 + std::log10(value / most) / 3) : 0;
  const auto channel = [part](double full) { return static_cast<int>(255 - part * (255 - full)); };
  std::array<char, 8> out{};
  std::snprintf(out.data(), out.size(), "#%02x%02x%02x", channel(110), channel(160), channel(225));
  return out.data();
}

}  // namespace

std::string bars_svg(const std::string& title, const std::vector<Chart>& charts) {
  std::string out;
  int y = kMargin + kLine;
  for (const auto& [name, bars] : charts) {
    double most = 0;
    for (const ChartBar& bar : bars) most = std::max({most, bar.value, bar.ceiling});
    const auto length = [most](double value) {
      return most > 0 ? static_cast<int>(kBars * value / most) : 0;
    };
    out += text_at(kMargin, y + 20, name, "fill=\"#555555\"");
    y += 28;
    for (const ChartBar& bar : bars) {
      out += text_at(kMargin, y + 14, bar.label);
      out += rectangle(kLabels, y + 3, length(bar.value), kLine - 8, "#4a86c8");
      if (bar.ceiling > 0)
        out += rectangle(kLabels + length(bar.ceiling), y + 1, 2, kLine - 4, "#c03030");
      out += text_at(kLabels + length(std::max(bar.value, bar.ceiling)) + 8, y + 14, bar.text);
      y += kLine;
    }
  }
  return picture(kLabels + kBars + kTexts, y + kMargin, title, out);
}

std::string matrix_svg(const std::string& title, const std::vector<std::string>& rows,
                       const std::vector<std::string>& columns,
                       const std::vector<MatrixCell>& cells,
                       const std::vector<std::string>& notes) {
  double most = 0;
  std::size_t widest = title.size();
  for (const MatrixCell& cell : cells) most = std::max(most, cell.value);
  for (const std::string& note : notes) widest = std::max(widest, note.size());
  const int left = kMargin + kSide, top = kMargin + 2 * kLine;
  std::string out;
  for (std::size_t j = 0; j < columns.size(); ++j)
    out += text_at(left + static_cast<int>(j) * kCell + 6, top - 6, columns[j]);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const int y = top + static_cast<int>(i) * kCellHigh;
    out += text_at(kMargin, y + 25, rows[i]);
    for (std::size_t j = 0; j < columns.size(); ++j) {
      const MatrixCell& cell = cells[i * columns.size() + j];
      const int x = left + static_cast<int>(j) * kCell;
      out += "<g><title>" + escaped(cell.hint) + "</title>\n" +
             rectangle(x + 1, y + 1, kCell - 2, kCellHigh - 2, shade(cell.value, most)) +
             text_at(x + 8, y + 25, cell.text) + "</g>\n";
    }
  }
  int y = top + static_cast<int>(rows.size()) * kCellHigh + kLine;
  for (const std::string& note : notes) {
    out += text_at(kMargin, y, note, "fill=\"#555555\"");
    y += kLine;
  }
  const int width =
      std::max(left + static_cast<int>(columns.size()) * kCell, static_cast<int>(widest) * 8);
  return picture(width + kMargin, y + kMargin, title, out);
}

}  // namespace linkspan::tool
