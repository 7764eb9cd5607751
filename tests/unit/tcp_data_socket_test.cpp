// Tests the socket of a data connection: what its calls return when it is full, empty, closed or
// reset, and when the user's memory is not there.
#include "transport/tcp/data_socket.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "memory/validate_allocation.hpp"
#include "tests/support/tcp_pair.hpp"

namespace linkspan::transport::tcp {
namespace tcp_data_socket_test {

using namespace std::chrono_literals;
using test::take;
using Bytes = std::vector<std::byte>;

Bytes pattern(std::size_t bytes) {
  Bytes data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(i * 31 ^ i >> 8);
  return data;
}

/// A page whose memory can be taken away.
class Page {
 public:
  explicit Page(int protection)
      : bytes_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))),
        data_(::mmap(nullptr, bytes_, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    EXPECT_NE(data_, MAP_FAILED);
  }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  ~Page() { ::munmap(data_, bytes_); }
  /// Makes each access a fault. The address stays taken, so no other memory gets it.
  void forbid() { ASSERT_EQ(::mprotect(data_, bytes_, PROT_NONE), 0); }
  iovec part() const { return {data_, 100}; }

 private:
  const std::size_t bytes_;
  void* const data_;
};

class TcpDataSocket : public ::testing::Test {
 protected:
  TcpDataSocket() : TcpDataSocket(test::tcp_pair()) {}

 private:
  explicit TcpDataSocket(std::pair<base::Fd, base::Fd> pair)
      : here_(std::move(pair.first), nullptr), there_(std::move(pair.second)) {}

 protected:
  static iovec part(Bytes& bytes, std::size_t from, std::size_t count) {
    return {bytes.data() + from, count};
  }
  static bool wait(int fd, short events) {
    pollfd wanted{.fd = fd, .events = events, .revents = 0};
    return ::poll(&wanted, 1, 10000) == 1;
  }
  /// Sends at the other end, and waits until it is here.
  void comes(const Bytes& bytes) {
    ASSERT_EQ(::send(there_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    ASSERT_TRUE(wait(here_.fd(), POLLIN));
  }
  /// Returns the error after which the socket does no more. Waits for it, 10 s at most.
  template <class Call>
  Status last_error(const Call& call) {
    Status status;
    for (const auto limit = base::Deadline::in(10s); status.ok() && !limit.passed();)
      status = call().status();
    return status;
  }

  DataSocket here_;
  base::Fd there_;
};

TEST_F(TcpDataSocket, SendsItsPartsInTheirOrder) {
  Bytes bytes = pattern(1000), came(1000);
  iovec parts[] = {part(bytes, 0, 1), part(bytes, 1, 0), part(bytes, 1, 700),
                   part(bytes, 701, 299)};
  EXPECT_EQ(take(here_.send(parts)), 1000u);
  EXPECT_EQ(::recv(there_.get(), came.data(), came.size(), MSG_WAITALL), 1000);
  EXPECT_EQ(came, bytes);
  EXPECT_FALSE(here_.is_encrypted());
}

TEST_F(TcpDataSocket, ReceivesIntoItsPartsInTheirOrder_AndReturnsZeroWhenNothingIsHere) {
  Bytes came(1000);
  iovec parts[] = {part(came, 0, 3), part(came, 3, 500), part(came, 503, 497)};
  EXPECT_EQ(take(here_.receive(parts)), 0u);
  const Bytes bytes = pattern(600);
  comes(bytes);
  EXPECT_EQ(take(here_.receive(parts)), 600u);
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), came.begin()));
  EXPECT_EQ(came[600], std::byte{}) << "no more was written";
  EXPECT_EQ(take(here_.receive(parts)), 0u);
}

