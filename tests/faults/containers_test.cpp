// Tests two Engines in different namespaces that share one folder of sockets, as containers do.
//
// Shared memory and two-sided messages work everywhere. The kernel copies private memory if the
// peer's process is visible, else the peer does, or shared memory carries it. A peer that may be
// another user is refused.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "base/process.hpp"
#include "tests/conformance/engine_fixture.hpp"
#include "tests/support/sanitizers.hpp"

namespace linkspan::test {
namespace containers_test {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr const char* kHelper = "contained";
constexpr const char* kVariable = "LINKSPAN_TEST_NAMESPACES";

// ---- the child -------------------------------------------------------------------------------

void write_file(const char* path, const std::string& text) {
  const base::Fd file(::open(path, O_WRONLY | O_CLOEXEC));
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    ::_exit(12);
}

/// Returns the folders below /tmp that a process of this test needs: that of the sockets, and those
/// of the program and of the driver, which lie there where the clone does.
std::set<std::filesystem::path> needed_below_tmp() {
  std::set<std::filesystem::path> all{std::getenv("LINKSPAN_TEST_SOCKETS"),
                                      file_beside_this_program("")};
  for (const char* name : {"LINKSPAN_CUDA_LIBRARY", "LINKSPAN_SHIM_DRIVER"})
    if (const char* const file = std::getenv(name))
      all.insert(std::filesystem::absolute(file).parent_path());
  std::erase_if(all, [](const auto& each) {
    return !each.string().starts_with("/tmp/") || !std::filesystem::exists(each);
  });
  return all;
}

/// Leaves a few KiB in /tmp, without what is needed there, and a MiB of shared memory.
void have_little_room() {
  std::vector<std::pair<std::filesystem::path, base::Fd>> kept;  // outer folders first
  for (const auto& folder : needed_below_tmp())
    kept.emplace_back(folder, base::Fd(::open(folder.c_str(), O_PATH | O_CLOEXEC)));
  if (::mount("none", "/tmp", "tmpfs", 0, "size=64k") != 0 ||
      ::mount("none", "/dev/shm", "tmpfs", 0, "size=1m") != 0)
    ::_exit(13);
  for (const auto& [folder, same] : kept) {
    const std::string source = "/proc/self/fd/" + std::to_string(same.get());
    std::error_code failed;
    std::filesystem::create_directories(folder, failed);
    if (failed || ::mount(source.c_str(), folder.c_str(), nullptr, MS_BIND, nullptr) != 0)
      ::_exit(18);
  }
}

/// Becomes the far Engine, in namespaces of its own, which uses the same descriptor.
[[noreturn]] void become_engine(const std::string& which) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto wants = [&](const char* word) { return which.find(word) != std::string::npos; };
  const int flags = (wants("pid") ? CLONE_NEWPID : 0) | (wants("ipc") ? CLONE_NEWIPC : 0) |
                    (wants("net") ? CLONE_NEWNET : 0) | (wants("user") ? CLONE_NEWUSER : 0) |
                    (wants("mount") ? CLONE_NEWNS : 0);
  if (::unshare(flags) != 0) ::_exit(11);
  if (wants("user") && !wants("nobody")) {
    write_file("/proc/self/setgroups", "deny");
    write_file("/proc/self/uid_map", "0 0 1");
    write_file("/proc/self/gid_map", "0 0 1");
  }
  if (wants("mount") && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
    ::_exit(17);
  if (wants("little")) have_little_room();
  if (wants("pid")) {
    const pid_t inner = ::fork();
    if (inner != 0) {
      int status = 0;
      ::waitpid(inner, &status, 0);
      ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 14);
    }
    if (wants("mount") && ::mount("proc", "/proc", "proc", 0, nullptr) != 0) ::_exit(15);
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::fcntl(3, F_SETFD, 0);
  char program[] = "/proc/self/exe", verb[] = "--helper=engine";
  char* const arguments[] = {program, verb, nullptr};
  ::execv(program, arguments);
  ::_exit(16);
}

void contained_main(Line&) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const pid_t child = ::fork();  // which has one thread: a sanitizer's are not copied
  if (child == 0) become_engine(std::getenv(kVariable));
  int status = 0;
  ::waitpid(child, &status, 0);
  ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 14);
}
const bool kRegistered = add_helper(kHelper, contained_main);

