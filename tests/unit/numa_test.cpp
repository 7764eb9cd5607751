#include "base/numa.hpp"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>

namespace linkspan::base {
namespace numa_test {

/// A folder in the place of /sys, with files that a test writes.
class NumaSysfs : public ::testing::Test {
 protected:
  NumaSysfs() {
    std::string name = ::testing::TempDir() + "linkspan_numa_XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  NumaSysfs(const NumaSysfs&) = delete;
  NumaSysfs& operator=(const NumaSysfs&) = delete;
  ~NumaSysfs() override { std::filesystem::remove_all(root_); }
  void write(const std::string& file, const std::string& text) const {
    const auto path = std::filesystem::path(root_ + "/" + file);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  void nodes(const std::string& online) const { write("devices/system/node/online", online); }
  void device(const std::string& name, const std::string& node) const {
    write("bus/pci/devices/" + name + "/numa_node", node);
  }
  int node_of(const std::string& bus_id) const { return numa_node_of(bus_id, root_); }

  std::string root_;
};

TEST_F(NumaSysfs, TellsTheNodeOfADevice) {
  nodes("0-1\n");
  device("0000:18:00.0", "0\n");
  device("0000:9a:00.0", "1\n");
  EXPECT_EQ(node_of("0000:18:00.0"), 0);
  EXPECT_EQ(node_of("0000:9A:00.0"), 1) << "as the driver spells it";
  nodes("0,2\n");
  device("0000:9a:00.0", "2\n");
  EXPECT_EQ(node_of("0000:9A:00.0"), 2);
}

TEST_F(NumaSysfs, TellsNoneWhereThereIsNothingToPrefer) {
  device("0000:18:00.0", "0\n");
  EXPECT_EQ(node_of("0000:18:00.0"), -1) << "nodes are not told of";
  nodes("0\n");
  EXPECT_EQ(node_of("0000:18:00.0"), -1) << "one node";
  nodes("0-1\n");
  EXPECT_EQ(node_of("0000:18:00.0"), 0);
  EXPECT_EQ(node_of("0000:19:00.0"), -1) << "no such device, as in many containers";
  device("0000:18:00.0", "-1\n");
  EXPECT_EQ(node_of("0000:18:00.0"), -1) << "a virtual machine that hides it";
  device("0000:18:00.0", "-7\n");
  EXPECT_EQ(node_of("0000:18:00.0"), -1);
  device("0000:18:00.0", "nonsense\n");
  EXPECT_EQ(node_of("0000:18:00.0"), -1);
}

struct Policy {
  static Policy now() {
    Policy policy;
    policy.known =
        ::syscall(SYS_get_mempolicy, &policy.mode, policy.nodes.data(), 1024UL, nullptr, 0UL) == 0;
    return policy;
  }
  bool operator==(const Policy&) const = default;

  bool known = false;
  int mode = -1;
  std::array<unsigned long, 16> nodes{};
};

TEST(PreferredNode, HoldsWhileItLivesAndNoLonger) {
  const Policy before = Policy::now();
  {
    const PreferredNode near(0);  // which every machine has
    const Policy within = Policy::now();
    // Nothing changes if the kernel does not permit it.
    if (within != before) {
      EXPECT_EQ(within.mode, MPOL_PREFERRED);
      EXPECT_EQ(within.nodes[0], 1UL);
    }
    { const PreferredNode again(0); }
    EXPECT_EQ(Policy::now(), within);
  }
  EXPECT_EQ(Policy::now(), before);
}

TEST(PreferredNode, OfNoNodeChangesNothing) {
  const Policy before = Policy::now();
  for (const int node : {-1, 1023, 1024, 1 << 30}) {
    const PreferredNode none(node);
    EXPECT_EQ(Policy::now(), before) << node;
  }
  EXPECT_EQ(Policy::now(), before);
}

}  // namespace numa_test
}  // namespace linkspan::base
