// Tests what the verbs transport decides by itself: GIDs, options, rails, keys and their texts.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/take.hpp"
#include "transport/verbs/access_table.hpp"
#include "transport/verbs/address.hpp"
#include "transport/verbs/gid.hpp"
#include "transport/verbs/memory_keys.hpp"
#include "transport/verbs/options.hpp"

namespace linkspan::transport::verbs {
namespace verbs_rules_test {

using test::take;

IbvGid gid_of(std::initializer_list<int> first, std::initializer_list<int> last) {
  IbvGid gid{};
  std::size_t i = 0;
  for (const int byte : first) gid.raw[i++] = static_cast<std::uint8_t>(byte);
  i = sizeof gid.raw - last.size();
  for (const int byte : last) gid.raw[i++] = static_cast<std::uint8_t>(byte);
  return gid;
}
const IbvGid kIpv4 = gid_of({}, {0xff, 0xff, 10, 0, 0, 1}), kRouted = gid_of({0x20, 1}, {7}),
             kLocal = gid_of({0xfe, 0x80}, {9});

IbvGidEntry entry(std::uint32_t index, const IbvGid& gid, std::uint32_t type) {
  return {.gid = gid, .gid_index = index, .port_num = 1, .gid_type = type, .ndev_ifindex = 1};
}

int chosen(const std::vector<IbvGidEntry>& entries, IbvLinkLayer link) {
  const IbvGidEntry* best = choose_gid(entries, link);
  return best == nullptr ? -1 : static_cast<int>(best->gid_index);
}

TEST(VerbsGid, TakesRoceV2WithAnIpv4AddressFirst) {
  std::vector<IbvGidEntry> table{entry(0, kLocal, kGidRoceV1), entry(1, kLocal, kGidRoceV2),
                                 entry(2, kIpv4, kGidRoceV1),  entry(3, kRouted, kGidRoceV2),
                                 entry(4, kIpv4, kGidRoceV2),  entry(5, kIpv4, kGidRoceV2)};
  for (const int best : {4, 5, 3, 1, 2, 0}) {
    EXPECT_EQ(chosen(table, kLinkEthernet), best);
    std::erase_if(table,
                  [&](const auto& each) { return static_cast<int>(each.gid_index) == best; });
  }
  EXPECT_EQ(chosen(table, kLinkEthernet), -1);
  EXPECT_EQ(chosen({entry(0, IbvGid{}, kGidRoceV2)}, kLinkEthernet), -1) << "not in use";
}

TEST(VerbsGid, TakesTheFirstOfInfiniBand) {
  EXPECT_EQ(chosen({entry(0, kLocal, kGidIb), entry(1, kRouted, kGidIb)}, kLinkInfiniband), 0);
  EXPECT_EQ(chosen({entry(0, IbvGid{}, kGidIb)}, kLinkInfiniband), -1);
}

TEST(VerbsGid, IsWrittenAsPeopleKnowIt) {
  EXPECT_EQ(to_string(kIpv4), "10.0.0.1");
  EXPECT_EQ(to_string(kLocal), "fe80:0000:0000:0000:0000:0000:0000:0009");
}

Result<VerbsSettings> settings(const std::map<std::string, std::string>& set) {
  base::Options options;
  options.transport = set;
  return VerbsSettings::read(options);
}

TEST(VerbsSettings, HasDefaults) {
  EXPECT_TRUE(take(settings({})).none) << "main.cpp of the tests says so";
  const VerbsSettings found = take(settings({{"verbs.mtu", ""}, {"verbs.devices", "auto"}}));
  EXPECT_FALSE(found.none);
  EXPECT_TRUE(found.ports.empty());
  EXPECT_FALSE(found.gid_index || found.pkey || found.mtu);
  EXPECT_TRUE(found.wants("mlx5_7", 2));
  EXPECT_TRUE(take(settings({{"verbs.devices", "auto"}})).asked);
  EXPECT_TRUE(take(settings({{"verbs.devices", "none"}})).none);
}

TEST(VerbsSettings, ReadsAll) {
  const VerbsSettings found = take(settings({{"verbs.devices", "mlx5_0,mlx5_1:2"},
                                             {"verbs.gid_index", "3"},
                                             {"verbs.traffic_class", "104"},
                                             {"verbs.sl", "5"},
                                             {"verbs.pkey", "0x8001"},
                                             {"verbs.mtu", "4096"}}));
  EXPECT_TRUE(found.wants("mlx5_0", 1) && found.wants("mlx5_0", 2) && found.wants("mlx5_1", 2));
  EXPECT_FALSE(found.wants("mlx5_1", 1) || found.wants("mlx5_2", 1));
  EXPECT_EQ(found.gid_index, 3u);
  EXPECT_EQ(found.traffic_class, 104);
  EXPECT_EQ(found.service_level, 5);
  EXPECT_EQ(found.pkey, 0x8001);
  EXPECT_EQ(found.mtu, kMtu4096);
}

TEST(VerbsSettings, RefusesWhatIsWrong_NamingValueAndRemedy) {
  for (const auto& [key, value] :
       std::initializer_list<std::pair<const char*, const char*>>{{"verbs.devices", ","},
                                                                  {"verbs.devices", "mlx5_0:"},
                                                                  {"verbs.devices", "mlx5_0:0"},
                                                                  {"verbs.devices", "mlx5_0:256"},
                                                                  {"verbs.devices", "mlx5_0,"},
                                                                  {"verbs.gid_index", "256"},
                                                                  {"verbs.gid_index", "-1"},
                                                                  {"verbs.traffic_class", "x"},
                                                                  {"verbs.sl", "16"},
                                                                  {"verbs.pkey", "0x8000"},
                                                                  {"verbs.pkey", "12345"},
                                                                  {"verbs.mtu", "1500"}}) {
    const Status status = settings({{key, value}}).status();
    EXPECT_EQ(status.code(), Code::invalid_argument) << key << " " << value;
    EXPECT_NE(status.what().find(value), std::string::npos) << status.what();
    EXPECT_NE(status.what().find(key), std::string::npos) << status.what();
  }
}

RailAddress rail(std::uint32_t device, IbvLinkLayer link, const IbvGid& gid) {
  return {.device = device, .gid = gid, .lid = 3, .link = link, .mtu = kMtu4096, .name = "a rail"};
}

TEST(VerbsAddressTest, ComesBackFromItsBytes) {
  const VerbsAddress sent{
      .incarnation = 7, .rails = {rail(0, kLinkEthernet, kIpv4), rail(1, kLinkInfiniband, kLocal)}};
  const std::vector<std::byte> bytes = encode(sent);
  const VerbsAddress found = take(decode_address(bytes));
  EXPECT_EQ(found.incarnation, 7u);
  ASSERT_EQ(found.rails.size(), 2u);
  EXPECT_EQ(std::memcmp(found.rails[0].gid.raw, kIpv4.raw, sizeof kIpv4.raw), 0);
  EXPECT_EQ(found.rails[1].link, kLinkInfiniband);
  EXPECT_EQ(found.rails[1].name, "a rail");
  for (std::size_t bytes_left = 0; bytes_left < bytes.size(); ++bytes_left)
    EXPECT_EQ(decode_address(std::span(bytes).first(bytes_left)).status().code(), Code::corrupt);
}

TEST(VerbsAddressTest, RefusesRailsThatCannotBe) {
  for (const RailAddress& bad :
       {rail(kMaxRailsOfPeer, kLinkEthernet, kIpv4),
        RailAddress{.device = 0, .gid = kIpv4, .mtu = static_cast<IbvMtu>(6), .name = ""},
        RailAddress{.device = 0, .gid = kIpv4, .mtu = static_cast<IbvMtu>(0), .name = ""}})
    EXPECT_EQ(decode_address(encode({.incarnation = 1, .rails = {bad}})).status().code(),
              Code::corrupt);
  EXPECT_EQ(decode_address(encode({.incarnation = 1})).status().code(), Code::corrupt);
}

std::string joined(const std::vector<RailAddress>& here, const std::vector<RailAddress>& there) {
  std::string text;
  for (const RailPair& pair : join_rails(here, there))
    text += std::to_string(pair.from) + "-" + std::to_string(pair.to) + " ";
  return text;
}

TEST(VerbsRails, JoinsThoseOfTheSameNumberAndKind) {
  const RailAddress roce = rail(0, kLinkEthernet, kIpv4), ib = rail(0, kLinkInfiniband, kLocal),
                    other_subnet = rail(0, kLinkInfiniband, kRouted);
  EXPECT_EQ(joined({roce, roce}, {roce, roce}), "0-0 1-1 ");
  EXPECT_EQ(joined({roce, roce, roce}, {roce, roce}), "0-0 1-1 2-0 ");
  EXPECT_EQ(joined({roce}, {roce, roce}), "0-0 ");
  EXPECT_EQ(joined({roce}, {ib, roce}), "0-1 ");
  EXPECT_EQ(joined({ib, roce}, {roce, ib}), "0-1 1-0 ");
  EXPECT_EQ(joined({ib}, {other_subnet}), "");
  EXPECT_EQ(joined({ib}, {roce}), "");
}

TEST(VerbsMemoryKeys, SaysHowMoreMemoryMayBeLocked) {
  const std::string text = registration_error("mlx5_0", "ibv_reg_mr", ENOMEM, 4096);
  EXPECT_NE(text.find("mlx5_0"), std::string::npos);
  EXPECT_NE(text.find("4096"), std::string::npos);
  EXPECT_NE(text.find("ibv_reg_mr"), std::string::npos);
  EXPECT_EQ(registration_error("mlx5_0", "ibv_reg_mr", EFAULT, 1).find("MEMLOCK"),
            std::string::npos);
}

}  // namespace verbs_rules_test
}  // namespace linkspan::transport::verbs
