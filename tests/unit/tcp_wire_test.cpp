// A TcpEndpoint whose peer is played by the test, frame by frame.
#include <gtest/gtest.h>
#include <poll.h>

#include <cstring>
#include <map>

#include "memory/registry.hpp"
#include "tests/support/take.hpp"
#include "tests/support/tcp_pair.hpp"
#include "transport/tcp/endpoint.hpp"
#include "transport/tcp/frame.hpp"

namespace linkspan::transport::tcp {
namespace {

using namespace std::chrono_literals;
using test::take;
using Bytes = std::vector<std::byte>;

constexpr std::uint64_t kUs = 11, kPeer = 77, kBytes = 8192;

class PeerChannel final : public Channel {
 public:
  Status send(std::uint16_t, std::span<const std::byte>, std::span<base::Fd>) override {
    return {};
  }
  SessionKey session_key() const noexcept override { return key_; }
  PeerProcess process() const noexcept override {
    return {.pid = 0, .pidfd = -1, .same_user = false, .incarnation = kPeer};
  }
  std::string_view peer_name() const noexcept override { return "played"; }
  bool connects() const noexcept override { return false; }
  Status open_stream() override { return {Code::unsupported, Scope::peer, "no"}; }

 private:
  std::array<std::byte, 32> key_{};
};

class Ends final : public CompletionSink {
 public:
  void complete(Completion&& end) override { all[end.cookie] = end.status; }
  std::map<std::uint64_t, Status> all;
};

class TcpWire : public ::testing::Test {
 protected:
  TcpWire() {
    for (std::size_t i = 0; i < kBytes; ++i) memory_[i] = static_cast<std::byte>(i * 7);
    region_ = take(registry_.add(memory_.data(), kBytes, {.read = true, .write = true}, false));
    fixed_ =
        take(registry_.add(fixed_memory_.data(), kBytes, {.read = false, .write = false}, false));
    key_ = take(decode_key(take(transport_.publish(region_->region())).bytes));
    fixed_key_ = take(decode_key(take(transport_.publish(fixed_->region())).bytes));
    WireKey theirs{.id = {.incarnation = kPeer, .buffer = 1, .serial = 1},
                   .peers = {.read = true, .write = true},
                   .bytes = kBytes};
    remote_ = std::make_unique<WireMapping>(theirs);
    endpoint_ = take(transport_.connect(
        encode(Address{.incarnation = kPeer, .streams = 1, .chunk = kLeastChunk}), channel_,
        base::Deadline::after(base::Clock::steady(), 10s)));
    add_stream();
  }
  TcpWire(const TcpWire&) = delete;
  TcpWire& operator=(const TcpWire&) = delete;
  ~TcpWire() override {
    raw_ = {};
    endpoint_->peer_gone();
    const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
    while (!endpoint_->landed() && !limit.passed()) endpoint_->progress(ends_);
    EXPECT_TRUE(endpoint_->landed());
  }
  void add_stream() {
    auto [ours, theirs] = test::tcp_pair();
    raw_ = std::move(theirs);
    must(dynamic_cast<StreamTaker&>(*endpoint_).on_stream(std::move(ours)));
  }
  static void must(const Status& status) { ASSERT_TRUE(status.ok()) << status.to_string(); }

