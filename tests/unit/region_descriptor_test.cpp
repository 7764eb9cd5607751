// Tests Descriptors: their bytes, how an Engine makes them, and lookups by them.
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "linkspan/descriptor.hpp"
#include "tests/unit/engine_pair.hpp"

namespace linkspan::test {
namespace region_descriptor_test {

using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

Descriptor one() {
  return {.address = "unix:/run/app/decode#7",
          .engine = "decode",
          .name = "kv",
          .version = 0,
          .regions = {{std::uint64_t{1} << 40, MemoryKind::device}}};
}

Descriptor longest() {
  return {.address = std::string(16384, 'a'),
          .engine = std::string(256, 'e'),
          .name = std::string(256, 'n'),
          .version = ~std::uint64_t{0},
          .regions = std::vector<DescribedRegion>(1024, {1, MemoryKind::managed})};
}

Status refusal(const Descriptor& descriptor) {
  return Descriptor::parse(descriptor.serialize()).status();
}

TEST(RegionDescriptor, ComesBackAsItWas) {
  for (const Descriptor& each : {one(), longest()}) {
    const Bytes bytes = each.serialize();
    EXPECT_LE(bytes.size(), 40960u);
    EXPECT_EQ(take(Descriptor::parse(bytes)), each);
    EXPECT_EQ(each.serialize(), bytes) << "equal Descriptors have equal bytes";
  }
}

TEST(RegionDescriptor, IsReadAtAnyAlignment) {
  Bytes shifted = one().serialize();
  shifted.insert(shifted.begin(), std::byte{0});
  EXPECT_EQ(take(Descriptor::parse(std::span(shifted).subspan(1))), one());
}

TEST(RegionDescriptor, RefusesOtherBytes_AndSaysWhatToGive) {
  const std::string_view pickle = "\x80\x04\x95 a pickle";
  for (const auto& bytes : {std::as_bytes(std::span(pickle)), std::span<const std::byte>()})
    EXPECT_TRUE(is(Descriptor::parse(bytes).status(), Code::corrupt,
                   "a Descriptor of " + std::to_string(bytes.size()) +
                       " bytes: it does not begin with \"LSDESC\": give what serialize()"));
  EXPECT_TRUE(is(Descriptor::parse(Bytes(1 << 20)).status(), Code::corrupt, "the longest has"));
}

TEST(RegionDescriptor, RefusesAnotherVersionOfItsFormat) {
  Bytes bytes = one().serialize();
  bytes[6] = std::byte{2};
  EXPECT_TRUE(is(Descriptor::parse(bytes).status(), Code::unsupported,
                 "it has version 2, this release reads 1: use one release on both sides"));
}

TEST(RegionDescriptor, RefusesWhatIsCutShort) {
  const Bytes whole = one().serialize();
  for (std::size_t i = 0; i < whole.size(); ++i) {
    const auto parsed = Descriptor::parse(std::span(whole).first(i));
    if (parsed.ok() && i + 8 > whole.size()) continue;  // the padding at its end
    EXPECT_TRUE(is(parsed.status(), Code::corrupt)) << i;
  }
}

TEST(RegionDescriptor, SurvivesAnyDamage) {  // what is not refused keeps the limits
  const Bytes whole = one().serialize();
  for (std::size_t i = 0; i < whole.size(); ++i) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      Bytes bytes = whole;
      bytes[i] ^= std::byte{1} << bit;
      const auto parsed = Descriptor::parse(bytes);
      EXPECT_TRUE(!parsed.ok() || refusal(*parsed).ok()) << i;
    }
  }
}

TEST(RegionDescriptor, RefusesWhatPassesALimit) {
  const auto refused = [](const Descriptor& descriptor, std::string_view text) {
    EXPECT_TRUE(is(refusal(descriptor), Code::corrupt, text));
  };
  Descriptor d = one();
  d.address.clear();
  refused(d, "its address has 0 bytes, not 1 to 16384");
  d.address.resize(16385, 'a');
  refused(d, "its address has 16385 bytes");
  d = one();
  d.engine.resize(257, 'e');
  refused(d, "the Engine's name has 257 bytes, not 0 to 256");
  d = one();
  d.name.clear();
  refused(d, "the published name has 0 bytes, not 1 to 256");
  d = one();
  d.regions.clear();
  refused(d, "it has 0 regions, not 1 to 1");
  d.regions.resize(2);
  refused(d, "it has 2 regions, not 1 to 1");
  d.version = 1;
  EXPECT_TRUE(refusal(d).ok());
  d.regions.resize(1025);
  refused(d, "it has 1025 regions, not 1 to 1024");
  d = one();
  d.regions.front().kind = static_cast<MemoryKind>(kMemoryKinds);
  refused(d, "5 is no kind of memory");
  d = one();
  d.version = 1;
  d.regions.push_back({~std::uint64_t{0}, MemoryKind::host});
  refused(d, "more bytes than 64 bits count");
}

class Describe : public EnginePair {
 protected:
  Region publish(const std::string& name, std::uint64_t bytes) {
    const Region region = take(far_.allocate_shared(bytes));
    must(far_.publish(name, region));
    return region;
  }
  Engine other_ = take(Engine::open({.name = "other", .use_gpu = false}));
};

