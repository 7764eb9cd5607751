#include "transport/nccl_net/plugin.hpp"

#include <fstream>

#include "tests/unit/nccl_net_fixture.hpp"
#include "transport/nccl_net/nic_affinity.hpp"

namespace linkspan::transport::nccl_net {
namespace nccl_net_plugin_test {

using Names = std::vector<std::string>;

TEST(NcclNetFiles, AreNamesPathsAndSuffixes) {
  EXPECT_EQ(files_of("none"), Names());
  EXPECT_EQ(files_of(""), Names());
  EXPECT_EQ(files_of(",,"), Names());
  EXPECT_EQ(files_of("/a/b.so"), Names{"/a/b.so"});
  EXPECT_EQ(files_of("tcpx"), (Names{"tcpx", "libnccl-net-tcpx.so"}));
  EXPECT_EQ(files_of("./x.so,,fast"), (Names{"./x.so", "fast", "libnccl-net-fast.so"}));
}

TEST(NcclNetNearest, IsWhoSharesMostBridges) {
  const auto at = [](const char* path) {
    Properties nic;
    nic.pci_path = path;
    return nic;
  };
  const std::string root = "/sys/devices/pci0000:10/0000:10:01.0/";
  const std::vector<Properties> nics = {at("/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0"),
                                        at("/sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0"),
                                        at("/sys/devices/pci0000:10/0000:10:01.0/0000:11:00.1"),
                                        at("/sys/devices/pci0000:10/0000:10:05.0/0000:15:00.0")};
  EXPECT_EQ(nearest_nic(nics, "/sys/devices/pci0000:80/0000:80:03.0/0000:83:00.0", 1), 0);
  EXPECT_EQ(nearest_nic(nics, root + "0000:12:00.0", 0), 1);
  EXPECT_EQ(nearest_nic(nics, root + "0000:12:00.0", 1), 2);
  EXPECT_EQ(nearest_nic(nics, "/sys/devices/pci0000:10/0000:10:05.0/0000:16:00.0", 5), 3);
  EXPECT_EQ(nearest_nic({at("")}, "", 7), 0);
  EXPECT_EQ(nearest_nic({at(""), at("")}, root, 1), 1);
}

TEST(NcclNetResults, HaveTheirNames) {
  EXPECT_EQ(name_of_result(0), "ncclSuccess");
  EXPECT_EQ(name_of_result(6), "ncclRemoteError");
  EXPECT_EQ(name_of_result(-1), "result -1");
  EXPECT_EQ(name_of_result(8), "result 8");
}

TEST_P(NcclNetVersions, LoadsAndTellsItsDevice) {
  const auto plugin = NcclNetVersions::plugin();
  const bool unpacks = GetParam() == 7;
  EXPECT_EQ(plugin->version(), GetParam());
  EXPECT_EQ(plugin->name(), "linkspan-test");
  EXPECT_EQ(plugin->file(), plugin_file(GetParam()));
  ASSERT_EQ(plugin->devices().size(), 1u);
  const Properties& device = plugin->devices()[0];
  EXPECT_EQ(device.name, "linkspan-test");
  EXPECT_EQ(device.pci_path, "");
  EXPECT_TRUE(device.supports(abi::kHost));
  EXPECT_FALSE(device.supports(abi::kDmaBuf));
  EXPECT_EQ(device.max_receives, 1);
  EXPECT_EQ(device.speed_mbps, 10000);
  EXPECT_EQ(device.device_type, unpacks ? abi::kDeviceUnpack : abi::kDeviceHost);
  EXPECT_EQ(device.device_version, unpacks ? 7 : 0);
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  EXPECT_EQ(device.max_bytes, unpacks ? 4 * kMiB : GetParam() < 9 ? 1024 * kMiB : 64 * kMiB);
  EXPECT_EQ(plugin->max_requests(0), GetParam() < 7 ? 8 : unpacks ? 16 : 32);
  EXPECT_EQ(plugin->net().has_consumed(), unpacks);
  EXPECT_EQ(take(load(GetParam())), plugin) << "loaded twice";
}
INSTANTIATE_TEST_SUITE_P(Every, NcclNetVersions, ::testing::Range(5, 13), name_of_version);

Status status_of(const std::vector<std::string>& files) {
  return Plugin::load(files, Lines::all().log()).status();
}

TEST_F(NcclNet, WithoutAPluginSaysWhyAndWhatToDo) {
  EXPECT_EQ(status_of({}).code(), Code::not_found);
  const Status status = status_of({"/nowhere/libnccl-net.so", "libnccl-net-of-nobody.so"});
  EXPECT_EQ(status.code(), Code::not_found);
  for (const char* part : {"/nowhere/libnccl-net.so", "libnccl-net-of-nobody.so", "--plugin"})
    EXPECT_NE(status.what().find(part), std::string::npos) << status.to_string();
}

TEST_F(NcclNet, AFileThatIsNoLibraryIsSkipped) {
  const std::string file =
      ::testing::TempDir() + "linkspan_no_library_" + std::to_string(::getpid()) + ".so";
  std::ofstream(file) << "no library\n";
  const Status status = status_of({file});
  EXPECT_EQ(status.code(), Code::not_found);
  EXPECT_NE(status.what().find(file), std::string::npos) << status.to_string();
  EXPECT_TRUE(Plugin::load({file, plugin_file(8)}, Lines::all().log()).ok());
  ::unlink(file.c_str());
}

TEST_F(NcclNet, ALibraryWithoutAKnownTableIsRefused) {
  for (const int version : {0, 4}) {
    const Status status = status_of({plugin_file(version)});
    EXPECT_EQ(status.code(), Code::unsupported) << status.to_string();
    EXPECT_NE(status.what().find(plugin_file(version)), std::string::npos) << status.to_string();
    EXPECT_NE(status.what().find("ncclNetPlugin_v5"), std::string::npos) << status.to_string();
  }
}

TEST_F(NcclNet, WhatFailsAtTheStartIsTold) {
  const std::pair<const char*, Code> kCases[] = {{"init:0:2", Code::system},
                                                 {"devices:0:1", Code::cuda},
                                                 {"getProperties:0:3", Code::internal}};
  for (const auto& [failure, code] : kCases) {
    set("FAIL", failure);
    const Status status = load(12).status();
    EXPECT_EQ(status.code(), code) << status.to_string();
    const std::string function(failure, std::string(failure).find(':'));
    EXPECT_NE(status.what().find("linkspan-test (v12): " + function + " answered nccl"),
              std::string::npos)
        << status.to_string();
  }
  set("FAIL", "init:0:99");
  EXPECT_NE(load(11).status().what().find("result 99"), std::string::npos);
  set("FAIL", "");
  EXPECT_TRUE(load(12).ok());
  EXPECT_TRUE(load(11).ok());
}

TEST_F(NcclNet, AContextEndsWithItsLastUserAndOldVersionsHaveNoEnd) {
  for (const int version : {8, 11}) {
    std::weak_ptr<Plugin> plugin = take(load(version));
    EXPECT_EQ(plugin.expired(), version == 11) << version;
  }
  take(load(11)).reset();
  EXPECT_FALSE(said("WARNING")) << Lines::all().text();
}

TEST_F(NcclNet, ItsLinesAreOurs) {
  set("ADDRESS", "no address");
  EXPECT_FALSE(Listener::open(take(load(8)), 0).ok());
  EXPECT_TRUE(said("WARNING nccl net plugin: no IPv4 address: no address ("))
      << Lines::all().text();
}

}  // namespace nccl_net_plugin_test
}  // namespace linkspan::transport::nccl_net