// ---- the tests -------------------------------------------------------------------------------

struct Namespaces {
  const char* name;
  const char* which;
  bool no_proc = false;
};
void PrintTo(const Namespaces& n, std::ostream* out) { *out << n.name; }

std::vector<std::string> environment(const Namespaces& n) {
  std::vector<std::string> all = {std::string(kVariable) + "=" + n.which};
  if (n.no_proc) {
    all.emplace_back(kNoProc);
    all.emplace_back("ASAN_OPTIONS=detect_leaks=0");  // which reads /proc
  }
  return all;
}

/// Returns false also for root of a container that may create no namespaces.
bool may_make_namespaces() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::geteuid() == 0 && ::unshare(CLONE_NEWNS | CLONE_NEWPID) == 0 ? 0 : 1);
  int status = 1;
  ::waitpid(child, &status, 0);
  return status == 0;
}

/// Returns OK, or the reason why this build cannot: a process with two threads cannot leave its
/// user namespace.
Status may_leave([[maybe_unused]] const std::string& which) {
#if defined(LINKSPAN_THREAD_SANITIZER)
  if (which.find("user") != std::string::npos)
    return {Code::unsupported, Scope::request,
            "needs a build without ThreadSanitizer, which has a thread of its own"};
#endif
  if (!may_make_namespaces())
    return {Code::unsupported, Scope::request, "needs root: it makes namespaces"};
  return {};
}

class Containers : public ::testing::TestWithParam<Namespaces> {
 protected:
  void SetUp() override {
    if (const Status status = may_leave(GetParam().which); !status.ok())
      GTEST_SKIP() << status.to_string();
  }
  bool sees_no_numbers() const {
    return std::string(GetParam().which).find("pid") != std::string::npos;
  }
};

TEST_P(Containers, MoveSharedMemoryBothWays) {
  Held here;
  Pair pair(environment(GetParam()), kHelper);
  here = Held::make(pair.engine, {.kind = "shared", .bytes = 8 * kMiB});
  pair.far.add("there", {.kind = "shared", .bytes = 8 * kMiB});
  const RemoteRegion there = pair.remote("there");
  const Block all{0, 0, 8 * kMiB};
  EXPECT_EQ(take(pair.peer.explain(Op::write, here.region, there, 1, kMiB)).path,
            "memfd+cpu_threads");
  here.fill(1);
  pair.far.fill("there", 2);
  EXPECT_EQ(finished(pair.peer.write(here.region, there, std::span(&all, 1))).to_string(), "ok");
  EXPECT_EQ(pair.far.difference("there", 2, {{0, 1, 0, 8 * kMiB}}), "");
  pair.far.fill("there", 3);
  EXPECT_EQ(finished(pair.peer.read(here.region, there, std::span(&all, 1))).to_string(), "ok");
  EXPECT_EQ(here.difference(1, {{0, 3, 0, 8 * kMiB}}), "");
}

TEST_P(Containers, MovePrivateMemoryAndSayWhereTheyCannot) {
  Held here, lent;
  Pair pair(environment(GetParam()), kHelper);
  here = Held::make(pair.engine, {.kind = "host"});
  lent = Held::loose(pair.engine, {.kind = "host"});
  pair.far.add("there", {.kind = "host"});
  must(pair.engine.publish("here", here.region));
  const RemoteRegion there = pair.remote("there");
  const Block all{0, 0, kMiB};
  here.fill(1);
  pair.far.fill("there", 2);
  const auto way = take(pair.peer.explain(Op::write, here.region, there, 1, kMiB));
  const Status status = finished(pair.peer.write(here.region, there, std::span(&all, 1)));
  EXPECT_EQ(status.to_string(), "ok") << way.path;
  EXPECT_EQ(pair.far.difference("there", 2, {{0, 1, 0, kMiB}}), "");
  // A process inside a pid namespace sees no number of the peer.
  const std::uint64_t id = pair.peer.id();
  pair.far.accept();
  const auto from_there = pair.far.explain("there", "here", kMiB);
  ASSERT_TRUE(from_there.ok()) << from_there.status().to_string();
  if (sees_no_numbers()) {
    EXPECT_EQ(*from_there, "bounce+cpu_threads");
    const std::string why = pair.far.why_no_better("there", "here");
    EXPECT_NE(why.find("another pid namespace"), std::string::npos) << why;
  }
  // Two-sided messages find a way nevertheless.
  pair.far.add_loose("loose", {.kind = "host"});
  pair.far.fill("loose", 5);
  lent.fill(6);
  const std::size_t sent =
      take(pair.far.post({.sends = true, .name = "loose", .bytes = kMiB, .tag = 9}));
  EXPECT_EQ(finished(pair.peer.recv(9, lent.at(0), kMiB)).to_string(), "ok");
  EXPECT_EQ(pair.far.end(sent).code, "ok");
  EXPECT_EQ(lent.difference(6, {{0, 5, 0, kMiB}}), "");
  EXPECT_EQ(pair.peer.id(), id);
}

