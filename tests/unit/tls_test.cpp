// Tests TLS between two ends: what arrives, and that no other byte does.
#include "base/tls.hpp"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "base/fd_channel.hpp"
#include "tests/support/no_memory.hpp"
#include "tests/support/tcp_pair.hpp"

namespace linkspan::base {
namespace tls_test {

using test::take;
using Bytes = std::vector<std::byte>;

constexpr std::string_view kSecret = "a secret of the tests";

Bytes pattern(std::size_t bytes, unsigned seed = 0) {
  Bytes data(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    data[i] = static_cast<std::byte>((i * 31 + seed) ^ i >> 8);
  return data;
}

/// Stands between two sockets, records all that passes, and may change it.
struct Between {
  /// Passes bytes on. Returns false if nothing came and nothing is held back.
  bool turn(int from, int to) {
    Bytes& held = held_by[from];
    Bytes some(held.empty() ? 65536 : 0);
    const ssize_t got = some.empty() ? 0 : ::recv(from, some.data(), some.size(), MSG_DONTWAIT);
    if (got > 0) {
      some.resize(static_cast<std::size_t>(got));
      if (change) change(some);
      seen.insert(seen.end(), some.begin(), some.end());
      held = std::move(some);
    }
    if (held.empty()) return false;
    const ssize_t sent = ::send(to, held.data(), held.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) held.erase(held.begin(), held.begin() + sent);
    return true;
  }
  std::function<void(Bytes&)> change;
  Bytes seen;
  std::map<int, Bytes> held_by;  // by where it came from
};

class Tls : public ::testing::Test {
 protected:
  Tls() { ends(kSecret, kSecret); }
  void ends(std::string_view connectors, std::string_view acceptors,
            std::uint64_t records = kTlsRecordsAKey) {
    between_.held_by.clear();
    std::tie(a_, b_) = test::tcp_pair();
    std::tie(c_, d_) = test::tcp_pair();
    here_ = take(TlsEnd::create(take(TlsContext::create(connectors)), a_.get(), TlsSide::connector,
                                records));
    there_ = take(
        TlsEnd::create(take(TlsContext::create(acceptors)), d_.get(), TlsSide::acceptor, records));
  }
  bool turn() {
    const bool forth = between_.turn(b_.get(), c_.get());
    return between_.turn(c_.get(), b_.get()) || forth;
  }
  static Result<std::size_t> send(TlsEnd& by, const Bytes& bytes) {
    const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    return by.send(std::span(&part, 1));
  }
  static Result<Bytes> receive(TlsEnd& by, std::size_t most = 65536) {
    Bytes bytes(most);
    const iovec part{bytes.data(), bytes.size()};
    const auto got = by.receive(std::span(&part, 1));
    if (!got.ok()) return got.status();
    bytes.resize(*got);
    return bytes;
  }
  /// Runs the handshake. Returns both results, OK once both are up.
  std::pair<Status, Status> shake() {
    Status here, there;
    for (int i = 0; i < 1000 && !(here_->is_up() && there_->is_up()); ++i) {
      if (here.ok()) here = receive(*here_).status();
      if (there.ok()) there = receive(*there_).status();
      if (!turn() && !here.ok() && !there.ok()) break;
    }
    return {here, there};
  }
  void meet() {
    const auto [here, there] = shake();
    ASSERT_TRUE(here_->is_up() && there_->is_up()) << here.to_string() << there.to_string();
  }
  /// Sends all of it on one side and receives it on the other.
  void carry(TlsEnd& from, TlsEnd& to, const Bytes& bytes, const std::vector<std::size_t>& pieces) {
    std::vector<iovec> parts;
    for (std::size_t at = 0, i = 0; at < bytes.size(); ++i) {
      const std::size_t some = std::min(pieces[i % pieces.size()], bytes.size() - at);
      parts.push_back({const_cast<std::byte*>(bytes.data()) + at, some});
      at += some;
    }
    Bytes came;
    std::size_t part = 0;
    for (int i = 0; i < 100000 && came.size() < bytes.size(); ++i) {
      const auto sent = from.send(std::span(parts).subspan(part));
      ASSERT_TRUE(sent.ok()) << sent.status().to_string();
      for (std::size_t left = *sent; left != 0;) {
        const std::size_t cut = std::min(left, parts[part].iov_len);
        parts[part].iov_base = static_cast<std::byte*>(parts[part].iov_base) + cut;
        parts[part].iov_len -= cut;
        left -= cut;
        if (parts[part].iov_len == 0) ++part;
      }
      turn();
      const auto got = receive(to, 1 + static_cast<std::size_t>(i) * 977 % 70000);
      ASSERT_TRUE(got.ok()) << got.status().to_string();
      came.insert(came.end(), got->begin(), got->end());
    }
    EXPECT_EQ(came, bytes);
  }

  Fd a_, b_, c_, d_;
  std::unique_ptr<TlsEnd> here_, there_;  // by a and d
  Between between_;
};

TEST_F(Tls, CarriesBytesInPiecesOfAnySizeBothWays) {
  const int few = 8192;  // so that records go in parts
  for (const Fd* each : {&a_, &b_, &c_, &d_})
    ASSERT_EQ(::setsockopt(each->get(), SOL_SOCKET, SO_SNDBUF, &few, sizeof few), 0);
  meet();
  unsigned seed = 0;
  for (const std::vector<std::size_t>& pieces :
       {std::vector<std::size_t>{1}, {8, 4096, 3}, {16384}, {16385, 1, 70000}, {1u << 20}}) {
    carry(*here_, *there_, pattern(200'001, ++seed), pieces);
    carry(*there_, *here_, pattern(200'001, ++seed), pieces);
  }
  EXPECT_STREQ(here_->name(), "TLS");  // a socket of another kernel may say kTLS
}

TEST_F(Tls, GatherSmallPiecesInOneRecord) {
  meet();
  const std::size_t before = between_.seen.size();
  carry(*here_, *there_, pattern(8000), {16});
  EXPECT_LT(between_.seen.size() - before, 8000u + 64);
}

TEST_F(Tls, ShowsNothingOfItOnTheWay) {
  meet();
  const Bytes bytes = pattern(100'000, 7);
  carry(*here_, *there_, bytes, {5000});
  for (std::size_t at = 0; at + 16 <= bytes.size(); at += 1000)
    EXPECT_EQ(std::search(between_.seen.begin(), between_.seen.end(),
                          bytes.begin() + static_cast<std::ptrdiff_t>(at),
                          bytes.begin() + static_cast<std::ptrdiff_t>(at) + 16),
              between_.seen.end());
}

TEST_F(Tls, RefusesAnotherSecretOnBothSides) {
  ends("another secret of tests", kSecret);
  const auto [here, there] = shake();
  for (const Status& each : {here, there}) {
    EXPECT_EQ(each.code(), Code::permission_denied) << each.to_string();
    EXPECT_NE(each.what().find("another secret"), std::string::npos) << each.what();
  }
  EXPECT_FALSE(here_->is_up() || there_->is_up());
}

TEST_F(Tls, TellsThePeerThatSpeaksNone) {
  const auto header = encode(FrameHeader{.length = 200, .op = 1, .id = 0, .incarnation = 5});
  for (const std::size_t cut : {std::size_t{3}, std::size_t{24}}) {
    ends(kSecret, kSecret);
    ASSERT_EQ(::send(c_.get(), header.data(), cut, 0), static_cast<ssize_t>(cut));
    ASSERT_EQ(::send(b_.get(), header.data(), cut, 0), static_cast<ssize_t>(cut));
    for (TlsEnd* each : {here_.get(), there_.get()}) {
      Status status;
      for (int i = 0; i < 1000 && status.ok(); ++i) status = receive(*each).status();
      EXPECT_EQ(status.code(), Code::permission_denied) << status.to_string();
      EXPECT_NE(status.what().find("LINKSPAN_SECURITY=encrypted"), std::string::npos);
      const auto came = each->came_plain();
      ASSERT_GE(came.size(), 3u);
      EXPECT_TRUE(std::equal(came.begin(), came.end(), header.begin()));
    }
  }
}

TEST_F(Tls, EndsWithWhatIsNoHandshake) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    ends(kSecret, kSecret);
    Bytes junk(300);
    for (std::byte& each : junk) each = static_cast<std::byte>(random());
    const unsigned char begin[] = {22, 3, 1, 0, 200, static_cast<unsigned char>(round % 25)};
    std::memcpy(junk.data(), begin, sizeof begin);
    ASSERT_EQ(::send(c_.get(), junk.data(), junk.size(), 0), 300);
    ASSERT_EQ(::shutdown(c_.get(), SHUT_WR), 0);
    Status status;
    for (int i = 0; i < 1000 && status.ok(); ++i) status = receive(*there_).status();
    EXPECT_FALSE(status.ok());
    EXPECT_FALSE(there_->is_up());
  }
}

TEST_F(Tls, AChangedByteEndsItAndNothingOfItsRecordIsGiven) {
  for (const std::size_t at : {0u, 3u, 5u, 500u, 1020u}) {
    ends(kSecret, kSecret);
    between_.change = {};
    meet();
    carry(*here_, *there_, pattern(100), {100});
    between_.change = [at](Bytes& bytes) { bytes.at(at) ^= std::byte{1}; };
    ASSERT_EQ(take(send(*here_, pattern(1000))), 1000u);
    Status status;
    Bytes came;
    for (int i = 0; i < 1000 && status.ok(); ++i) {
      turn();
      const auto got = receive(*there_);
      status = got.status();
      if (got.ok()) came.insert(came.end(), got->begin(), got->end());
      if (i == 10) ::shutdown(c_.get(), SHUT_WR);  // a longer record waits for more
    }
    EXPECT_EQ(came.size(), 0u);
    EXPECT_TRUE(status.code() == Code::corrupt || status.code() == Code::disconnected)
        << status.to_string();
  }
}

TEST_F(Tls, ARecordThatCameBeforeIsNone) {
  meet();
  Bytes record;
  between_.change = [&](Bytes& bytes) { record = bytes; };
  carry(*here_, *there_, pattern(100), {100});
  ASSERT_EQ(::send(c_.get(), record.data(), record.size(), 0), static_cast<ssize_t>(record.size()));
  Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) status = receive(*there_).status();
  EXPECT_EQ(status.code(), Code::corrupt) << status.to_string();
}

TEST_F(Tls, AnEndIsDisconnectedAndWhatCameBeforeIsGiven) {
  meet();
  ASSERT_EQ(take(send(*here_, pattern(1000))), 1000u);
  turn();
  ASSERT_EQ(take(send(*here_, pattern(1000))), 1000u);
  Bytes half(2000);
  ASSERT_GT(::recv(b_.get(), half.data(), 500, 0), 0);
  ASSERT_EQ(::send(c_.get(), half.data(), 500, 0), 500);
  ASSERT_EQ(::shutdown(c_.get(), SHUT_WR), 0);
  Bytes came;
  Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) {
    const auto got = receive(*there_);
    status = got.status();
    if (got.ok()) came.insert(came.end(), got->begin(), got->end());
  }
  EXPECT_EQ(came, pattern(1000));
  EXPECT_EQ(status.code(), Code::disconnected) << status.to_string();
}

TEST_F(Tls, ToWhoHasGoneIsDisconnectedWithoutASignal) {
  meet();
  b_ = {};
  Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) status = send(*here_, pattern(30000)).status();
  EXPECT_EQ(status.code(), Code::disconnected) << status.to_string();
}

TEST_F(Tls, ChangesItsKeyAndGoesOn) {
  ends(kSecret, kSecret, 3);
  meet();
  const std::size_t before = between_.seen.size();
  carry(*here_, *there_, pattern(40 * kTlsRecord), {kTlsRecord});
  carry(*there_, *here_, pattern(40 * kTlsRecord, 1), {kTlsRecord});
  // A record has 22 bytes beside its data; a change of keys is one of 27.
  EXPECT_GE(between_.seen.size() - before, 80 * (kTlsRecord + 22) + std::size_t{10} * 27);
}

TEST_F(Tls, GoesOn_WhenMemoryEnds) {
  const Bytes bytes = pattern(100'000);
  std::size_t sent = 0;
  meet();
  test::fail_each_allocation([&] { sent = take(send(*here_, bytes)); },
                             [&](bool threw) {
                               if (threw) sent = 0;
                               Bytes came;
                               for (int i = 0; i < 1000 && came.size() < bytes.size(); ++i) {
                                 const Bytes rest(bytes.begin() + static_cast<std::ptrdiff_t>(sent),
                                                  bytes.end());
                                 sent += take(send(*here_, rest));
                                 turn();
                                 const Bytes got = take(receive(*there_));
                                 came.insert(came.end(), got.begin(), got.end());
                               }
                               EXPECT_EQ(came, bytes);
                               ends(kSecret, kSecret);
                               meet();
                             });
}

/// A server that shows a certificate in the place of the secret.
TEST_F(Tls, RefusesACertificate) {
  using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
  const Key key(EVP_EC_gen("P-256"), &EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), &X509_free);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  X509_set_pubkey(certificate.get(), key.get());
  ASSERT_GT(X509_sign(certificate.get(), key.get(), EVP_sha256()), 0);
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_method()),
                                                                  &SSL_CTX_free);
  ASSERT_EQ(SSL_CTX_use_certificate(context.get(), certificate.get()), 1);
  ASSERT_EQ(SSL_CTX_use_PrivateKey(context.get(), key.get()), 1);
  const std::unique_ptr<SSL, decltype(&SSL_free)> server(SSL_new(context.get()), &SSL_free);
  SSL_set_fd(server.get(), d_.get());
  SSL_set_accept_state(server.get());
  Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) {
    status = receive(*here_).status();
    turn();
    (void)SSL_do_handshake(server.get());
  }
  EXPECT_EQ(status.code(), Code::permission_denied) << status.to_string();
  EXPECT_FALSE(here_->is_up());
}

