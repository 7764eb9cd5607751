#include "engine/diagnostics/report.hpp"

#include <algorithm>
#include <array>
#include <chrono>

namespace linkspan::engine {
namespace {

constexpr char kDigits[] = "0123456789abcdef";

}  // namespace

std::string quoted(std::string_view name) {
  std::string text(name);
  std::replace_if(
      text.begin(), text.end(),
      [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127 || c == '"'; }, '?');
  return '"' + text + '"';
}

std::string age_of(Duration age) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(age).count();
  if (ms < 10000) return std::to_string(ms) + " ms";
  return std::to_string(ms / 1000) + "." + std::to_string(ms / 100 % 10) + " s";
}

std::string hex_of(std::uint64_t number) {
  std::string text(16, '0');
  for (auto digit = text.rbegin(); digit != text.rend(); ++digit, number >>= 4)
    *digit = kDigits[number & 15];
  return text;
}

std::string gpu_name(const GpuUuid& gpu) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < gpu.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += kDigits[std::to_integer<unsigned>(gpu[i]) >> 4];
    text += kDigits[std::to_integer<unsigned>(gpu[i]) & 15];
  }
  return text;
}

std::string Listing::rest() const {
  return seen_ <= kMax ? std::string() : " and " + std::to_string(seen_ - kMax) + " more";
}

std::string Listing::more() const {
  return seen_ <= kMax ? std::string()
                       : "and " + std::to_string(seen_ - kMax) + " more " + of_ + "\n";
}

}  // namespace linkspan::engine
