// Descriptor: its bytes are a magic, a version and a table of FlatBuffers.
#include <algorithm>

#include <string>
#include <string_view>

#include "base/schema/flat.hpp"
#include "base/schema/region_descriptor_generated.h"
#include "linkspan/descriptor.hpp"
#include "memory/descriptor.hpp"

namespace linkspan {
namespace {

constexpr std::uint16_t kDescriptorVersion = 1;
constexpr std::string_view kDescriptorMagic = "LSDESC";
/// The table is aligned, since 8 bytes are before it.
constexpr std::size_t kPrefixBytes = kDescriptorMagic.size() + sizeof kDescriptorVersion;
constexpr std::size_t kMaxAddressBytes = 16384;  // 64 addresses, the longest that a socket can have
constexpr std::size_t kMaxDescriptorBytes = kMaxAddressBytes + 2 * memory::kMaxNameBytes +
                                            memory::kMaxSet * sizeof(schema::DescribedRegion) +
                                            1024;  // the table's own
static_assert(kMaxDescriptorBytes <= 40960, "as the header says");

/// Returns why the values are none of describe(); empty if they are.
std::string refusal_of(const Descriptor& d) {
  const auto outside = [](const char* what, std::size_t is, std::size_t least, std::size_t most) {
    return std::string(what) + " has " + std::to_string(is) + " bytes, not " +
           std::to_string(least) + " to " + std::to_string(most);
  };
  if (d.address.empty() || d.address.size() > kMaxAddressBytes)
    return outside("its address", d.address.size(), 1, kMaxAddressBytes);
  if (d.engine.size() > memory::kMaxNameBytes)
    return outside("the Engine's name", d.engine.size(), 0, memory::kMaxNameBytes);
  if (d.name.empty() || d.name.size() > memory::kMaxNameBytes)
    return outside("the published name", d.name.size(), 1, memory::kMaxNameBytes);
  const std::size_t most = d.version == 0 ? 1 : memory::kMaxSet;
  if (d.regions.empty() || d.regions.size() > most)
    return "it has " + std::to_string(d.regions.size()) + " regions, not 1 to " +
           std::to_string(most);
  std::uint64_t total = 0;
  for (const DescribedRegion& each : d.regions) {
    if (static_cast<std::size_t>(each.kind) >= kMemoryKinds)
      return std::to_string(static_cast<unsigned>(each.kind)) + " is no kind of memory";
    if (each.bytes > ~total) return "its regions have more bytes than 64 bits count";
    total += each.bytes;
  }
  return {};
}

}  // namespace

std::vector<std::byte> Descriptor::serialize() const {
  flatbuffers::FlatBufferBuilder builder;
  std::vector<schema::DescribedRegion> list;
  list.reserve(regions.size());
  for (const DescribedRegion& each : regions)
    list.emplace_back(each.bytes, static_cast<std::uint8_t>(each.kind));
  // One after the other: equal Descriptors have equal bytes.
  const auto at = builder.CreateString(address);
  const auto its_engine = builder.CreateString(engine);
  const auto its_name = builder.CreateString(name);
  const auto its_regions = builder.CreateVectorOfStructs(list);
  builder.Finish(
      schema::CreateRegionDescriptor(builder, at, its_engine, its_name, version, its_regions));
  const auto magic = std::as_bytes(std::span(kDescriptorMagic));
  std::vector<std::byte> bytes(magic.begin(), magic.end());
  bytes.push_back(std::byte{kDescriptorVersion & 0xff});
  bytes.push_back(std::byte{kDescriptorVersion >> 8});
  const std::vector<std::byte> table = schema::finished(builder);
  bytes.insert(bytes.end(), table.begin(), table.end());
  return bytes;
}

Result<Descriptor> Descriptor::parse(std::span<const std::byte> bytes) {
  const auto refused = [&](const std::string& why, Code code = Code::corrupt, Where where = {}) {
    return Status(code, Scope::request,
                  "a Descriptor of " + std::to_string(bytes.size()) + " bytes: " + why, where);
  };
  if (bytes.size() > kMaxDescriptorBytes)
    return refused("the longest has " + std::to_string(kMaxDescriptorBytes));
  const auto magic = std::as_bytes(std::span(kDescriptorMagic));
  if (bytes.size() < kPrefixBytes || !std::ranges::equal(bytes.first(magic.size()), magic))
    return refused("it does not begin with \"LSDESC\": give what serialize() returned");
  const auto at = [&](std::size_t i) { return std::to_integer<unsigned>(bytes[i]); };
  const unsigned its_version = at(magic.size()) | at(magic.size() + 1) << 8;
  if (its_version != kDescriptorVersion)
    return refused("it has version " + std::to_string(its_version) + ", this release reads " +
                       std::to_string(kDescriptorVersion) + ": use one release on both sides",
                   Code::unsupported);
  const auto table = bytes.subspan(kPrefixBytes);
  // The verifier wants the table aligned, as new gives it.
  const std::vector<std::byte> copy(table.begin(), table.end());
  const auto* wire = schema::verified<schema::RegionDescriptor>(copy);
  if (wire == nullptr) return refused("it was cut or changed on its way");
  Descriptor descriptor{.address = wire->address()->str(),
                        .engine = wire->engine()->str(),
                        .name = wire->name()->str(),
                        .version = wire->version(),
                        .regions = {}};
  for (const schema::DescribedRegion* each : *wire->regions())
    descriptor.regions.push_back({each->bytes(), static_cast<MemoryKind>(each->kind())});
  if (const std::string why = refusal_of(descriptor); !why.empty()) return refused(why);
  return descriptor;
}

}  // namespace linkspan
