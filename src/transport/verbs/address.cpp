#include "transport/verbs/address.hpp"

#include <algorithm>
#include <cstring>

#include "base/schema/verbs_generated.h"
#include "transport/verbs/message_type.hpp"

namespace linkspan::transport::verbs {
namespace {

constexpr std::size_t kMaxName = 128;

Status corrupt_verbs_address(const char* what) { return {Code::corrupt, Scope::request, what}; }

}  // namespace

std::uint32_t VerbsAddress::devices() const noexcept {
  std::uint32_t number = 0;
  for (const RailAddress& rail : rails) number = std::max(number, rail.device + 1);
  return number;
}

bool take_gid(const schema::ByteVector* from, IbvGid& to) noexcept {
  std::array<std::byte, sizeof to.raw> gid{};
  if (!schema::take(from, gid)) return false;
  std::memcpy(to.raw, gid.data(), gid.size());
  return true;
}

flatbuffers::Offset<schema::ByteVector> vector_of(flatbuffers::FlatBufferBuilder& out,
                                                  const IbvGid& gid) {
  return out.CreateVector(gid.raw, sizeof gid.raw);
}

std::vector<std::byte> encode(const VerbsAddress& address) {
  flatbuffers::FlatBufferBuilder out;
  std::vector<flatbuffers::Offset<schema::VerbsRail>> rails;
  for (const RailAddress& rail : address.rails) {
    const auto gid = vector_of(out, rail.gid);
    const auto name = out.CreateString(rail.name.substr(0, kMaxName));
    rails.push_back(schema::CreateVerbsRail(out, rail.device, gid, rail.lid, rail.link,
                                            static_cast<std::uint8_t>(rail.mtu), name));
  }
  const auto list = out.CreateVector(rails);
  out.Finish(schema::CreateVerbsAddress(out, address.incarnation, list));
  return finished(out);
}

Result<VerbsAddress> decode_address(std::span<const std::byte> bytes) {
  const auto* wire = schema::verified<schema::VerbsAddress>(bytes, kMaxRailsOfPeer + 1);
  if (wire == nullptr) return corrupt_verbs_address("malformed address");
  VerbsAddress out{.incarnation = wire->incarnation()};
  for (const schema::VerbsRail* each : *wire->rails()) {
    RailAddress rail{.device = each->device(),
                     .lid = each->lid(),
                     .link = static_cast<IbvLinkLayer>(each->link_layer()),
                     .mtu = static_cast<IbvMtu>(each->mtu()),
                     .name = schema::text_of(*each->name(), kMaxName)};
    if (!take_gid(each->gid(), rail.gid))
      return corrupt_verbs_address("a rail with a malformed GID");
    if (rail.device >= kMaxRailsOfPeer || rail.mtu < kMtu256 || rail.mtu > kMtu4096)
      return corrupt_verbs_address("a rail with a device or an MTU out of range");
    out.rails.push_back(std::move(rail));
  }
  if (out.rails.empty()) return corrupt_verbs_address("an address without a rail");
  return out;
}

bool may_join(const RailAddress& a, const RailAddress& b) noexcept {
  return a.link == b.link &&
         (a.link != kLinkInfiniband || a.gid.global.subnet_prefix == b.gid.global.subnet_prefix);
}

std::vector<RailPair> join_rails(std::span<const RailAddress> here,
                                 std::span<const RailAddress> there) {
  std::vector<RailPair> pairs;
  std::vector<bool> taken(there.size());
  for (std::size_t from = 0; from < here.size(); ++from) {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < there.size(); ++i) {
      const std::size_t to = (from + i) % there.size();
      if (!may_join(here[from], there[to])) continue;
      if (!best || (taken[*best] && !taken[to])) best = to;
    }
    if (!best) continue;
    taken[*best] = true;
    pairs.push_back({static_cast<std::uint32_t>(from), static_cast<std::uint32_t>(*best)});
  }
  return pairs;
}

}  // namespace linkspan::transport::verbs
