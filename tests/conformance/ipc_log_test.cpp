// Tests the lines of send_ipc and recv_ipc on stderr against the documented text.
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "tests/conformance/engine_fixture.hpp"

namespace linkspan::test {
namespace ipc_log_test {

using Lines = std::vector<std::string>;

// Both "Example Logs" of the documentation, word for word.
const Lines kSenderOfTheSeed = {
    "[INFO] [send_ipc] conn_id=1 size=1048576 sender_mem=GPU dev=0",
    "[INFO] [send_ipc] Memory negotiation complete: GPU -> CPU",
    "[INFO] [send_ipc] Using PULL model (receiver reads from sender's GPU)",
    "[INFO] [send_ipc] PULL model transfer completed successfully",

    "[INFO] [send_ipc] conn_id=2 size=1048576 sender_mem=CPU",
    "[INFO] [send_ipc] Memory negotiation complete: CPU -> GPU",
    "[INFO] [send_ipc] Using PUSH model (sender writes to receiver's GPU)",
    "[INFO] [send_ipc] Copy kind: HostToDevice",
    "[INFO] [send_ipc] Using 1 stream(s) for transfer",
    "[INFO] [send_ipc] PUSH model transfer completed successfully",
};
const Lines kReceiverOfTheSeed = {
    "[INFO] [recv_ipc] conn_id=1 size=1048576 receiver_mem=CPU",
    "[INFO] [recv_ipc] Memory negotiation complete: GPU -> CPU",
    "[INFO] [recv_ipc] Using PULL model (receiver reads from sender's GPU)",
    "[INFO] [recv_ipc] Copying GPU->CPU using DeviceToHost",
    "[INFO] [recv_ipc] PULL model transfer completed successfully",
};
// Lines that the old program does not show, in the same form.
const Lines kReceiverOfAPush = {
    "[INFO] [recv_ipc] conn_id=2 size=1048576 receiver_mem=GPU dev=1",
    "[INFO] [recv_ipc] Memory negotiation complete: CPU -> GPU",
    "[INFO] [recv_ipc] Using PUSH model (sender writes to receiver's GPU)",
    "[INFO] [recv_ipc] PUSH model transfer completed successfully",
};
const Lines kSenderOfTheOthers = {
    "[INFO] [send_ipc] conn_id=1 size=4096 sender_mem=GPU dev=0",
    "[INFO] [send_ipc] Memory negotiation complete: GPU -> GPU",
    "[INFO] [send_ipc] Using PUSH model (sender writes to receiver's GPU)",
    "[INFO] [send_ipc] Copy kind: DeviceToDevice",
    "[INFO] [send_ipc] Using 1 stream(s) for transfer",
    "[INFO] [send_ipc] PUSH model transfer completed successfully",

    "[INFO] [send_ipc] conn_id=1 size=4096 sender_mem=CPU",
    "[INFO] [send_ipc] Memory negotiation complete: CPU -> CPU",
    "[INFO] [send_ipc] Using PULL model (receiver reads from sender's CPU)",
    "[INFO] [send_ipc] PULL model transfer completed successfully",
};

/// A file that goes with its owner.
class Scratch {
 public:
  Scratch() {
    const base::Fd made(::mkstemp(path_.data()));
    if (!made.valid()) throw std::runtime_error("mkstemp");
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { ::unlink(path_.c_str()); }
  const std::string& path() const noexcept { return path_; }
  Lines lines_with(const std::string& part) const {
    Lines lines;
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);)
      if (line.find(part) != std::string::npos) lines.push_back(line);
    return lines;
  }

 private:
  std::string path_ = "/tmp/linkspan-log-XXXXXX";
};

class IpcLog : public ::testing::Test {
 protected:
  void SetUp() override {
    const Status status = need_gpus(2);
    if (!status.ok()) GTEST_SKIP() << status.to_string();
  }
  static std::vector<std::string> environment(const Scratch& file, const std::string& level) {
    return {kStderrFile + file.path(), "UCCL_P2P_LOG_LEVEL=" + level};
  }
  static void move(FarEngine& from, const std::string& source, FarEngine& to,
                   const std::string& target, std::uint64_t bytes, std::uint64_t conn_id) {
    const auto sent = take(from.post(
        {.sends = true, .name = source, .bytes = bytes, .tag = std::nullopt, .conn_id = conn_id}));
    const auto received =
        take(to.post({.name = target, .bytes = bytes, .tag = std::nullopt, .conn_id = conn_id}));
    EXPECT_EQ(from.end(sent).code, "ok") << from.end(sent).what;
    EXPECT_EQ(to.end(received).code, "ok");
  }
  static void add(Lines& lines, const Lines& more) {
    lines.insert(lines.end(), more.begin(), more.end());
  }
};

TEST_F(IpcLog, SaysWhatTheSeedSays) {
  const Scratch sender_log, receiver_log;
  FarEngine receiver(environment(receiver_log, "INFO"));
  FarEngine sender(environment(sender_log, "info"));
  for (FarEngine* each : {&sender, &receiver}) {
    each->add_loose("gpu", {.kind = each == &sender ? "device0" : "device1"});
    each->add_loose("cpu", {.kind = "host"});
  }
  for (int connection = 1; connection <= 2; ++connection) {
    sender.connect(receiver.address());
    receiver.accept();
  }
  move(sender, "gpu", receiver, "cpu", 1048576, 1);
  move(sender, "cpu", receiver, "gpu", 1048576, 2);
  Lines sent = kSenderOfTheSeed, received = kReceiverOfTheSeed;
  add(received, kReceiverOfAPush);
  EXPECT_EQ(sender_log.lines_with("[send_ipc]"), sent);
  EXPECT_EQ(receiver_log.lines_with("[recv_ipc]"), received);
  move(sender, "gpu", receiver, "gpu", 4096, 1);
  move(sender, "cpu", receiver, "cpu", 4096, 1);
  add(sent, kSenderOfTheOthers);
  EXPECT_EQ(sender_log.lines_with("[send_ipc]"), sent);
  EXPECT_EQ(sender_log.lines_with("[recv_ipc]"), Lines());
}

TEST(IpcLogLevel, WarnsOfABadValueOnceAndIsSilentOtherwise) {
  const Scratch log;
  FarEngine quiet({kStderrFile + log.path(), "UCCL_P2P_LOG_LEVEL=LOUD"});
  FarEngine other;
  quiet.add_loose("cpu", {.kind = "host"});
  other.add_loose("cpu", {.kind = "host"});
  quiet.connect(other.address());
  other.accept();
  const auto sent =
      take(quiet.post({.sends = true, .name = "cpu", .bytes = 9, .tag = std::nullopt}));
  const auto received = take(other.post({.name = "cpu", .bytes = 9, .tag = std::nullopt}));
  EXPECT_EQ(quiet.end(sent).code, "ok");
  EXPECT_EQ(other.end(received).code, "ok");
  const Lines all = log.lines_with("");
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(
      all[0],
      "[WARNING] UCCL_P2P_LOG_LEVEL=\"LOUD\": set DEBUG, INFO, WARNING or ERROR; it counts as "
      "WARNING");
}

}  // namespace ipc_log_test
}  // namespace linkspan::test
