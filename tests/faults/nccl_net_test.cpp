// Tests a network plugin with failing functions, closing connections and wrong lists at either end:
// each transfer ends in time with the reason, or is right. So do transfers on another path
// meanwhile, and later ones between the same two Engines.
#include <cstring>
#include <tuple>

#include "tests/conformance/wire_pair.hpp"

namespace linkspan::test {
namespace nccl_net_test {

constexpr std::uint64_t kParts = 16, kBytes = kParts * 20'001;
constexpr Duration kDeadline = 10s;

/// Which end of a message has the fault.
enum class Role : std::uint8_t { sender, receiver };
/// Says what the next comm does after the fault. If the far process has the fault, the next comm
/// has it too, because its environment stays. It works as long as it carries less.
enum class Next : std::uint8_t { good, unknown };

struct Fault {
  const char* name;
  Role role;
  const char* setting;
  Code code;
  const char* says;
  Next next = Next::good;
  int version = 0;       // 0: of all
  bool on_gpus = false;  // there only
};
constexpr Fault kFaults[] = {
    {"isend", Role::sender, "FAIL=isend:5:2", Code::system, "isend answered ncclSystemError"},
    {"send_test", Role::sender, "FAIL=test:3:3", Code::internal, "test answered ncclInternalError",
     Next::unknown},
    {"send_regMr", Role::sender, "FAIL=regMr:1:4", Code::invalid_argument,
     "regMr answered ncclInvalidArgument", Next::unknown},
    {"connect", Role::sender, "FAIL=connect:1:1", Code::cuda,
     "connect answered ncclUnhandledCudaError", Next::unknown},
    {"send_closed", Role::sender, "DIE_AFTER=5", Code::disconnected, "ncclRemoteError"},
    {"irecv", Role::receiver, "FAIL=irecv:5:2", Code::system, "irecv answered ncclSystemError"},
    {"receive_test", Role::receiver, "FAIL=test:3:3", Code::internal,
     "test answered ncclInternalError", Next::unknown},
    {"receive_regMr", Role::receiver, "FAIL=regMr:1:4", Code::invalid_argument,
     "regMr answered ncclInvalidArgument", Next::unknown},
    {"listen", Role::receiver, "FAIL=listen:0:2", Code::system, "listen answered ncclSystemError",
     Next::unknown},
    {"accept", Role::receiver, "FAIL=accept:1:5", Code::invalid_argument,
     "accept answered ncclInvalidUsage", Next::unknown},
    {"receive_closed", Role::receiver, "DIE_AFTER=5", Code::disconnected, "ncclRemoteError"},
    {"irecvConsumed", Role::receiver, "FAIL=irecvConsumed:5:3", Code::internal,
     "irecvConsumed answered ncclInternalError", Next::good, 7},
    {"iflush", Role::receiver, "FAIL=iflush:3:2", Code::system, "iflush answered ncclSystemError",
     Next::good, 12, true},
    {"list_short", Role::receiver, "LIST=short:5", Code::corrupt, "", Next::good, 7, true},
    {"list_lost", Role::receiver, "LIST=lost:5", Code::corrupt, "", Next::good, 7, true},
    {"list_overlap", Role::receiver, "LIST=overlap:5", Code::corrupt, "", Next::good, 7, true},
    {"list_outside", Role::receiver, "LIST=outside:5", Code::corrupt, "leaves the pool", Next::good,
     7, true},
    {"list_beyond", Role::receiver, "LIST=beyond:5", Code::corrupt, "", Next::good, 7, true},
    {"in_progress", Role::receiver, "FAIL=test:3:7", Code::internal, "test answered ncclInProgress",
     Next::unknown},
};

/// Numbers of blocks of the transfers. A comm has its failure from listen or connect on, and begins
/// when the one before is broken. So the last one, which breaks each comm with the failure, leaves
/// none for the transfers after the fault. Before it there is one that does not break a comm.
const std::vector<std::uint64_t> kUntilItFails{1, 2, kParts - 3};
const std::vector<std::uint64_t> kEach(kParts, 1), kTwo(2, 1);

/// Memory on both sides for one path, and what is known of it. A write's destination is there.
class Lanes {
 public:
  struct Moved {
    Transfer transfer;
    std::uint64_t first = 0, parts = 0;
  };
  Lanes(WirePair& pair, Op op, const char* kind, const std::string& name)
      : pair_(pair), op_(op), name_(name) {
    here_ = Held::make(pair.engine, {.kind = kind, .bytes = kBytes});
    pair.far.add(name, {.kind = kind, .bytes = kBytes});
    there_ = pair.remote(name);
  }
  void fill() {
    here_.fill(kHere);
    pair_.far.fill(name_, kThere);
  }
  std::vector<Moved> start(const std::vector<std::uint64_t>& parts,
                           const TransferOptions& options) const {
    std::vector<Moved> started;
    std::uint64_t first = 0;
    for (const std::uint64_t count : parts) {
      std::vector<Block> blocks;  // backwards: those that follow each other would be one message
      for (std::uint64_t i = first + count; i > first; --i)
        blocks.push_back(part_of(kBytes, i - 1, kParts));
      auto moved = op_ == Op::write ? pair_.peer.write(here_.region, there_, blocks, options)
                                    : pair_.peer.read(here_.region, there_, blocks, options);
      started.push_back({take(std::move(moved)), first, count});
      first += count;
    }
    return started;
  }
  /// Checks transfers that are all quiet. Those that are ok have brought their bytes. The memory of
  /// the others belongs to the user again, and no byte lands in it.
  std::string look(const std::vector<Moved>& moved) {
    std::vector<Expected> due;
    for (const Moved& each : moved) {
      const Block begin = part_of(kBytes, each.first, kParts),
                  last = part_of(kBytes, each.first + each.parts - 1, kParts);
      const Extent extent{begin.local_offset, last.local_offset + last.bytes - begin.local_offset};
      const bool ok = each.transfer.status().ok();
      due.push_back({extent.offset, ok ? source() : kUsed, extent.offset, extent.bytes});
      if (ok) continue;
      if (op_ == Op::read)
        here_.fill(kUsed, extent);
      else
        pair_.far.fill(name_, kUsed, extent);
    }
    const std::vector<Expected> none;
    const std::string here = here_.difference(kHere, op_ == Op::read ? due : none);
    return here + pair_.far.difference(name_, kThere, op_ == Op::write ? due : none);
  }

