// Tests which driver calls a transfer makes: the guard's four, one submission, one flag, and
// nothing else. Needs a process over the counting shim (tests/support/driver_shim).
//
// LINKSPAN_ROWS_OUT=FILE writes the count of the plainest transfer to FILE, for
// evidence/foundation.json.
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <numeric>
#include <string_view>

#include "tests/conformance/engine_fixture.hpp"
#include "tests/support/driver_shim/counts.hpp"

namespace linkspan::test {
namespace driver_calls_test {

constexpr std::uint64_t kMiB = 1u << 20;

constexpr StreamOrder kLegacyStream{.kind = StreamOrder::Kind::legacy_default};

/// A transfer between a region here and one there, and what is called for it, beside the guard and
/// the flag, which are the same for all.
struct Case {
  const char* name;
  const char *near, *far;
  Op op;
  std::uint64_t blocks, block_bytes;
  DriverCalls calls;
  TransferOptions (*options)() = [] { return TransferOptions{}; };
  bool prepared = false;  // its blocks are pages, and posted
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

constexpr const char* kPlainest = "write_8B";
const Case kCases[] = {
    {kPlainest, "device0", "device1", Op::write, 1, 8, {{"cuMemcpyAsync", 1}}},
    {"read_8B", "device0", "device1", Op::read, 1, 8, {{"cuMemcpyAsync", 1}}},
    {"write_1MiB", "device0", "device1", Op::write, 1, kMiB, {{"cuMemcpyAsync", 1}}},
    {"write_1MiB_on_one_gpu", "device0", "device0", Op::write, 1, kMiB, {{"cuMemcpyAsync", 1}}},
    {"write_1MiB_from_pinned", "pinned", "device0", Op::write, 1, kMiB, {{"cuMemcpyAsync", 1}}},
    {"read_1MiB_to_pinned", "pinned", "device0", Op::read, 1, kMiB, {{"cuMemcpyAsync", 1}}},
    {"write_512_blocks", "device0", "device1", Op::write, 512, 1024, {{"cuLaunchKernel", 1}}},
    {"read_512_blocks", "device0", "device1", Op::read, 512, 1024, {{"cuLaunchKernel", 1}}},
    {.name = "post_512_pages",
     .near = "device0",
     .far = "device1",
     .op = Op::write,
     .blocks = 512,
     .block_bytes = 1024,
     .calls = {{"cuLaunchKernel", 1}},
     .prepared = true},
    {"write_after_a_stream",
     "device0",
     "device1",
     Op::write,
     1,
     8,
     {{"cuMemcpyAsync", 1},
      {"cuStreamIsCapturing", 1},
      {"cuEventRecord", 1},
      {"cuStreamWaitEvent", 1}},
     [] { return TransferOptions{.after = kLegacyStream}; }},
    {"write_in_the_midst_of_a_stream",
     "device0",
     "device1",
     Op::write,
     1,
     8,
     {{"cuMemcpyAsync", 1},
      {"cuStreamIsCapturing", 1},
      {"cuEventRecord", 2},
      {"cuStreamWaitEvent", 2}},
     [] { return TransferOptions{.after = kLegacyStream, .release = kLegacyStream}; }},
};

DriverCalls expected_of(const Case& c) {
  DriverCalls all = c.calls;
  all["cuThreadExchangeStreamCaptureMode"] += 2;
  all["cuCtxPushCurrent"] += 1;
  all["cuCtxPopCurrent"] += 1;
  all["cuStreamWriteValue64"] += 1;
  return all;
}

std::uint64_t sum(const DriverCalls& calls) {
  return std::accumulate(
      calls.begin(), calls.end(), std::uint64_t{0},
      [](std::uint64_t so_far, const auto& each) { return so_far + each.second; });
}

/// Writes the row of evidence/foundation.json.
void leave_row(std::uint64_t calls, std::uint64_t runs, bool verified) {
  constexpr std::uint64_t kBar = 6;
  const char* file = std::getenv("LINKSPAN_ROWS_OUT");
  if (file == nullptr) return;
  const Json row = {{"id", "driver_calls_per_transfer"},
                    {"value", calls},
                    {"unit", "count"},
                    {"runs", runs},
                    {"verified", verified},
                    {"bar", kBar},
                    {"pass", verified && calls <= kBar}};
  std::ofstream(file) << Json{{"rows", {row}}}.dump(2) << '\n';
}

class DriverCallsOf : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const Case& c = GetParam();
    const Status status = kinds_here({kind_of(c.near), kind_of(c.far)});
    counts_ = DriverCounts::find();
    if (!counts_) GTEST_SKIP() << "needs the counting shim";
    if (!status.ok()) GTEST_SKIP() << status.to_string();
    const Status kernels = take(topology()->activate(topology()->devices()[0].uuid))->kernels();
    if (c.calls.contains("cuLaunchKernel") && !kernels.ok())
      GTEST_SKIP() << "needs a build with kernels: " << kernels.what();
  }

