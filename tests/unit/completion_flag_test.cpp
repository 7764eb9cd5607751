#include "copy/completion_flag.hpp"

#include "tests/support/take.hpp"
#include "tests/unit/gpu_copier_fixture.hpp"

namespace linkspan::copy {
namespace completion_flag_test {

using test::take;

constexpr std::uint64_t kBetween = 1u << 20;  // bytes whose flag a stream of its own writes

class CompletionFlagTest : public ::testing::Test {
 protected:
  void SetUp() override {
    script = {};
    device_ = take(Device::open(driver_, info_));
    scope_.emplace(take(device_->enter()));
    memory_.emplace(take(PinnedBuffer::create(*scope_, 4096)));
    queue_.emplace(take(Stream::create(*scope_)));
  }
  CompletionFlag make(bool beside) {
    return take(CompletionFlag::create(*scope_, *memory_, 128, beside));
  }
  /// Writes a number and returns how many events the flag's own stream waited for.
  int write(CompletionFlag& flag, std::uint64_t number, std::uint64_t bytes, bool alone = false) {
    const int before = script.waits;
    EXPECT_TRUE(flag.write(*scope_, *queue_, number, bytes, alone).ok());
    return script.waits - before;
  }

  const Driver driver_ = scripted_driver();
  const DeviceInfo info_{.name = "scripted", .bus_id = "", .sm = 90, .sm_count = 2};
  std::unique_ptr<const Device> device_;
  std::optional<DeviceScope> scope_;
  std::optional<PinnedBuffer> memory_;
  std::optional<Stream> queue_;
};

TEST_F(CompletionFlagTest, ShowsTheNumberOnceTheStreamHasWrittenIt) {
  CompletionFlag flag = make(false);
  EXPECT_EQ(flag.value(), 0u);
  EXPECT_EQ(write(flag, 5, kBetween), 0);
  EXPECT_EQ(flag.value(), 0u);
  script.run();
  EXPECT_EQ(flag.value(), 5u);
  EXPECT_TRUE(flag.query(*scope_).ok()) << "it has no stream of its own";
}

TEST_F(CompletionFlagTest, IsWrittenBesideTheQueue_WhenThatWouldStallTheCopyEngine) {
  CompletionFlag flag = make(true);
  EXPECT_EQ(write(flag, 1, kBetween, true), 0) << "nothing else is in flight";
  EXPECT_EQ(write(flag, 2, 4096), 0) << "a small copy";
  EXPECT_EQ(write(flag, 3, std::uint64_t{1} << 30), 0) << "a large copy";
  EXPECT_EQ(write(flag, 4, kBetween), 1);
}

TEST_F(CompletionFlagTest, NoWriteOvertakesTheOneBeforeIt) {
  CompletionFlag flag = make(true);
  EXPECT_EQ(write(flag, 1, kBetween), 1);
  EXPECT_EQ(write(flag, 2, 4096), 1) << "the other stream has not written yet";
  script.run();
  EXPECT_EQ(flag.value(), 2u);
  EXPECT_EQ(write(flag, 3, 4096), 0);
}

}  // namespace completion_flag_test
}  // namespace linkspan::copy
