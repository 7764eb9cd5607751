// Tests a peer's memory that never answers a page fault: other orders still get executors.
#include <gtest/gtest.h>

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "copy/cpu_copier.hpp"
#include "tests/support/process.hpp"
#include "tests/support/silent_pages.hpp"
#include "tests/support/take.hpp"

namespace linkspan::copy {
namespace cpu_copier_share_test {

using namespace std::chrono_literals;
using test::take;

constexpr std::uint64_t kBytes = 64u << 10;
constexpr const char* kHelper = "silent_memory";

/// Answers with the address of memory whose page faults no thread handles; with 0 if not root,
/// which handling faults of another process's system call needs.
void silent_memory_main(test::Line& line) {
  test::SilentPages silent(kBytes);
  const bool made = silent.fall_silent();
  line.serve(
      [&](const test::Json&, const std::vector<base::Fd>&) -> Result<test::Answer> {
        return test::Answer{made ? reinterpret_cast<std::uintptr_t>(silent.at()) : 0, {}};
      },
      [] { return false; });
}
const bool kRegistered = test::add_helper(kHelper, silent_memory_main);

class SilentMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    silent_ = take(peer_->line().call({{"do", "it"}})).value.get<std::uint64_t>();
    if (silent_ == 0) GTEST_SKIP() << "needs root, to handle faults of system calls";
  }
  /// Starts a read of the peer's memory, which never ends by itself.
  Ticket ask(CpuCopier& copier, std::uint64_t peer) {
    std::vector<std::byte>& to = here_.emplace_back(kBytes);
    const Piece piece{address(to), silent_, kBytes};
    return take(copier.start({.method = Method::cross_process,
                              .pieces = {&piece, 1},
                              .pid = peer_->pid(),
                              .pidfd = peer_->pidfd(),
                              .remote_is_source = true,
                              .peer = peer}));
  }
  static std::uint64_t address(const std::vector<std::byte>& of) {
    return reinterpret_cast<std::uintptr_t>(of.data());
  }
  /// Returns true if a copy of the host's own memory ends.
  static bool copies(CpuCopier& copier) {
    const std::vector<std::byte> from(kBytes, std::byte{7});
    std::vector<std::byte> to(kBytes);
    const Piece piece{address(to), address(from), kBytes};
    const Ticket ticket =
        take(copier.start({.method = Method::cpu_threads, .pieces = {&piece, 1}}));
    if (!end(copier, ticket, 20s)) {
      copier.abort(ticket);
      return false;
    }
    return to == from;
  }
  static std::optional<Status> end(CpuCopier& copier, Ticket ticket, Duration time) {
    const auto limit = base::Deadline::after(base::Clock::steady(), time);
    while (true) {
      if (auto status = copier.poll(ticket)) return status;
      if (limit.passed()) return std::nullopt;
      std::this_thread::yield();
    }
  }
  /// Returns the number of threads in the kernel's call that reads the peer's memory, once it is
  /// `wanted`.
  static std::size_t standing(std::size_t wanted) {
    const std::string call = std::to_string(SYS_process_vm_readv) + " ";
    std::size_t count = 0;
    for (const auto limit = base::Deadline::after(base::Clock::steady(), 20s);
         count != wanted && !limit.passed(); std::this_thread::yield()) {
      count = 0;
      for (const auto& each : std::filesystem::directory_iterator("/proc/self/task")) {
        std::string doing;
        std::getline(std::ifstream(each.path() / "syscall"), doing);
        count += doing.starts_with(call) ? 1 : 0;
      }
    }
    return count;
  }
  static std::size_t threads() {
    const auto found = std::filesystem::directory_iterator("/proc/self/task");
    return static_cast<std::size_t>(std::distance(begin(found), std::filesystem::end(found)));
  }
  /// Ends the peer, which ends all copies that wait for its memory.
  void finish(CpuCopier& copier, const std::vector<Ticket>& all) {
    peer_->kill();
    for (const Ticket ticket : all) EXPECT_TRUE(end(copier, ticket, 20s).has_value());
  }

  const std::unique_ptr<test::Child> peer_ = take(test::Child::spawn(kHelper));
  std::uint64_t silent_ = 0;
  std::deque<std::vector<std::byte>> here_;
};

TEST_F(SilentMemory, LeavesSubstitutesToOthers_WhenItHasAllExecutors) {
  const auto copier = take(CpuCopier::create(2));
  std::vector<Ticket> asked;
  for (int i = 0; i < 4; ++i) asked.push_back(ask(*copier, 1));
  EXPECT_EQ(standing(2), 2u);
  EXPECT_TRUE(copies(*copier));
  EXPECT_EQ(standing(2), 2u) << "a substitute went there";
  finish(*copier, asked);
}

TEST_F(SilentMemory, LeavesOthersToWhoeverHelps) {
  const auto copier = take(CpuCopier::create(1));
  const Ticket held = ask(*copier, 1);
  EXPECT_EQ(standing(1), 1u);
  std::vector<std::byte> from(3 * CpuCopier::kChunkBytes + 5), to(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + (i >> 9));
  const Piece piece{address(to), address(from), from.size()};
  for (const Method method : {Method::cpu_threads, Method::cross_process}) {
    std::ranges::fill(to, std::byte{1});
    const base::Fd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
    const Ticket ticket = take(copier->start({.method = method,
                                              .pieces = {&piece, 1},
                                              .pid = ::getpid(),
                                              .pidfd = self.get(),
                                              .peer = 2}));
    EXPECT_TRUE(copier->help(ticket));
    EXPECT_FALSE(copier->poll(ticket).has_value()) << "a wait helps with a chunk, and looks again";
    while (copier->help(ticket)) continue;
    const auto end = copier->poll(ticket);
    ASSERT_TRUE(end.has_value()) << name_of(method);
    EXPECT_EQ(end->to_string(), "ok");
    EXPECT_TRUE(to == from);
    EXPECT_FALSE(copier->help(ticket));
  }
  finish(*copier, {held});
}

TEST_F(SilentMemory, HasItsExecutorReplaced_WhenItsOrderIsAborted) {
  const auto copier = take(CpuCopier::create(1));
  const Ticket first = ask(*copier, 1);
  EXPECT_EQ(standing(1), 1u);
  copier->abort(first);
  EXPECT_TRUE(copies(*copier));
  const Ticket second = ask(*copier, 2);
  EXPECT_EQ(standing(2), 2u);
  copier->abort(second);
  EXPECT_TRUE(copies(*copier));
  finish(*copier, {first, second});
}

TEST_F(SilentMemory, LeavesNoExecutorMore_WhenItsOwnComeBack) {
  const auto copier = take(CpuCopier::create(1));
  EXPECT_TRUE(copies(*copier));
  const std::size_t before = threads();
  const std::vector<Ticket> asked{ask(*copier, 1)};
  EXPECT_EQ(standing(1), 1u);
  copier->abort(asked.front());
  EXPECT_TRUE(copies(*copier));
  EXPECT_EQ(threads(), before + 1);
  finish(*copier, asked);
  const auto limit = base::Deadline::after(base::Clock::steady(), 20s);
  while (threads() > before && !limit.passed()) std::this_thread::yield();
  EXPECT_EQ(threads(), before);
}

}  // namespace cpu_copier_share_test
}  // namespace linkspan::copy