/// A handshake refused during a send has read all that arrived. The reader, which only waits for
/// bytes, must be woken.
TEST_F(Tls, WakesTheReader_WhenAHandshakeIsRefusedWhileItSends) {
  ends("another secret of tests", kSecret);
  ASSERT_EQ(take(send(*here_, pattern(1))), 0u);  // its ClientHello
  while (!turn()) {
  }
  pollfd readable{.fd = d_.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&readable, 1, 5000), 1);
  FdChannel far(std::move(d_));
  far.secure(std::move(there_));
  ASSERT_TRUE(far.queue({.id = 1}, pattern(1), {}).ok());
  EXPECT_EQ(far.flush().code(), Code::permission_denied);
  ASSERT_EQ(::poll(&readable, 1, 0), 1);
  EXPECT_EQ(far.receive().status().code(), Code::permission_denied);
}

/// One record has many frames, and the socket reports it once.
TEST_F(Tls, FramesThatCameTogetherAreAllHeard) {
  FdChannel near(std::move(a_)), far(std::move(d_));
  near.secure(std::move(here_));
  far.secure(std::move(there_));
  constexpr std::size_t kFrames = 300;
  for (std::size_t i = 0; i < kFrames; ++i) ASSERT_TRUE(near.queue({.id = i}, pattern(i), {}).ok());
  std::size_t heard = 0;
  for (int i = 0; i < 1000 && heard < kFrames; ++i) {
    ASSERT_TRUE(near.flush().ok());
    ASSERT_TRUE(take(near.receive()) == std::nullopt);
    turn();
    for (bool more = true; more;) {
      auto frame = take(far.receive());
      more = frame.has_value();
      if (!more) break;
      EXPECT_EQ(frame->header.id, heard);
      EXPECT_EQ(frame->payload, pattern(heard));
      EXPECT_FALSE(frame->plain);
      ++heard;
    }
    EXPECT_FALSE(far.has_buffered());  // it was asked until nothing more came
  }
  EXPECT_EQ(heard, kFrames);
  EXPECT_FALSE(near.wants_write());
}

}  // namespace tls_test
}  // namespace linkspan::base