  void send(Head head, const Bytes& data = {}) {
    head.incarnation = head.incarnation == 0 ? kPeer : head.incarnation;
    head.data = data.size();
    Bytes frame = encode(head);
    frame.insert(frame.end(), data.begin(), data.end());
    send_bytes(frame);
  }
  void send_bytes(const Bytes& bytes) {
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    (void)control::send_all(raw_, text, base::Deadline::after(base::Clock::steady(), 5s));
  }
  struct Heard {
    Head head;
    Bytes data;
  };
  /// None: it was closed.
  std::optional<Heard> next() {
    const auto limit = base::Deadline::after(base::Clock::steady(), 5s);
    for (;;) {
      const auto size = head_bytes(heard_);
      if (size.ok() && *size && heard_.size() >= **size) {
        Heard out{take(decode(std::span(heard_).first(**size))), {}};
        const std::size_t whole = **size + out.head.data;
        if (heard_.size() >= whole) {
          out.data.assign(heard_.begin() + static_cast<std::ptrdiff_t>(**size),
                          heard_.begin() + static_cast<std::ptrdiff_t>(whole));
          heard_.erase(heard_.begin(), heard_.begin() + static_cast<std::ptrdiff_t>(whole));
          endpoint_->progress(ends_);  // to see what has landed
          return out;
        }
      }
      const auto more = control::receive_some(raw_, 65536, limit);
      EXPECT_NE(more.status().code(), Code::timed_out);
      if (!more.ok()) return std::nullopt;
      const auto* data = reinterpret_cast<const std::byte*>(more->data());
      heard_.insert(heard_.end(), data, data + more->size());
    }
  }
  void expect_end(std::uint64_t id, Code code) {
    const auto heard = next();
    ASSERT_TRUE(heard.has_value());
    EXPECT_EQ(heard->head.op, Op::ended);
    EXPECT_EQ(heard->head.id, id);
    EXPECT_EQ(heard->head.code, code) << heard->head.text;
  }
  Status post(linkspan::Op op, std::uint64_t offset, std::uint64_t bytes) {
    const Block block{offset, offset, bytes};
    return endpoint_->post({.op = op,
                            .local = &region_->region(),
                            .remote = remote_.get(),
                            .shape = std::span(&block, 1),
                            .cookie = ++cookies_});
  }
  Status end() {
    const auto limit = base::Deadline::after(base::Clock::steady(), 5s);
    while (!ends_.all.contains(cookies_) && !limit.passed()) endpoint_->progress(ends_);
    const auto found = ends_.all.find(cookies_);
    return found == ends_.all.end() ? Status(Code::pending, Scope::request, "") : found->second;
  }
  Head put(std::uint64_t id, std::uint64_t offset, std::uint64_t bytes, bool last = true) {
    return {.op = Op::put,
            .id = id,
            .serial = key_.id.serial,
            .token = key_.token,
            .last = last,
            .spans = {{offset, bytes}}};
  }