TEST_P(Containers, MoveDeviceMemoryOrSayWhy) {
  if (Status status = kinds_here({kind_of("device0")}); !status.ok())
    GTEST_SKIP() << status.to_string();
  if (GetParam().no_proc) return;  // CUDA itself does not start without
  Held here;
  Pair pair(environment(GetParam()), kHelper);
  here = Held::make(pair.engine, {.kind = "device0"});
  pair.far.add("there", {.kind = "device0"});
  const auto found = pair.peer.lookup("there");
  if (sees_no_numbers() && !found.ok()) {  // the simulated driver opens its handles by /proc
    EXPECT_NE(found.status().what().find("simulated"), std::string::npos)
        << found.status().to_string();
    return;
  }
  const RemoteRegion there = take(found);
  const auto way = take(pair.peer.explain(Op::write, here.region, there, 1, kMiB));
  here.fill(1);
  pair.far.fill("there", 2);
  const Block all{0, 0, kMiB};
  const Status status = finished(pair.peer.write(here.region, there, std::span(&all, 1)));
  if (!way.path.empty()) {
    EXPECT_EQ(status.to_string(), "ok");
    EXPECT_EQ(pair.far.difference("there", 2, {{0, 1, 0, kMiB}}), "");
    return;
  }
  EXPECT_EQ(status.code(), Code::unreachable) << status.to_string();
  ASSERT_FALSE(way.refused.empty());
  EXPECT_FALSE(way.refused.front().reason.empty());
}

TEST_P(Containers, SeeAPeersDeath) {
  Pair pair(environment(GetParam()), kHelper);
  ASSERT_EQ(pair.peer.state(), PeerState::up);
  pair.far.process().kill();
  EXPECT_TRUE(is_down(pair.peer, base::Deadline::after(base::Clock::steady(), 10s)));
}

INSTANTIATE_TEST_SUITE_P(Every, Containers,
                         ::testing::Values(Namespaces{"ipc_net_mount", "ipc,net,mount"},
                                           Namespaces{"own_pids", "pid,mount"},
                                           Namespaces{"root_of_its_own", "user"},
                                           Namespaces{"all", "pid,ipc,net,user,mount"},
                                           Namespaces{"no_proc", "mount", true},
                                           Namespaces{"little_room", "mount,little"}),
                         [](const auto& each) { return std::string(each.param.name); });

TEST(ContainersRefuse, WhoMayBeAnyUser) {
  if (const Status status = may_leave("user"); !status.ok()) GTEST_SKIP() << status.to_string();
  Engine near = take(Engine::open(engine_options("near")));
  must(near.listen());
  // Without numbers for users all of them, itself too, are 65534 there.
  FarEngine far({std::string(kVariable) + "=user,nobody"}, kHelper);
  const Status status =
      far.process().line().call({{"do", "connect"}, {"address", near.address()}}).status();
  EXPECT_NE(status.what().find("permission_denied"), std::string::npos) << status.what();
  EXPECT_NE(status.what().find("user namespace"), std::string::npos) << status.what();
  EXPECT_NE(status.what().find("any_uid"), std::string::npos) << status.what();
  EXPECT_EQ(near.connect(far.address(), 5s).status().code(), Code::permission_denied);
}

}  // namespace containers_test
}  // namespace linkspan::test
