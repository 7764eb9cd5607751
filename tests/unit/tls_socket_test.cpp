// Tests the socket under TLS as libssl uses it: what is collected and sent, what comes in, and how
// a peer without TLS, or one that has gone, is noticed.
#include "base/tls_socket.hpp"

#include <gtest/gtest.h>
#include <openssl/bio.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/no_memory.hpp"
#include "tests/support/tcp_pair.hpp"

namespace linkspan::base {
namespace tls_socket_test {

using namespace std::chrono_literals;

/// Commands that libssl sends (tls_socket.cpp).
constexpr int kLeaveToKernel = 72, kNextIsMessage = 74, kNextIsData = 75;

const std::string kRecord("\x16\x03\x01\x00\x20\x01", 6);  // begins a ClientHello

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

class TlsSocketTest : public ::testing::Test {
 protected:
  TlsSocketTest() : TlsSocketTest(test::tcp_pair()) {}
  TlsSocketTest(const TlsSocketTest&) = delete;
  TlsSocketTest& operator=(const TlsSocketTest&) = delete;
  ~TlsSocketTest() override { BIO_free_all(bio_); }

  int write(const std::string& text) {
    return BIO_write(bio_, text.data(), static_cast<int>(text.size()));
  }
  /// Reads at most `most` bytes. Returns what BIO_read() has.
  std::pair<int, std::string> read(int most = 100) {
    std::string text(static_cast<std::size_t>(most), '?');
    const int got = BIO_read(bio_, text.data(), most);
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return {got, text};
  }
  /// Reads all that has come, until there is nothing or an error.
  std::string read_all() {
    std::string all;
    for (auto some = read(); some.first > 0; some = read()) all += some.second;
    return all;
  }
  /// Sends at the other end, and waits until it is here.
  void comes(const std::string& text) {
    ASSERT_EQ(::send(there_.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
    wait_here();
  }
  void wait_here() {
    pollfd readable{.fd = here_.get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&readable, 1, 10000), 1);
  }
  /// Returns what is at the other end now.
  std::string there_now() {
    std::string text(1 << 20, '?');
    const ssize_t got = ::recv(there_.get(), text.data(), text.size(), MSG_DONTWAIT);
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return text;
  }
  /// Returns the next `count` bytes at the other end.
  std::string there(std::size_t count) {
    std::string all;
    const auto limit = Deadline::in(10s);
    while (all.size() < count) {
      const auto some = net::receive_some(there_, count - all.size(), limit);
      if (!some.ok()) break;
      all += *some;
    }
    return all;
  }
  /// Writes more than both ends hold, however late the kernel hands it over. Returns it.
  std::string fill() {
    const int held = 65536;  // a set size does not grow
    EXPECT_EQ(::setsockopt(here_.get(), SOL_SOCKET, SO_SNDBUF, &held, sizeof held), 0);
    EXPECT_EQ(::setsockopt(there_.get(), SOL_SOCKET, SO_RCVBUF, &held, sizeof held), 0);
    std::string all;
    for (int i = 0; i < 20; ++i) {
      const std::string block(100'000, static_cast<char>('a' + i));
      EXPECT_EQ(write(block), static_cast<int>(block.size())) << "it never is full for libssl";
      all += block;
    }
    EXPECT_FALSE(socket_.drain());
    return all;
  }

  Fd here_, there_;
  TlsSocket socket_;
  const std::unique_ptr<BIO_METHOD, decltype(&BIO_meth_free)> method_;
  BIO* bio_;

 private:
  static int type() {
    static const int number = BIO_get_new_index();
    return number;
  }
  explicit TlsSocketTest(std::pair<Fd, Fd> pair)
      : here_(std::move(pair.first)),
        there_(std::move(pair.second)),
        socket_(here_.get()),
        method_(BIO_meth_new(type() | BIO_TYPE_FILTER, "a test's socket"), &BIO_meth_free) {
    EXPECT_TRUE(TlsSocket::set_callbacks(method_.get()));
    bio_ = socket_.create_bio(method_.get());
    EXPECT_NE(bio_, nullptr);
  }
};

TEST_F(TlsSocketTest, SendsWhatItHasCollectedInOneStream_WhenItIsDrained) {
  EXPECT_EQ(write("one,"), 4);
  EXPECT_EQ(write("two"), 3);
  EXPECT_EQ(there_now(), "") << "several records go in one call";
  EXPECT_TRUE(socket_.drain());
  EXPECT_EQ(there(7), "one,two");
  EXPECT_TRUE(socket_.drain()) << "nothing is left";
  EXPECT_EQ(there_now(), "");
  EXPECT_EQ(socket_.fd(), here_.get());
}

TEST_F(TlsSocketTest, SendsWhatItHasCollected_WhenLibsslFlushes) {
  write("one");
  EXPECT_EQ(BIO_flush(bio_), 1);
  EXPECT_EQ(there(3), "one");
}

TEST_F(TlsSocketTest, AsksToRetry_WhenMemoryEnds) {
  int wrote = 0;
  test::fail_each_allocation([&] { wrote = write("one"); },
                             [&](bool threw) {
                               EXPECT_FALSE(threw) << "no exception may pass libssl";
                               if (wrote == 3) return;
                               EXPECT_EQ(wrote, -1);
                               EXPECT_TRUE(BIO_should_retry(bio_) && BIO_should_write(bio_));
                               EXPECT_TRUE(socket_.lacks_memory());
                             });
  EXPECT_TRUE(socket_.drain());
  EXPECT_EQ(there(3), "one");
}

TEST_F(TlsSocketTest, SendsTheRestInItsOrder_WhenTheSocketHasRoomAgain) {
  const std::string all = fill() + "the end";
  write("the end");
  EXPECT_FALSE(socket_.drain());
  EXPECT_EQ(socket_.error(), 0) << "a full socket is no failure";
  EXPECT_EQ(BIO_flush(bio_), -1);
  EXPECT_TRUE(BIO_should_retry(bio_) && BIO_should_write(bio_));
  std::string came;
  for (const auto limit = Deadline::in(20s); came.size() < all.size() && !limit.passed();) {
    came += there_now();
    (void)socket_.drain();
  }
  EXPECT_TRUE(came == all);
  EXPECT_EQ(BIO_flush(bio_), 1);
}

/// SIGPIPE would end this process.
TEST_F(TlsSocketTest, KeepsTheErrorOfTheSocket_WhenThePeerHasGone) {
  there_ = {};
  for (const auto limit = Deadline::in(10s); socket_.error() == 0 && !limit.passed();) {
    write("x");
    (void)socket_.drain();
  }
  EXPECT_TRUE(socket_.error() == EPIPE || socket_.error() == ECONNRESET) << socket_.error();
  EXPECT_FALSE(socket_.lacks_memory());
  EXPECT_EQ(BIO_flush(bio_), -1);
  EXPECT_FALSE(BIO_should_retry(bio_));
  socket_.clear_error();
  EXPECT_EQ(socket_.error(), 0);
}

TEST_F(TlsSocketTest, AsksToRetry_WhenNothingIsHere) {
  const auto [got, text] = read();
  EXPECT_EQ(got, -1);
  EXPECT_TRUE(BIO_should_retry(bio_) && BIO_should_read(bio_));
  EXPECT_EQ(socket_.error(), 0);
  EXPECT_FALSE(socket_.ended());
}

TEST_F(TlsSocketTest, DeliversAllBytes_WhenThePeerUsesTls) {
  comes(kRecord + "the rest");
  EXPECT_EQ(read(2).second, kRecord.substr(0, 2)) << "as few as libssl asks for";
  EXPECT_EQ(kRecord.substr(0, 2) + read_all(), kRecord + "the rest");
  comes("no record any more");  // is libssl's to judge
  EXPECT_EQ(read_all(), "no record any more");
  EXPECT_TRUE(socket_.came_plain().empty());
}

TEST_F(TlsSocketTest, KeepsTheFirstBytes_WhenThePeerUsesNoTls) {
  comes("GE");
  EXPECT_EQ(read_all(), "GE") << "two bytes do not suffice";
  EXPECT_TRUE(socket_.came_plain().empty());
  comes("T /index");
  EXPECT_EQ(read().first, -1);
  const auto plain = socket_.came_plain();
  EXPECT_EQ(std::vector(plain.begin(), plain.end()), bytes_of("GET /"));
  std::string left(100, '?');
  const ssize_t got = ::recv(here_.get(), left.data(), left.size(), MSG_DONTWAIT);
  EXPECT_EQ(left.substr(0, static_cast<std::size_t>(std::max<ssize_t>(got, 0))), "index")
      << "the rest is the caller's";
}

TEST_F(TlsSocketTest, HasEnded_WhenThePeerHasClosed) {
  comes(kRecord);
  there_ = {};
  EXPECT_EQ(read_all(), kRecord);
  wait_here();
  EXPECT_EQ(read().first, 0);
  EXPECT_TRUE(socket_.ended());
  EXPECT_EQ(socket_.error(), 0);
}

TEST_F(TlsSocketTest, HasEnded_WhenTlsSaysSo) {
  EXPECT_FALSE(socket_.ended());
  socket_.end();
  EXPECT_TRUE(socket_.ended());
}

TEST_F(TlsSocketTest, KeepsTheErrorOfTheSocket_WhenThePeerResets) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ASSERT_EQ(::setsockopt(there_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
  there_ = {};
  wait_here();
  EXPECT_EQ(read().first, -1);
  EXPECT_FALSE(BIO_should_retry(bio_));
  EXPECT_EQ(socket_.error(), ECONNRESET);
  EXPECT_FALSE(socket_.ended());
}

TEST_F(TlsSocketTest, LetsTheKernelDecryptNothing) {
  EXPECT_EQ(BIO_ctrl(bio_, kLeaveToKernel, 0, nullptr), 0);
}

/// An alert would need a control message to the kernel, which the end of the socket replaces.
TEST_F(TlsSocketTest, DropsAMessageThatIsNoData_WhileTheKernelEncrypts) {
  EXPECT_EQ(BIO_ctrl(bio_, kNextIsMessage, 21, nullptr), 0);
  EXPECT_EQ(write("alert"), 5);
  EXPECT_EQ(write("data,"), 5);
  EXPECT_EQ(BIO_ctrl(bio_, kNextIsMessage, 21, nullptr), 0);
  EXPECT_EQ(BIO_ctrl(bio_, kNextIsData, 0, nullptr), 0);
  EXPECT_EQ(write("more"), 4);
  EXPECT_TRUE(socket_.drain());
  EXPECT_EQ(there(9), "data,more");
}

/// Each kind of record, of each version.
class TlsSocketRecords : public TlsSocketTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Every, TlsSocketRecords,
                         ::testing::Values("\x14\x03\x01", "\x15\x03\x02", "\x16\x03\x03",
                                           "\x17\x03\x04"));

TEST_P(TlsSocketRecords, AreNotPlain) {
  comes(GetParam());
  EXPECT_EQ(read_all(), GetParam());
  EXPECT_TRUE(socket_.came_plain().empty());
}

/// What is one byte beyond them.
class TlsSocketPlain : public TlsSocketTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Every, TlsSocketPlain,
                         ::testing::Values("\x13\x03\x01", "\x18\x03\x01", "\x16\x02\x01",
                                           "\x16\x04\x01", "\x16\x03\x05"));

TEST_P(TlsSocketPlain, IsNoRecord) {
  comes(GetParam());
  EXPECT_EQ(read().first, -1);
  const auto plain = socket_.came_plain();
  EXPECT_EQ(std::vector(plain.begin(), plain.end()), bytes_of(GetParam()));
}

TEST(BeginsTls, IsTrueForAClientHelloAlone) {
  const auto begins = [](const std::string& text) { return begins_tls(bytes_of(text)); };
  EXPECT_TRUE(begins(kRecord));
  EXPECT_TRUE(begins(kRecord + "and more"));
  EXPECT_FALSE(begins(kRecord.substr(0, 5))) << "too short";
  EXPECT_FALSE(begins(""));
  for (const unsigned at : {0u, 1u, 2u, 5u}) {
    std::string other = kRecord;
    other[at] = '\x09';
    EXPECT_FALSE(begins(other)) << at;
  }
  EXPECT_FALSE(begins(std::string("\x15\x03\x01\x00\x02\x01", 6))) << "an alert";
  EXPECT_FALSE(begins(std::string("\x16\x03\x01\x00\x20\x02", 6))) << "a ServerHello";
}

}  // namespace tls_socket_test
}  // namespace linkspan::base