 private:
  static constexpr std::uint64_t kHere = 1, kThere = 2, kUsed = 3;
  std::uint64_t source() const { return op_ == Op::write ? kHere : kThere; }

  WirePair& pair_;
  const Op op_;
  const std::string name_;
  Held here_;
  RemoteRegion there_;
};

class NcclNetFaults : public ::testing::TestWithParam<std::tuple<int, Kind, bool>> {
 protected:
  void SetUp() override {
    if (Status status = kinds_here({kind()}); !status.ok()) GTEST_SKIP() << status.to_string();
  }
  static int version() { return std::get<0>(GetParam()); }
  static Kind kind() { return std::get<1>(GetParam()); }
  static bool in_far() { return std::get<2>(GetParam()); }

  static void strike(const Fault& fault) {
    const Op op = (fault.role == Role::sender) == in_far() ? Op::read : Op::write;
    std::unique_ptr<Lanes> lanes, beside;  // outlive the Engine
    PluginSettings ours;
    WirePair pair(version(),
                  in_far() ? std::vector<std::string>{fault.setting} : std::vector<std::string>{});
    if (!in_far()) ours.set(fault.setting);
    lanes = std::make_unique<Lanes>(pair, op, kind().name, "there");
    beside = std::make_unique<Lanes>(pair, op, "host", "beside");
    lanes->fill();
    beside->fill();
    const auto moved = lanes->start(kUntilItFails, by_wire(version(), kDeadline));
    const auto undisturbed = beside->start(kEach, {.deadline = kDeadline});
    std::size_t named = 0;
    for (const auto& [each, first, parts] : moved) {
      const Status end = each.wait(kDeadline);
      ASSERT_TRUE(each.done()) << pair.engine.dump();
      if (end.ok()) continue;
      const bool is_cause =
          end.code() == fault.code && end.what().find(fault.says) != std::string::npos;
      named += is_cause ? 1 : 0;
      // The answer of the end with the fault may have been in flight still.
      ASSERT_TRUE(is_cause || (end.code() == Code::disconnected &&
                               end.what().find("ncclRemoteError") != std::string::npos))
          << end.to_string();
    }
    EXPECT_GT(named, 0u);
    for (const auto& each : undisturbed) EXPECT_EQ(each.transfer.wait(kDeadline).to_string(), "ok");
    EXPECT_EQ(lanes->look(moved), "");
    EXPECT_EQ(beside->look(undisturbed), "");
    ours.clear();
    if (in_far() && fault.next == Next::unknown) return;
    lanes->fill();
    const auto next = lanes->start(kTwo, by_wire(version(), kDeadline));
    for (const auto& each : next) EXPECT_EQ(each.transfer.wait(kDeadline).to_string(), "ok");
    EXPECT_EQ(lanes->look(next), "");
  }
};

TEST_P(NcclNetFaults, EndWhatTheyHitAndSayWhy) {
  const bool gpu = kind().kind == MemoryKind::device;
  for (const Fault& fault : kFaults) {
    if ((fault.version != 0 && fault.version != version()) || (fault.on_gpus && !gpu)) continue;
    SCOPED_TRACE(fault.name);
    strike(fault);
  }
}

/// A plugin that is slow, or has no room now, causes no failure.
TEST_P(NcclNetFaults, SlownessDelaysAndBreaksNothing) {
  const std::vector<std::string> slow{"NULL_PERCENT=60", "DELAY_US=700", "CALL_US=3",
                                      "NULL_COMMS=30", "FRAGMENT=1000"};
  std::unique_ptr<Lanes> out, in;
  PluginSettings ours;
  WirePair pair(version(), in_far() ? slow : std::vector<std::string>{});
  if (!in_far())
    for (const std::string& each : slow) ours.set(each);
  out = std::make_unique<Lanes>(pair, Op::write, kind().name, "out");
  in = std::make_unique<Lanes>(pair, Op::read, kind().name, "in");
  out->fill();
  in->fill();
  const auto sent = out->start(kEach, by_wire(version(), kDeadline));
  const auto got = in->start(kEach, by_wire(version(), kDeadline));
  for (const auto* each : {&sent, &got})
    for (const auto& moved : *each) EXPECT_EQ(moved.transfer.wait(kDeadline).to_string(), "ok");
  EXPECT_EQ(out->look(sent), "");
  EXPECT_EQ(in->look(got), "");
}

INSTANTIATE_TEST_SUITE_P(Every, NcclNetFaults,
                         ::testing::Combine(::testing::Values(7, 12, kStaged),
                                            ::testing::Values(kKinds[3], kKinds[0]),
                                            ::testing::Bool()),
                         [](const auto& param) {
                           return name_of_wire(std::get<0>(param.param)) + "_" +
                                  std::get<1>(param.param).name +
                                  (std::get<2>(param.param) ? "_there" : "_here");
                         });

}  // namespace nccl_net_test
}  // namespace linkspan::test
