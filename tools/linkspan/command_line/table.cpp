#include "tools/linkspan/command_line/table.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

namespace linkspan::tool {

void Table::add(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  std::vector<std::size_t> widths(columns_.size());
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    widths[i] = titles[i].size();
    for (const auto& row : rows_) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out = line(titles, widths);
  for (const auto& row : rows_) out += line(row, widths);
  return out;
}

std::string Table::line(const std::vector<std::string>& cells,
                        const std::vector<std::size_t>& widths) const {
  std::string out;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    const std::string gap(widths[i] - cells[i].size(), ' ');
    if (i != 0) out += "  ";
    out += columns_[i].right ? gap + cells[i] : cells[i] + gap;
  }
  out.erase(out.find_last_not_of(' ') + 1);
  return out + '\n';
}

std::string shortened(const std::string& text, std::size_t width) {
  if (text.size() <= width) return text;
  return text.substr(0, width - 3) + "...";
}

std::string number(double value) {
  std::array<char, 64> text{};
  const int digits = value >= 100 ? 1 : value >= 10 ? 2 : 3;
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

std::string size_name(unsigned long long bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB"};
  std::size_t unit = 0;
  for (; bytes != 0 && bytes % 1024 == 0 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  return std::to_string(bytes) + kUnits[unit];
}

}  // namespace linkspan::tool
