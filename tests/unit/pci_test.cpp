#include "base/pci.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "transport/verbs/nearest.hpp"

namespace linkspan {
namespace pci_test {

const std::string kRoot = "/sys/devices/pci0000:10/0000:10:01.0/";

/// A folder in the place of /sys, and one in that of the driver's list of GPUs.
class Pci : public ::testing::Test {
 protected:
  Pci() {
    std::string name = ::testing::TempDir() + "linkspan_pci_XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    root_ = std::filesystem::canonical(name);
  }
  Pci(const Pci&) = delete;
  Pci& operator=(const Pci&) = delete;
  ~Pci() override { std::filesystem::remove_all(root_); }
  /// Adds a device below bridges, and a GPU of that name if it is one. Returns its path.
  std::string add(const std::string& bridges, const std::string& bus_id, bool gpu = false) const {
    const auto path = root_ / "sys/devices" / bridges / bus_id;
    std::filesystem::create_directories(path);
    std::filesystem::create_directories(root_ / "sys/bus/pci/devices");
    std::filesystem::create_directory_symlink(path, root_ / "sys/bus/pci/devices" / bus_id);
    if (gpu) std::filesystem::create_directories(root_ / "gpus" / bus_id);
    return path;
  }
  std::string sysfs() const { return root_ / "sys"; }
  std::string gpus() const { return root_ / "gpus"; }

 private:
  std::filesystem::path root_;
};

TEST_F(Pci, FindsADeviceByItsBusId) {
  const std::string path = add("pci0000:10/0000:10:01.0", "0000:1a:00.0");
  EXPECT_EQ(base::pci_path_of("0000:1A:00.0", sysfs()), path);
  EXPECT_EQ(base::pci_path_of("0000:1b:00.0", sysfs()), "");
}

TEST_F(Pci, DevicesShareTheBridgesAboveBoth) {
  const std::string one = kRoot + "0000:11:00.0", other = kRoot + "0000:12:00.0";
  EXPECT_EQ(base::shared_bridges(one, other), 5u);
  EXPECT_EQ(base::shared_bridges(one, "/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0"), 3u);
  EXPECT_EQ(base::shared_bridges(one, ""), 0u);
  EXPECT_EQ(base::shared_bridges("", ""), 0u);
}

TEST_F(Pci, DescribesTheNearestDevicesOfEachGpu) {
  using transport::verbs::find_nearest;
  const std::vector<transport::verbs::PlacedDevice> devices = {
      {"one", add("pci0000:10/0000:10:01.0", "0000:11:00.0")},
      {"two", add("pci0000:80/0000:80:01.0", "0000:81:00.0")},
      {"three", add("pci0000:80/0000:80:01.0", "0000:81:00.1")}};
  EXPECT_EQ(find_nearest(devices, gpus(), sysfs()).text, "") << "no driver";
  add("pci0000:10/0000:10:01.0", "0000:12:00.0", true);
  add("pci0000:80/0000:80:01.0", "0000:82:00.0", true);
  EXPECT_EQ(find_nearest(devices, gpus(), sysfs()).text,
            "GPU 0000:12:00.0: one; GPU 0000:82:00.0: two, three");
  const std::vector<transport::verbs::PlacedDevice> hidden = {{"one", ""}};
  EXPECT_EQ(find_nearest(hidden, gpus(), sysfs()).text, "") << "as in many containers";
}

/// The configuration of a bridge with ACS, behind another capability.
std::string config_with_acs(unsigned control) {
  std::string config(4096, '\0');
  const auto put = [&config](std::size_t at, unsigned word) {
    config[at] = static_cast<char>(word);
    config[at + 1] = static_cast<char>(word >> 8);
  };
  put(0x100, 1), put(0x102, 0x1481);  // the next one is at 0x148
  put(0x148, 0x000d), put(0x14a, 1);
  put(0x14e, control);
  return config;
}

TEST_F(Pci, NamesTheBridgeWhoseAcsRedirects) {
  const std::string up = "pci0000:10/0000:10:01.0/0000:11:00.0/";
  const std::string device = add(up + "0000:12:00.0", "0000:13:00.0"),
                    gpu = add(up + "0000:12:01.0", "0000:14:00.0", true);
  const auto configure = [&](const std::string& bridge, const std::string& config) {
    std::ofstream(sysfs() + "/devices/" + bridge + "/config", std::ios::binary) << config;
  };
  const std::vector<transport::verbs::PlacedDevice> devices = {{"one", device}};
  EXPECT_EQ(base::acs_redirect(device, gpu), "") << "nothing can be read";
  configure(up, config_with_acs(0xff));
  configure("pci0000:10/0000:10:01.0", config_with_acs(0xff));
  EXPECT_EQ(base::acs_redirect(device, gpu), "") << "it is above both";
  configure(up + "0000:12:01.0", config_with_acs(0x73));  // all but redirection
  EXPECT_EQ(base::acs_redirect(device, gpu), "");
  for (const std::string& bad :
       {std::string(64, '\1'), std::string(4096, '\x10'), std::string(0x103, '\1')}) {
    configure(up + "0000:12:00.0", bad);
    EXPECT_EQ(base::acs_redirect(device, gpu), "") << "what root may read, and what is no list";
  }
  EXPECT_FALSE(transport::verbs::find_nearest(devices, gpus(), sysfs()).redirected);
  for (const unsigned control : {4u, 8u, 0x5du}) {
    configure(up + "0000:12:00.0", config_with_acs(control));
    EXPECT_EQ(base::acs_redirect(device, gpu), "0000:12:00.0");
    EXPECT_EQ(base::acs_redirect(gpu, device), "0000:12:00.0");
  }
  const auto found = transport::verbs::find_nearest(devices, gpus(), sysfs());
  EXPECT_TRUE(found.redirected);
  EXPECT_EQ(found.text, "GPU 0000:14:00.0: one (by the CPU: ACS of bridge 0000:12:00.0)");
}

}  // namespace pci_test
}  // namespace linkspan