  DriverCounts counts_;
};

TEST_P(DriverCallsOf, AreTheGuardTheSubmissionAndTheFlag) {
  constexpr std::uint64_t kTimes = 10;
  const Case& c = GetParam();
  const std::uint64_t bytes = 2 * c.blocks * c.block_bytes;
  Held here;  // outlives the Engine
  Pair pair;
  here = Held::make(pair.engine, {.kind = c.near, .bytes = bytes});
  pair.far.add("there", {.kind = c.far, .bytes = bytes});
  const RemoteRegion there = pair.remote("there");
  here.fill(1);
  pair.far.fill("there", 2);
  std::vector<Block> blocks;
  std::vector<Expected> due;
  for (std::uint64_t i = 0; i < c.blocks; ++i) {
    blocks.push_back({2 * i * c.block_bytes, (2 * i + 1) * c.block_bytes, c.block_bytes});
    if (c.op == Op::write)
      due.push_back({blocks[i].remote_offset, 1, blocks[i].local_offset, c.block_bytes});
    else
      due.push_back({blocks[i].local_offset, 2, blocks[i].remote_offset, c.block_bytes});
  }
  Prepared prepared;
  if (c.prepared) {
    std::vector<std::uint32_t> ours, theirs;
    for (std::uint32_t i = 0; i < c.blocks; ++i) {
      ours.push_back(2 * i);
      theirs.push_back(2 * i + 1);
    }
    const Pages pages{c.block_bytes, 0, 0, ours, theirs};
    prepared = take(pair.peer.prepare(c.op, here.region, there, pages));
  }
  const auto move = [&] {
    const TransferOptions options = c.options();
    if (c.prepared) return finished(prepared.post(options));
    return finished(c.op == Op::write ? pair.peer.write(here.region, there, blocks, options)
                                      : pair.peer.read(here.region, there, blocks, options));
  };
  counts_.reset();
  ASSERT_EQ(move().to_string(), "ok");  // the first may still set up,
  EXPECT_FALSE(counts_.read().contains("cuStreamCreateWithPriority")) << "but may not wait";
  std::uint64_t most = 0;
  int stalls = 3;  // of the machine: what is overdue asks its stream, and is measured again
  for (std::uint64_t i = 0; i < kTimes; ++i) {
    counts_.reset();
    const Status moved = move();
    const DriverCalls calls = counts_.read();
    ASSERT_EQ(moved.to_string(), "ok");
    if (calls.contains("cuStreamQuery") && stalls-- > 0) continue;
    EXPECT_EQ(calls, expected_of(c));
    most = std::max(most, sum(calls));
    if (HasFailure()) break;
  }
  EXPECT_EQ(here.difference(1, c.op == Op::read ? due : std::vector<Expected>{}), "");
  EXPECT_EQ(pair.far.difference("there", 2, c.op == Op::write ? due : std::vector<Expected>{}), "");
  if (std::string_view(c.name) == kPlainest) leave_row(most, kTimes, !HasFailure());
}

class DriverCallsOfRegions : public ::testing::Test {
 protected:
  void SetUp() override {
    const Status status = kinds_here({kind_of("device0"), kind_of("device1")});
    counts_ = DriverCounts::find();
    if (!counts_) GTEST_SKIP() << "needs the counting shim";
    if (!status.ok()) GTEST_SKIP() << status.to_string();
    const Status kernels = take(topology()->activate(topology()->devices()[0].uuid))->kernels();
    if (!kernels.ok()) GTEST_SKIP() << "needs a build with kernels: " << kernels.what();
  }

