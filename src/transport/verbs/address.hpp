// transport/verbs/address.hpp - what the handshake says about an Engine's verbs transport, decoded,
// and which rails of two Engines are joined.
//
// The bytes come from a peer: decode_address() verifies their form.
// Threads: values.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/schema/flat.hpp"
#include "transport/verbs/device.hpp"

namespace linkspan::transport::verbs {

/// A rail as its peers see it.
struct RailAddress {
  std::uint32_t device = 0;  ///< Place of its remote key in a grant.
  IbvGid gid{};
  std::uint16_t lid = 0;
  IbvLinkLayer link = kLinkUnspecified;
  IbvMtu mtu = kMtu1024;
  std::string name{};  ///< For people.
};

struct VerbsAddress {
  std::uint64_t incarnation = 0;
  std::vector<RailAddress> rails{};

  std::uint32_t devices() const noexcept;  ///< Number of them, at most.
};

inline constexpr std::size_t kMaxRailsOfPeer = 64;

/// Reads a peer's GID. Returns false if it is malformed.
bool take_gid(const schema::ByteVector* from, IbvGid& to) noexcept;
flatbuffers::Offset<schema::ByteVector> vector_of(flatbuffers::FlatBufferBuilder& out,
                                                  const IbvGid& gid);

std::vector<std::byte> encode(const VerbsAddress& address);
Result<VerbsAddress> decode_address(
    std::span<const std::byte> bytes);  ///< Returns `corrupt` for malformed bytes.

/// Returns whether the rails are of the same kind, so that one may reach the other.
bool may_join(const RailAddress& here, const RailAddress& there) noexcept;

/// Two rails between which one side sends requests.
struct RailPair {
  std::uint32_t from = 0, to = 0;
};
/// Joins each rail here with one there of the same kind: the first one with the first one and so
/// on, because cables of many clusters join only rails of the same number. Several have the same
/// one there if there are fewer.
std::vector<RailPair> join_rails(std::span<const RailAddress> here,
                                 std::span<const RailAddress> there);

}  // namespace linkspan::transport::verbs
