// tests/unit/tcp_connection_group_fixture.hpp - a TcpEndpoint whose peer is played by the test,
// frame by frame.
//
// Threads: externally synchronised.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "memory/registry.hpp"
#include "tests/support/kinds.hpp"
#include "tests/support/take.hpp"
#include "tests/support/tcp_pair.hpp"
#include "transport/tcp/endpoint.hpp"
#include "transport/tcp/frame.hpp"

namespace linkspan::transport::tcp {

using namespace std::chrono_literals;
using test::take;
using Bytes = std::vector<std::byte>;

inline constexpr std::uint64_t kUs = 11, kPeer = 77, kBytes = 8192;

class PeerChannel : public Channel {
 public:
  Status send(std::uint16_t, std::span<const std::byte>, std::span<base::Fd>) override {
    return {};
  }
  SessionKey session_key() const noexcept override { return key_; }
  PeerProcess process() const noexcept override {
    return {.pid = 0, .pidfd = -1, .same_user = false, .incarnation = kPeer};
  }
  std::string_view peer_name() const noexcept override { return "played"; }
  void deliver_notification(std::vector<std::byte> notification, std::uint64_t after) override {
    const base::MutexLock lock(mutex_);
    afters_.push_back(after);
    heard_.push_back(std::move(notification));
  }
  std::vector<Bytes> notifications() const {
    const base::MutexLock lock(mutex_);
    return heard_;
  }
  /// Returns how many earlier notifications each one must follow.
  std::vector<std::uint64_t> afters() const {
    const base::MutexLock lock(mutex_);
    return afters_;
  }
  bool connects() const noexcept override { return false; }
  Status open_data_connection() override { return {Code::unsupported, Scope::peer, "no"}; }
  void fail_peer(const Status& why) override {
    if (std::exchange(no_memory, false)) throw std::bad_alloc();
    given_up = why;
  }
  Status given_up;         ///< Why; OK: it was not.
  bool no_memory = false;  ///< fail_peer() throws once.

