#include "base/untrusted_input.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace linkspan::base {
namespace {

struct CodePoint {
  std::uint32_t value = 0;
  std::size_t bytes = 0;  // 0: invalid UTF-8
};

CodePoint first_of(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  std::uint32_t value = lead & (0xffu >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    value = value << 6 | (byte(i) & 0x3fu);
  }
  constexpr std::array<std::uint32_t, 5> kMin{0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = value >= 0xd800 && value <= 0xdfff;
  if (value < kMin[bytes] || value > 0x10ffff || surrogate) return {};
  return {value, bytes};
}

bool shows(std::uint32_t point) noexcept {
  constexpr struct {
    std::uint32_t first, last;
  } kHidden[] = {{0, 0x1f},          {0x7f, 0x9f},        {0xad, 0xad},     {0x61c, 0x61c},
                 {0x180e, 0x180e},   {0x200b, 0x200f},    {0x2028, 0x202e}, {0x2060, 0x206f},
                 {0xfdd0, 0xfdef},   {0xfeff, 0xfeff},    {0xfff9, 0xfffb}, {0xfffe, 0xffff},
                 {0xe0000, 0xe0fff}, {0x10fffe, 0x10ffff}};
  return std::ranges::none_of(
      kHidden, [point](const auto& range) { return range.first <= point && point <= range.last; });
}

}  // namespace

std::string printable(std::string_view text, bool lines) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const CodePoint next = first_of(text);
    const bool stays =
        next.bytes != 0 && (shows(next.value) || (lines && next.value == std::uint32_t{'\n'}));
    const std::size_t taken = std::max<std::size_t>(next.bytes, 1);
    if (stays)
      out.append(text.substr(0, taken));
    else
      out.push_back('?');
    text.remove_prefix(taken);
  }
  return out;
}

std::optional<Code> final_code(std::uint64_t number) noexcept {
  const auto known = static_cast<std::uint64_t>(Code::internal);
  if (number > known || number == static_cast<std::uint64_t>(Code::pending)) return std::nullopt;
  return static_cast<Code>(number);
}

std::optional<Code> end_of_transfer(std::uint64_t number) noexcept {
  const auto code = final_code(number);
  return code == Code::no_resource ? std::nullopt : code;
}

}  // namespace linkspan::base
