#include "base/pci.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

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
  using transport::verbs::describe_nearest;
  const std::vector<transport::verbs::PlacedDevice> devices = {
      {"one", add("pci0000:10/0000:10:01.0", "0000:11:00.0")},
      {"two", add("pci0000:80/0000:80:01.0", "0000:81:00.0")},
      {"three", add("pci0000:80/0000:80:01.0", "0000:81:00.1")}};
  EXPECT_EQ(describe_nearest(devices, gpus(), sysfs()), "") << "no driver";
  add("pci0000:10/0000:10:01.0", "0000:12:00.0", true);
  add("pci0000:80/0000:80:01.0", "0000:82:00.0", true);
  EXPECT_EQ(describe_nearest(devices, gpus(), sysfs()),
            "GPU 0000:12:00.0: one; GPU 0000:82:00.0: two, three");
  const std::vector<transport::verbs::PlacedDevice> hidden = {{"one", ""}};
  EXPECT_EQ(describe_nearest(hidden, gpus(), sysfs()), "") << "as in many containers";
}

}  // namespace pci_test
}  // namespace linkspan