 private:
  std::array<std::byte, 32> key_{};
  mutable base::Mutex mutex_;
  std::vector<Bytes> heard_ LINKSPAN_GUARDED_BY(mutex_);
  std::vector<std::uint64_t> afters_ LINKSPAN_GUARDED_BY(mutex_);
};

class Ends final : public CompletionSink {
 public:
  void complete(Completion&& end) override { all[end.cookie] = end.status; }
  std::map<std::uint64_t, Status> all;
};

class TcpConnectionGroup : public ::testing::Test {
 protected:
  struct Options {
    std::optional<base::MacKeys> keys{};  // of the endpoint's data connections
    cuda::Topology* topology = nullptr;   // for memory of GPUs
    bool ordered = false;                 // as the played peer's address
    bool fake_clock = false;              // of the endpoint's bounds
    std::size_t bytes = kBytes;           // of the memory
    std::uint32_t chunk = kMinChunk;      // data of a frame, at most
  };
  TcpConnectionGroup() : TcpConnectionGroup(Options{}) {}
  explicit TcpConnectionGroup(const Options& options)
      : keys_(options.keys),
        topology_(options.topology),
        fake_clock_(options.fake_clock),
        memory_(options.bytes) {
    for (std::size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<std::byte>(i * 7);
    region_ =
        take(registry_.add(memory_.data(), memory_.size(), {.read = true, .write = true}, false));
    fixed_ =
        take(registry_.add(fixed_memory_.data(), kBytes, {.read = false, .write = false}, false));
    key_ = take(decode_key(take(transport_.publish(region_->region())).bytes));
    fixed_key_ = take(decode_key(take(transport_.publish(fixed_->region())).bytes));
    WireKey theirs{.id = {.incarnation = kPeer, .buffer = 1, .serial = 1},
                   .peers = {.read = true, .write = true},
                   .bytes = memory_.size()};
    remote_ = std::make_unique<WireMapping>(theirs);
    endpoint_ =
        take(transport_.connect(encode(TcpTransportAddress{.incarnation = kPeer,
                                                           .connections = 1,
                                                           .chunk = options.chunk,
                                                           .ordered = options.ordered}),
                                channel_, base::Deadline::after(base::Clock::steady(), 10s)));
    add_stream();
  }
  TcpConnectionGroup(const TcpConnectionGroup&) = delete;
  TcpConnectionGroup& operator=(const TcpConnectionGroup&) = delete;
  ~TcpConnectionGroup() override {
    raw_ = {};
    endpoint_->peer_terminated();
    const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
    while (!endpoint_->drained() && !limit.passed()) endpoint_->progress(ends_);
    EXPECT_TRUE(endpoint_->drained());
  }
  void add_stream() {
    auto [ours, theirs] = test::tcp_pair();
    raw_ = std::move(theirs);
    received_by_ = ours.get();
    must(endpoint_->on_data_connection(base::AuthenticatedSocket{std::move(ours), keys_}));
  }
  static void must(const Status& status) { ASSERT_TRUE(status.ok()) << status.to_string(); }

  static Bytes frame_of(Head head, const Bytes& data = {}) {
    head.incarnation = head.incarnation == 0 ? kPeer : head.incarnation;
    head.data = data.size();
    Bytes frame = encode(head);
    if (head.summed) add_to_sum(frame, data);
    frame.insert(frame.end(), data.begin(), data.end());
    return frame;
  }
  void send(const Head& head, const Bytes& data = {}) { send_bytes(frame_of(head, data)); }
  void send_bytes(const Bytes& bytes) {
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    (void)net::send_all(raw_, text, base::Deadline::after(base::Clock::steady(), 5s));
  }
  struct Heard {
    Head head;
    Bytes data;
  };
  /// Returns nullopt if the connection was closed.
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
      const auto more = net::receive_some(raw_, 65536, limit);
      EXPECT_NE(more.status().code(), Code::timed_out);
      if (!more.ok()) return std::nullopt;
      const auto* data = reinterpret_cast<const std::byte*>(more->data());
      heard_.insert(heard_.end(), data, data + more->size());
    }
  }
  void expect_end(std::uint64_t id, Code code) {
    const auto heard = next();
    ASSERT_TRUE(heard.has_value());
    EXPECT_EQ(heard->head.type, FrameType::ended);
    EXPECT_EQ(heard->head.id, id);
    EXPECT_EQ(heard->head.code, code) << heard->head.text;
  }
  Status post(linkspan::Op op, std::uint64_t offset, std::uint64_t bytes,
              const Bytes& notification = {}) {
    const Block block{offset, offset, bytes};
    return post(op, std::span(&block, 1), notification);
  }
  Status post(linkspan::Op op, std::span<const Block> blocks, const Bytes& notification = {}) {
    return post_of(*region_, op, blocks, notification);
  }
  Status post_of(const memory::Registration& local, linkspan::Op op, std::span<const Block> blocks,
                 const Bytes& notification = {}) {
    const auto posted = endpoint_->post({.op = op,
                                         .local = &local.region(),
                                         .remote = remote_.get(),
                                         .shape = blocks,
                                         .hints = wishes_,
                                         .notification = notification,
                                         .notifications_before = notifications_before_,
                                         .cookie = ++cookies_});
    notifies_ = posted.ok() && posted->notifies;
    return posted.status();
  }
  /// Registers as much memory of a GPU, filled with the pattern of `seed`. Returns its key.
  WireKey add_gpu_memory(std::uint64_t seed) {
    gpu_ = take(test::Buffer::create(MemoryKind::device, memory_.size()));
    gpu_->fill(seed);
    on_gpu_ =
        take(registry_.add(gpu_->data(), memory_.size(), {.read = true, .write = true}, false));
    return take(decode_key(take(transport_.publish(on_gpu_->region())).bytes));
  }
  /// Writes all of that memory.
  Status post_from_gpu(const Bytes& notification = {}) {
    const Block all{0, 0, memory_.size()};
    return post_of(*on_gpu_, linkspan::Op::write, std::span(&all, 1), notification);
  }
  Status end() {
    const auto limit = base::Deadline::after(base::Clock::steady(), 5s);
    while (!ends_.all.contains(cookies_) && !limit.passed()) endpoint_->progress(ends_);
    const auto found = ends_.all.find(cookies_);
    return found == ends_.all.end() ? Status(Code::pending, Scope::request, "") : found->second;
  }
  Head put(std::uint64_t id, std::uint64_t offset, std::uint64_t bytes, bool last = true) {
    return {.type = FrameType::put,
            .id = id,
            .serial = key_.id.serial,
            .token = key_.token,
            .last = last,
            .spans = {{offset, bytes}}};
  }

  const std::optional<base::MacKeys> keys_;
  cuda::Topology* const topology_;
  const bool fake_clock_;
  base::FakeClock clock_;
  Bytes memory_, fixed_memory_ = Bytes(kBytes, std::byte{9});
  std::unique_ptr<test::Buffer> gpu_;  // empty until add_gpu_memory()
  memory::Registry registry_{kUs, topology_};
  TcpTransport transport_{
      {.topology = topology_,
       .incarnation = kUs,
       .connections = 1,
       .clock = fake_clock_ ? static_cast<const base::Clock*>(&clock_) : &base::Clock::steady()}};
  std::shared_ptr<const memory::Registration> region_, fixed_, on_gpu_;
  WireKey key_, fixed_key_;
  std::unique_ptr<WireMapping> remote_;
  PeerChannel channel_;
  Ends ends_;
  std::unique_ptr<Endpoint> endpoint_;
  base::Fd raw_;
  int received_by_ = -1;  // the endpoint's
  Bytes heard_;
  std::uint64_t cookies_ = 0;
  bool notifies_ = false;                   // the last one posted
  TransferHints wishes_{};                  // of the next
  std::uint64_t notifications_before_ = 0;  // the same
};

inline Bytes ones(std::size_t count) { return Bytes(count, std::byte{1}); }

}  // namespace linkspan::transport::tcp
