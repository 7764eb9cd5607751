#include "base/process.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <csignal>
#include <set>

namespace linkspan::base {

TEST(Process, KnowsItself) {
  const ProcessIdentity me = this_process();
  EXPECT_EQ(me, this_process());
  EXPECT_NE(me.boot_id, (std::array<std::byte, 16>{}));
  EXPECT_NE(me.start_time, 0u);
  EXPECT_NE(me.nonce, 0u);
}

TEST(Process, AForkedChildIsAnotherProcess) {
  const std::uint64_t mine = this_process().nonce;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Fd read_end(ends[0]), write_end(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::uint64_t nonce = this_process().nonce;
    ::_exit(::write(write_end.get(), &nonce, sizeof nonce) == sizeof nonce ? 0 : 1);
  }
  std::uint64_t theirs = 0;
  ASSERT_EQ(::read(read_end.get(), &theirs, sizeof theirs), static_cast<ssize_t>(sizeof theirs));
  EXPECT_NE(theirs, 0u);
  EXPECT_NE(theirs, mine);
  EXPECT_EQ(this_process().nonce, mine);
  ::waitpid(child, nullptr, 0);
}

TEST(Process, SeesWhoIsAtTheOtherEnd) {
  const auto pair = socket_pair();
  ASSERT_TRUE(pair.ok());
  const Result<PeerCredentials> peer = peer_credentials(pair->first.get());
  ASSERT_TRUE(peer.ok()) << peer.status().to_string();
  EXPECT_EQ(peer->pid, ::getpid());
  EXPECT_EQ(peer->uid, ::getuid());
  EXPECT_EQ(peer_credentials(-1).status().code(), Code::system);
}

TEST(Process, TellsAUnixSocketFromOthers) {
  const Fd tcp(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const Fd file(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  EXPECT_TRUE(is_unix_socket(socket_pair()->first.get()));
  EXPECT_FALSE(is_unix_socket(tcp.get()));
  EXPECT_FALSE(is_unix_socket(file.get()));
  EXPECT_FALSE(is_unix_socket(-1));
}

TEST(Process, APidfdTellsOfTheEnd) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const Result<Fd> pidfd = open_pidfd(child);
  ASSERT_TRUE(pidfd.ok()) << pidfd.status().to_string();
  pollfd look{pidfd->get(), POLLIN, 0};
  EXPECT_EQ(::poll(&look, 1, 0), 0);
  ::kill(child, SIGKILL);
  EXPECT_EQ(::poll(&look, 1, 10000), 1);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(open_pidfd(child).status().code(), Code::not_found);
}

TEST(Process, KnowsAPidfdWhoseverItIs) {
  const auto own = open_pidfd(::getpid()), parent = open_pidfd(::getppid()), first = open_pidfd(1);
  ASSERT_TRUE(own.ok());
  EXPECT_TRUE(is_pidfd(own->get()));
  for (const auto* each : {&parent, &first}) EXPECT_TRUE(!each->ok() || is_pidfd((*each)->get()));
  const Fd folder(::open("/", O_DIRECTORY | O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(is_pidfd(folder.get()));
  EXPECT_FALSE(is_pidfd(1 << 20));
}

TEST(Process, AUserNumberNamesOneUserUnlessItStandsForAllThatHaveNone) {
  EXPECT_TRUE(names_one_user(0));
  EXPECT_TRUE(names_one_user(1000));
  const pid_t child = ::fork();
  if (child == 0) {  // a user namespace without a mapping of numbers
    if (::unshare(CLONE_NEWUSER) != 0) ::_exit(2);
    ::_exit(::geteuid() == 65534 && !names_one_user(65534) && names_one_user(0) ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) != 2) {  // 2: the kernel makes none for us
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
}

TEST(Process, RandomNumbersDiffer) {
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(seen.insert(random_u64()).second);
  std::array<std::byte, 1000> bytes{};
  ASSERT_TRUE(random_bytes(bytes).ok());
  EXPECT_GT(std::set<std::byte>(bytes.begin(), bytes.end()).size(), 100u);
  EXPECT_TRUE(random_bytes({}).ok());
}

}  // namespace linkspan::base