  /// Checks all bytes of both regions of layer `i`, which were filled with 2 * i and 2 * i + 1.
  static void expect_moved(Op op, std::uint64_t i, const Pages& pages, Held& here, Pair& pair) {
    std::vector<Expected> here_due, there_due;
    for (std::size_t k = 0; k < pages.local_index.size(); ++k) {
      const std::uint64_t ours = pages.local_base + pages.local_index[k] * pages.page_bytes,
                          theirs = pages.remote_base + pages.remote_index[k] * pages.page_bytes;
      if (op == Op::write)
        there_due.push_back({theirs, 2 * i, ours, pages.page_bytes});
      else
        here_due.push_back({ours, 2 * i + 1, theirs, pages.page_bytes});
    }
    EXPECT_EQ(here.difference(2 * i, here_due), "") << i;
    EXPECT_EQ(pair.far.difference("layer " + std::to_string(i), 2 * i + 1, there_due), "") << i;
  }

  DriverCounts counts_;
};

/// A kernel takes 240 pairs in its parameters, so these are two.
TEST_F(DriverCallsOfRegions, AreOneLaunchForAsManyAsAKernelTakes_WhereTheyGetTheSamePages) {
  constexpr std::size_t kRegions = 250, kLaunches = 2;
  constexpr std::uint64_t kPage = 1000, kRegionBytes = 16 * kPage + 3;
  const std::vector<std::uint32_t> ours = {5, 0, 14, 2, 9}, theirs = {1, 3, 15, 0, 7};
  std::deque<Held> held;  // outlive the Engine
  Pair pair;
  std::vector<Region> local;
  std::vector<RemoteRegion> remote;
  for (std::size_t i = 0; i < kRegions; ++i) {
    const std::string name = "layer " + std::to_string(i);
    const std::uint64_t more_here = 7 * (i % 3), more_there = 5 * ((i + 1) % 2);
    held.push_back(Held::make(pair.engine, {.kind = "device0", .bytes = kRegionBytes + more_here}));
    pair.far.add(name, {.kind = "device1", .bytes = kRegionBytes + more_there});
    local.push_back(held.back().region);
    remote.push_back(pair.remote(name));
  }
  const Pages pages{kPage, 1, 3, ours, theirs};
  std::vector<TransferPart> all;  // each with lists of its own that say the same
  std::deque<std::vector<std::uint32_t>> lists;
  for (std::size_t i = 0; i < kRegions; ++i) {
    Pages same = pages;
    same.local_index = lists.emplace_back(ours);
    same.remote_index = lists.emplace_back(theirs);
    all.push_back({local[i], remote[i], same});
  }
  enum class Form { sets, parts, prepared, prepared_parts };
  const auto start = [&](Form form, Op op) -> Result<Transfer> {
    if (form == Form::sets)
      return op == Op::write ? pair.peer.write(local, remote, pages)
                             : pair.peer.read(local, remote, pages);
    if (form == Form::parts) return op == Op::write ? pair.peer.write(all) : pair.peer.read(all);
    const auto prepared = form == Form::prepared ? pair.peer.prepare(op, local, remote, pages)
                                                 : pair.peer.prepare(op, all);
    return prepared.ok() ? prepared->post() : prepared.status();
  };
  using enum Form;
  for (const auto& [form, op] :
       {std::pair(sets, Op::write), std::pair(sets, Op::read), std::pair(parts, Op::write),
        std::pair(prepared, Op::read), std::pair(prepared_parts, Op::write)}) {
    for (std::size_t i = 0; i < kRegions; ++i) {
      held[i].fill(2 * i);
      pair.far.fill("layer " + std::to_string(i), 2 * i + 1);
    }
    counts_.reset();
    ASSERT_EQ(finished(start(form, op)).to_string(), "ok");
    const DriverCalls calls = counts_.read();
    EXPECT_EQ(calls.at("cuLaunchKernel"), kLaunches);
    EXPECT_EQ(calls.at("cuStreamWriteValue64"), kLaunches);
    EXPECT_FALSE(calls.contains("cuMemcpyAsync"));
    for (std::size_t i = 0; i < kRegions; ++i) {
      expect_moved(op, i, {kPage, 1, 3, ours, theirs}, held[i], pair);
      if (HasFailure()) return;
    }
  }
}

class DriverCallsOfOwnLists : public DriverCallsOfRegions,
                              public testing::WithParamInterface<std::uint32_t> {};

TEST_P(DriverCallsOfOwnLists, AreOneLaunch) {
  const std::uint32_t lengths = GetParam();
  constexpr std::uint32_t kRegions = 20, kPages = 7;
  constexpr std::uint64_t kPage = 1000, kRegionBytes = 64 * kPage + 3;
  std::deque<Held> held;  // outlive the Engine
  Pair pair;
  std::vector<TransferPart> all;
  std::deque<std::vector<std::uint32_t>> lists;
  for (std::uint32_t i = 0; i < kRegions; ++i) {
    const std::string name = "layer " + std::to_string(i);
    held.push_back(Held::make(pair.engine, {.kind = "device0", .bytes = kRegionBytes}));
    pair.far.add(name, {.kind = "device1", .bytes = kRegionBytes});
    std::vector<std::uint32_t>&ours = lists.emplace_back(), &theirs = lists.emplace_back();
    for (std::uint32_t k = 0; k < kPages - i % lengths; ++k) {
      ours.push_back(i + 2 * k);
      theirs.push_back(63 - i - 3 * k);
    }
    all.push_back({held.back().region, pair.remote(name), Pages{kPage, 1, 3, ours, theirs}});
  }
  for (const bool prepared : {false, true})
    for (const Op op : {Op::write, Op::read}) {
      for (std::uint32_t i = 0; i < kRegions; ++i) {
        held[i].fill(2 * i);
        pair.far.fill("layer " + std::to_string(i), 2 * i + 1);
      }
      counts_.reset();
      const auto start = [&]() -> Result<Transfer> {
        if (!prepared) return op == Op::write ? pair.peer.write(all) : pair.peer.read(all);
        const auto made = pair.peer.prepare(op, all);
        return made.ok() ? made->post() : made.status();
      };
      ASSERT_EQ(finished(start()).to_string(), "ok");
      const DriverCalls calls = counts_.read();
      EXPECT_EQ(calls.at("cuLaunchKernel"), 1u);
      EXPECT_EQ(calls.at("cuStreamWriteValue64"), 1u);
      for (std::uint32_t i = 0; i < kRegions; ++i) {
        expect_moved(op, i, std::get<Pages>(all[i].shape), held[i], pair);
        if (HasFailure()) return;
      }
    }
}
INSTANTIATE_TEST_SUITE_P(Lists, DriverCallsOfOwnLists, testing::Values(1, 3),
                         [](const auto& param) {
                           return param.param == 1 ? "OfOneLength" : "OfSeveralLengths";
                         });

INSTANTIATE_TEST_SUITE_P(Every, DriverCallsOf, ::testing::ValuesIn(kCases),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace driver_calls_test
}  // namespace linkspan::test