TEST_F(TcpDataSocket, ReturnsZero_WhenItIsFull) {
  Bytes bytes = pattern(1 << 20);
  std::size_t sent = 0, now = 1;
  for (const auto limit = base::Deadline::in(10s); now != 0 && !limit.passed(); sent += now) {
    iovec one[] = {part(bytes, 0, bytes.size())};
    now = take(here_.send(one));
  }
  EXPECT_EQ(now, 0u);
  std::size_t received = 0;
  while (received < sent) {  // nothing is lost, and no more was sent
    ASSERT_TRUE(wait(there_.get(), POLLIN));
    const ssize_t got = ::recv(there_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    ASSERT_GT(got, 0);
    received += static_cast<std::size_t>(got);
  }
  EXPECT_EQ(received, sent);
}

TEST_F(TcpDataSocket, ReceivesWhatWasSentBefore_WhenThePeerHasClosed) {
  comes(pattern(10));
  there_ = {};
  Bytes came(100);
  iovec parts[] = {part(came, 0, 100)};
  EXPECT_EQ(take(here_.receive(parts)), 10u);
  const Status end = last_error([&] { return here_.receive(parts); });
  EXPECT_EQ(end.code(), Code::disconnected);
  EXPECT_EQ(end.scope(), Scope::peer);
  EXPECT_EQ(end.what(), "the peer has closed a data connection");
}

/// SIGPIPE would end this process.
TEST_F(TcpDataSocket, IsDisconnected_WhenItSendsToAPeerThatHasGone) {
  there_ = {};
  Bytes bytes = pattern(100);
  const Status end = last_error([&] {
    iovec parts[] = {part(bytes, 0, 100)};
    return here_.send(parts);
  });
  EXPECT_EQ(end.code(), Code::disconnected);
  EXPECT_EQ(end.what().find("a data connection takes no more: "), 0u) << end.what();
}

TEST_F(TcpDataSocket, DropsWhatIsUnderWay_WhenItIsResetOnClose) {
  auto [ours, theirs] = test::tcp_pair();
  Bytes bytes = pattern(100);
  {
    DataSocket ending(std::move(ours), nullptr);
    iovec parts[] = {part(bytes, 0, 100)};
    EXPECT_EQ(take(ending.send(parts)), 100u);
    ending.reset_on_close();
  }
  DataSocket other(std::move(theirs), nullptr);
  iovec parts[] = {part(bytes, 0, 100)};
  const Status end = last_error([&] { return other.receive(parts); });
  EXPECT_EQ(end.code(), Code::disconnected);
  EXPECT_EQ(end.what(), "a data connection brings no more: Connection reset by peer");
}

TEST_F(TcpDataSocket, IsUnreachableAndGoesOn_WhenTheMemoryToSendIsNotMapped) {
  Page page(PROT_READ | PROT_WRITE);
  page.forbid();
  iovec gone[] = {page.part()};
  const auto sent = here_.send(gone);
  EXPECT_EQ(sent.status().code(), Code::unreachable);
  EXPECT_EQ(sent.status().what(), memory::freed_early().what());
  Bytes bytes = pattern(10);
  iovec parts[] = {part(bytes, 0, 10)};
  EXPECT_EQ(take(here_.send(parts)), 10u);
}

TEST_F(TcpDataSocket, IsUnreachableAndKeepsTheBytes_WhenADestinationIsNotWritable) {
  const Page page(PROT_READ);
  const Bytes bytes = pattern(100);
  comes(bytes);
  iovec fixed[] = {page.part()};
  const auto got = here_.receive(fixed);
  EXPECT_EQ(got.status().code(), Code::unreachable);
  EXPECT_EQ(got.status().what(), memory::freed_early().what());
  Bytes came(100);
  iovec parts[] = {part(came, 0, 100)};
  EXPECT_EQ(take(here_.receive(parts)), 100u);
  EXPECT_EQ(came, bytes);
}

TEST_F(TcpDataSocket, CountsItsTraffic_WhenBytesCameOrWereAcknowledged) {
  const std::uint64_t before = here_.traffic();
  comes(pattern(300));
  EXPECT_EQ(here_.traffic(), before + 300) << "received, although not read";
  Bytes bytes = pattern(500);
  iovec parts[] = {part(bytes, 0, 500)};
  EXPECT_EQ(take(here_.send(parts)), 500u);
  const auto limit = base::Deadline::in(10s);
  while (here_.traffic() != before + 800 && !limit.passed()) {
  }
  EXPECT_EQ(here_.traffic(), before + 800);
}

/// The bytes on the wire are tls_test.cpp's.
TEST_F(TcpDataSocket, CarriesBytesByTls_WhenItIsEncrypted) {
  auto [a, b] = test::tcp_pair();
  const auto context = take(base::TlsContext::create("a secret of the tests"));
  auto near_tls = take(base::TlsEnd::create(context, a.get(), base::TlsSide::connector));
  auto far_tls = take(base::TlsEnd::create(context, b.get(), base::TlsSide::acceptor));
  DataSocket near(std::move(a), std::move(near_tls)), far(std::move(b), std::move(far_tls));
  EXPECT_TRUE(near.is_encrypted() && far.is_encrypted());
  Bytes bytes = pattern(1000), came(1000);
  std::size_t sent = 0, got = 0;
  for (const auto limit = base::Deadline::in(10s); got < 1000 && !limit.passed();) {
    iovec out[] = {part(bytes, sent, 1000 - sent)};
    if (sent < 1000) sent += take(near.send(out));
    iovec none[] = {part(bytes, 0, 0)};
    EXPECT_EQ(take(near.receive(none)), 0u) << "the handshake is received too";
    iovec in[] = {part(came, got, 1000 - got)};
    got += take(far.receive(in));
  }
  EXPECT_EQ(came, bytes);
}

}  // namespace tcp_data_socket_test
}  // namespace linkspan::transport::tcp