TEST_F(Describe, NamesOneRegion_AndLookupImportsIt) {
  publish("kv", 4096);
  const Descriptor described = take(far_.describe("kv"));
  EXPECT_EQ(described.address, far_.addresses());
  EXPECT_EQ(described.engine, "far");
  EXPECT_EQ(described.name, "kv");
  EXPECT_EQ(described.version, 0u);
  EXPECT_EQ(described.regions, (std::vector<DescribedRegion>{{4096, MemoryKind::shared}}));

  const LookupResult found =
      take(other_.lookup(take(Descriptor::parse(described.serialize())), 10s));
  EXPECT_EQ(found.peer.name(), "far");
  EXPECT_EQ(found.regions.version, 0u);
  ASSERT_EQ(found.regions.regions.size(), 1u);
  EXPECT_EQ(found.regions.regions[0].bytes(), 4096u);
  EXPECT_EQ(found.regions.regions[0].peer(), found.peer.id());
}

TEST_F(Describe, NamesASet_AndLookupImportsTheNewestVersion) {
  const std::array regions = {take(far_.allocate_shared(4096)), take(far_.allocate_shared(8192))};
  const std::uint64_t first = take(far_.publish("set", std::span(regions).first(1)));
  const Descriptor of_one = take(far_.describe("set"));
  EXPECT_EQ(of_one.version, first) << "a set of one region is a set";
  const std::uint64_t second = take(far_.publish("set", regions));
  const Descriptor described = take(far_.describe("set"));
  EXPECT_EQ(described.version, second);
  EXPECT_EQ(described.regions,
            (std::vector<DescribedRegion>{{4096, MemoryKind::shared}, {8192, MemoryKind::shared}}));
  for (const Descriptor& each : {of_one, described}) {
    const LookupResult found = take(other_.lookup(each, 10s));
    EXPECT_EQ(found.regions.version, second);
    EXPECT_EQ(found.regions.regions.size(), 2u);
  }
}

TEST_F(Describe, TakesARegionForOne_WhenItWasASetOfOneBefore) {
  const Region region = take(far_.allocate_shared(4096));
  (void)take(far_.publish("kv", std::span(&region, 1)));
  must(far_.publish("kv", region));
  EXPECT_EQ(take(far_.describe("kv")).version, 0u);
}

TEST_F(Describe, ChangesNothing_AndRefusesWhatIsNotPublished) {
  EXPECT_TRUE(
      is(far_.describe("kv").status(), Code::not_found, "no region is published as \"kv\""));
  const Region region = publish("kv", 4096);
  (void)take(far_.describe("kv"));
  must(far_.deregister(region));
  EXPECT_TRUE(is(far_.describe("kv").status(), Code::not_found, "\"kv\""));
}

TEST_F(Describe, NeedsAnEngineThatListens) {
  must(near_.publish("kv", take(near_.allocate_shared(4096))));
  EXPECT_TRUE(is(near_.describe("kv").status(), Code::invalid_argument,
                 "no process can connect to the Engine of \"kv\": listen() first"));
}

TEST_F(Describe, LeadsSeveralThreadsToOneConnection) {
  constexpr std::size_t kThreads = 8;
  publish("kv", 4096);
  const Descriptor described = take(far_.describe("kv"));
  std::array<std::uint64_t, kThreads> ids{};
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t& id : ids)
      threads.emplace_back([&] { id = take(other_.lookup(described, 20s)).peer.id(); });
  }
  for (const std::uint64_t id : ids) EXPECT_EQ(id, ids[0]);
  EXPECT_EQ(other_.peers().size(), 1u);
}

TEST_F(Describe, LeadsToANewConnection_WhenThePeerWasClosed) {
  publish("kv", 4096);
  const Descriptor described = take(far_.describe("kv"));
  const Peer before = take(other_.lookup(described, 10s)).peer;
  must(before.close());
  const Peer after = take(other_.lookup(described, 10s)).peer;
  EXPECT_NE(after.id(), before.id());
  EXPECT_EQ(take(other_.lookup(described, 10s)).peer.id(), after.id());
}

TEST_F(Describe, OfAnEngineThatHasEnded_IsUnreachable_ForEachThread) {
  publish("kv", 4096);
  const Descriptor described = take(far_.describe("kv"));
  must(far_.close(10s));
  std::array<Code, 3> codes{};
  {
    std::vector<std::jthread> threads;
    for (Code& code : codes)
      threads.emplace_back([&] { code = other_.lookup(described, 100ms).status().code(); });
  }
  for (const Code code : codes)
    EXPECT_TRUE(code == Code::unreachable || code == Code::timed_out) << name_of(code);
}

TEST_F(Describe, LookupEnds_WhenItsEngineIsClosed) {
  Descriptor nobody = one();
  nobody.address = "unix:/nonexistent/socket";
  std::array<Code, 2> codes{};
  {
    std::vector<std::jthread> threads;
    for (Code& code : codes)
      threads.emplace_back([&] { code = other_.lookup(nobody, 60s).status().code(); });
    must(other_.close(10s));
  }
  for (const Code code : codes) EXPECT_NE(code, Code::ok);
}

TEST_F(Describe, LookupRefusesAWrongAddress) {
  Descriptor wrong = one();
  wrong.address = "tcp:127.0.0.1:0";
  EXPECT_TRUE(
      is(other_.lookup(wrong, 10s).status(), Code::invalid_argument, "nobody is at port 0"));
}

}  // namespace region_descriptor_test
}  // namespace linkspan::test
