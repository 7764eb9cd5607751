#include "transport/verbs/gid.hpp"

#include <algorithm>
#include <cstdio>

namespace linkspan::transport::verbs {
namespace {

bool is_link_local(const IbvGid& gid) noexcept {
  return gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80;
}

/// Returns how well peers are reached by the entry; 0: not at all.
int rank(const IbvGidEntry& entry, IbvLinkLayer link) noexcept {
  if (is_unused(entry.gid)) return 0;
  if (link != kLinkEthernet) return entry.gid_type == kGidIb ? 1 : 0;
  const int address = is_ipv4_mapped(entry.gid) ? 3 : is_link_local(entry.gid) ? 1 : 2;
  if (entry.gid_type == kGidRoceV2) return 3 + address;
  return entry.gid_type == kGidRoceV1 ? address : 0;
}

}  // namespace

bool is_ipv4_mapped(const IbvGid& gid) noexcept {
  return std::ranges::all_of(gid.raw, gid.raw + 10, [](std::uint8_t b) { return b == 0; }) &&
         gid.raw[10] == 0xff && gid.raw[11] == 0xff;
}

bool is_unused(const IbvGid& gid) noexcept {
  return std::ranges::all_of(gid.raw, [](std::uint8_t b) { return b == 0; });
}

const IbvGidEntry* choose_gid(std::span<const IbvGidEntry> entries, IbvLinkLayer link) noexcept {
  const IbvGidEntry* best = nullptr;
  for (const IbvGidEntry& each : entries)
    if (rank(each, link) > (best != nullptr ? rank(*best, link) : 0)) best = &each;
  return best;
}

std::string to_string(const IbvGid& gid) {
  char text[40];
  if (is_ipv4_mapped(gid)) {
    std::snprintf(text, sizeof text, "%u.%u.%u.%u", unsigned{gid.raw[12]}, unsigned{gid.raw[13]},
                  unsigned{gid.raw[14]}, unsigned{gid.raw[15]});
    return text;
  }
  std::string all;
  for (int i = 0; i < 16; i += 2) {
    std::snprintf(text, sizeof text, "%s%02x%02x", i == 0 ? "" : ":", unsigned{gid.raw[i]},
                  unsigned{gid.raw[i + 1]});
    all += text;
  }
  return all;
}

}  // namespace linkspan::transport::verbs