  Bytes memory_ = Bytes(kBytes), fixed_memory_ = Bytes(kBytes, std::byte{9});
  memory::Registry registry_{kUs, nullptr};
  TcpTransport transport_{{.incarnation = kUs, .streams = 1}};
  std::shared_ptr<const memory::Registration> region_, fixed_;
  WireKey key_, fixed_key_;
  std::unique_ptr<WireMapping> remote_;
  PeerChannel channel_;
  Ends ends_;
  std::unique_ptr<Endpoint> endpoint_;
  base::Fd raw_;
  Bytes heard_;
  std::uint64_t cookies_ = 0;
};

Bytes ones(std::size_t count) { return Bytes(count, std::byte{1}); }

TEST_F(TcpWire, TakesPutsOfSeveralFramesAndAnswersGets) {
  Bytes expected = memory_;
  std::fill_n(expected.begin() + 3, 5, std::byte{1});
  std::fill_n(expected.begin() + 100, 7, std::byte{1});
  send(put(5, 3, 5, false), ones(5));
  Head second = put(5, 100, 7);
  second.position = 5;
  send(second, ones(7));
  expect_end(5, Code::ok);
  EXPECT_EQ(memory_, expected);

  send({.op = Op::get,
        .id = 6,
        .serial = key_.id.serial,
        .token = key_.token,
        .spans = {{1, 9}, {kBytes - 2, 2}}});
  const auto heard = next();
  ASSERT_TRUE(heard.has_value());
  EXPECT_EQ(heard->head.op, Op::data);
  EXPECT_TRUE(heard->head.last);
  Bytes due(memory_.begin() + 1, memory_.begin() + 10);
  due.insert(due.end(), memory_.end() - 2, memory_.end());
  EXPECT_EQ(heard->data, due);
}

TEST_F(TcpWire, RefusesWhatIsNotPermittedAndGoesOn) {
  const Bytes before = memory_;
  Head wrong_token = put(1, 0, 10);
  wrong_token.token[3] ^= std::byte{1};
  Head no_region = put(2, 0, 10);
  no_region.serial += 1000;
  Head beyond = put(3, kBytes - 5, 6), overflow = put(4, ~std::uint64_t{0} - 2, 10);
  Head fixed = put(5, 0, 10);
  fixed.serial = fixed_key_.id.serial;
  fixed.token = fixed_key_.token;
  const std::pair<Head, Code> refused[] = {{wrong_token, Code::unreachable},
                                           {no_region, Code::unreachable},
                                           {beyond, Code::invalid_argument},
                                           {overflow, Code::invalid_argument},
                                           {fixed, Code::permission_denied}};
  for (const auto& [head, code] : refused) {
    send(head, ones(head.spans[0].bytes));
    expect_end(head.id, code);
    Head get = head;
    get.op = Op::get;
    get.last = false;
    send(get);
    const auto heard = next();
    ASSERT_TRUE(heard.has_value());
    EXPECT_EQ(heard->head.op, Op::data);
    EXPECT_EQ(heard->head.code, code);
    EXPECT_TRUE(heard->head.last && heard->data.empty());
  }
  EXPECT_EQ(memory_, before);
  EXPECT_EQ(fixed_memory_, Bytes(kBytes, std::byte{9}));
  send(put(9, 0, 1), ones(1));
  expect_end(9, Code::ok);
}

TEST(TcpFrame, ComesBackAsItWas) {
  const Head put{.op = Op::put,
                 .id = 3,
                 .incarnation = 4,
                 .serial = 5,
                 .token = {std::byte{6}},
                 .position = 7,
                 .last = true,
                 .spans = {{8, 9}, {10, 11}},
                 .data = 20};
  const Head end{.op = Op::ended, .id = 3, .incarnation = 4, .code = Code::corrupt, .text = "why"};
  for (const Head& head : {put, end}) {
    const Bytes bytes = encode(head);
    for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
      const auto size = take(head_bytes(std::span(bytes).first(cut)));
      EXPECT_TRUE(!size || *size == bytes.size()) << cut;
    }
    EXPECT_EQ(take(head_bytes(bytes)), bytes.size());
    const Head back = take(decode(bytes));
    EXPECT_EQ(encode(back), bytes);
  }
}

TEST(TcpFrame, IsNoneWhereItsLengthsDisagree) {
  const Head good{.op = Op::put, .id = 3, .incarnation = 4, .spans = {{8, 9}}, .data = 9};
  const auto broken = [&](std::size_t at, std::uint8_t value) {
    Bytes bytes = encode(good);
    bytes[at] = std::byte{value};
    const auto size = head_bytes(bytes);
    return !size.ok() ||
           (*size && (bytes.size() < **size || !decode(std::span(bytes).first(**size)).ok()));
  };
  EXPECT_TRUE(broken(0, 8)) << "shorter than its fields";
  EXPECT_TRUE(broken(0, 64)) << "fewer bytes than its span";
  EXPECT_TRUE(broken(0, 70)) << "more bytes than its span";
  EXPECT_TRUE(broken(3, 1)) << "beyond the largest";
  EXPECT_TRUE(broken(4, 0)) << "version 0";
  EXPECT_TRUE(broken(6, 99)) << "an op that is none";
  EXPECT_TRUE(broken(24 + 32, 255)) << "more spans than there is room for";
  EXPECT_TRUE(broken(24 + 36, 2)) << "neither the last nor not";
  EXPECT_FALSE(broken(24 + 36, 1));
}

/// Each to a wire of its own.
class TcpWireBroken : public TcpWire, public ::testing::WithParamInterface<int> {};

TEST_P(TcpWireBroken, EndsAndTouchesNothingMore) {
  const Bytes before = memory_;
  const Head get{
      .op = Op::get, .id = 1, .serial = key_.id.serial, .token = key_.token, .spans = {{0, 8}}};
  switch (GetParam()) {
    case 0: {
      Head stranger = get;
      stranger.incarnation = kPeer + 1;
      send(stranger);
      break;
    }
    case 1:
      send({.op = Op::data, .id = 4, .last = true}, ones(8));
      break;
    case 2:
      send({.op = Op::ended, .id = 4});
      break;
    case 3: {  // a last frame, and then more
      Head last = put(4, 0, 8);
      last.position = 8;
      send(last, Bytes(before.begin(), before.begin() + 8));
      send(last, Bytes(before.begin(), before.begin() + 8));
      break;
    }
    case 4: {  // more than the last frame has told
      Head last = put(4, 0, 8);
      last.position = 8;
      send(last, Bytes(before.begin(), before.begin() + 8));
      send(put(4, 0, 16, false), Bytes(before.begin(), before.begin() + 16));
      break;
    }
    case 5:
      for (std::uint64_t id = 1; id <= 65; ++id)
        send(put(id, 0, 1, false), Bytes(before.begin(), before.begin() + 1));
      break;
    case 6: {
      Bytes no_span = encode(put(1, 0, 8));
      no_span[0] = std::byte{255};  // of its length
      send_bytes(no_span);
      send_bytes(ones(400));
      break;
    }
    case 7: {  // a put of ours that has ended before it was sent
      must(post(linkspan::Op::write, 0, kBytes));
      send({.op = Op::ended, .id = 1});
      send({.op = Op::ended, .id = 1});
      break;
    }
    case 8: {  // a later frame of another region
      send(put(4, 0, 8, false), Bytes(before.begin(), before.begin() + 8));
      Head other = put(4, 0, 8);
      other.serial = fixed_key_.id.serial;
      other.token = fixed_key_.token;
      other.position = 8;
      send(other, ones(8));
      break;
    }
    case 9:
      send_bytes(ones(64));
      break;
    default: {  // a get of ours: data beyond what was asked for
      must(post(linkspan::Op::read, 0, 16));
      ASSERT_TRUE(next().has_value());
      send({.op = Op::data, .id = 1, .position = 8, .last = true}, ones(16));
      break;
    }
  }
  while (next()) continue;
  endpoint_->progress(ends_);
  EXPECT_EQ(post(linkspan::Op::write, 0, 8).code(), Code::corrupt);
  EXPECT_EQ(memory_, before);
  EXPECT_EQ(fixed_memory_, Bytes(kBytes, std::byte{9}));
}

INSTANTIATE_TEST_SUITE_P(Each, TcpWireBroken, ::testing::Range(0, 11));

TEST_F(TcpWire, TellsWhatTheOtherSideAnswers) {
  must(post(linkspan::Op::write, 10, 6000));  // of two frames
  std::uint64_t bytes = 0;
  std::uint64_t id = 0;
  for (bool last = false; !last;) {
    const auto heard = next();
    ASSERT_TRUE(heard.has_value());
    EXPECT_EQ(heard->head.op, Op::put);
    EXPECT_EQ(heard->head.spans[0].offset, 10 + heard->head.position);
    EXPECT_EQ(heard->data, Bytes(memory_.begin() + static_cast<std::ptrdiff_t>(10 + bytes),
                                 memory_.begin() +
                                     static_cast<std::ptrdiff_t>(10 + bytes + heard->data.size())));
    bytes += heard->data.size();
    last = heard->head.last;
    id = heard->head.id;
  }
  EXPECT_EQ(bytes, 6000u);
  send({.op = Op::ended, .id = id, .code = Code::unreachable, .text = "gone\n"});
  const Status ended = end();
  EXPECT_EQ(ended.code(), Code::unreachable);
  EXPECT_NE(ended.what().find("gone?"), std::string::npos) << ended.to_string();
  EXPECT_FALSE(remote_->alive());
}

TEST_F(TcpWire, ReadsWhatComesInAnyOrderAndSaysIfItIsLess) {
  must(post(linkspan::Op::read, 0, 16));
  auto asked = next();
  ASSERT_TRUE(asked.has_value());
  EXPECT_EQ(asked->head.op, Op::get);
  send({.op = Op::data, .id = asked->head.id, .position = 8, .last = true}, ones(8));
  send({.op = Op::data, .id = asked->head.id, .position = 0}, ones(8));
  EXPECT_EQ(end().to_string(), "ok");
  EXPECT_EQ(Bytes(memory_.begin(), memory_.begin() + 16), ones(16));

  must(post(linkspan::Op::read, 32, 16));
  asked = next();
  ASSERT_TRUE(asked.has_value());
  send({.op = Op::data, .id = asked->head.id, .position = 0, .last = true}, ones(8));
  EXPECT_EQ(end().code(), Code::corrupt);
}

TEST_F(TcpWire, ACanceledPutTellsHowMuchOfItThereIs) {
  // Far more than the socket takes, so that some of it is not taken yet.
  for (int i = 0; i < 60; ++i) must(post(linkspan::Op::write, 0, kBytes));
  must(post(linkspan::Op::write, 0, kBytes));
  endpoint_->cancel(cookies_);
  bool told = false;
  std::map<std::uint64_t, std::uint64_t> sent;
  for (std::size_t over = 0; over < 61;) {
    const auto heard = next();
    ASSERT_TRUE(heard.has_value());
    std::uint64_t& bytes = sent[heard->head.id];
    bytes += heard->data.size();
    if (!heard->head.last) continue;
    EXPECT_EQ(bytes, heard->head.position + heard->data.size());
    told |= heard->head.id == cookies_;
    send({.op = Op::ended, .id = heard->head.id});
    ++over;
  }
  EXPECT_TRUE(told);
  const Code ended = end().code();
  EXPECT_TRUE(ended == Code::canceled || ended == Code::ok) << name_of(ended);
  EXPECT_EQ(ended == Code::ok, sent[cookies_] == kBytes);
}

}  // namespace
}  // namespace linkspan::transport::tcp
