// tests/unit/engine_pair.hpp - two Engines of this process that have met, and a peer whose frames
// the test writes.
//
// Threads: externally synchronised.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "control/exchange.hpp"
#include "engine/engine_impl.hpp"
#include "engine/handle_access.hpp"
#include "tests/support/raw_peer.hpp"
#include "tests/support/take.hpp"

namespace linkspan::test {

inline engine::EngineImpl& impl_of(const Engine& engine) {
  return *engine::HandleAccess::impl(engine);
}

/// Succeeds if the status has the code, and its text contains `text`.
inline ::testing::AssertionResult is(const Status& status, Code code, std::string_view text = {}) {
  if (status.code() == code && status.what().find(text) != std::string::npos)
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << status.to_string() << ", not " << name_of(code) << ": " << text;
}

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// Returns the value of a metric, given with its labels but for those of the Engine, which all
/// have; nullopt if there is none.
inline std::optional<std::uint64_t> metric(const Engine& engine, const std::string& name) {
  const std::string text = "\n" + engine.metrics(), info = "\nlinkspan_engine_info{";
  const auto begin = text.find(info) + info.size();
  const std::string whose = text.substr(begin, text.find(",incarnation=", begin) - begin);
  const auto labels = name.find('{');
  const std::string line = "\nlinkspan_" + name.substr(0, labels) + "{" + whose +
                           (labels == std::string::npos ? "}" : "," + name.substr(labels + 1)) +
                           " ";
  const auto at = text.find(line);
  if (at == std::string::npos) return std::nullopt;
  return std::stoull(text.substr(at + line.size()));
}

/// Returns whether `holds` became true within 10 s.
template <class Holds>
bool eventually(const Holds& holds) {
  const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
  while (!holds()) {
    if (limit.passed()) return false;
    std::this_thread::yield();
  }
  return true;
}

/// A peer of this process that answers nothing by itself. Says goodbye at its end.
class RawPeer {
 public:
  explicit RawPeer(Engine& engine) : channel_(connect_raw(engine.address())) {
    greet_raw(channel_);
    peer_ = take(engine.accept(10s));
  }
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;
  ~RawPeer() { leave(); }

  const Peer& peer() const noexcept { return peer_; }  ///< As the Engine sees it.
  void send(control::FrameOp op, std::uint64_t id, std::span<const std::byte> payload) {
    must(channel_.queue({.length = 0,
                         .op = static_cast<std::uint16_t>(op),
                         .id = id,
                         .incarnation = kRawIncarnation},
                        payload, {}));
    must(channel_.flush());
  }
  /// Returns the next frame, which has to be of that kind.
  base::Frame next(control::FrameOp op) {
    auto frame = next_raw(channel_);
    if (!frame) throw std::runtime_error("no frame came");
    EXPECT_EQ(static_cast<control::FrameOp>(frame->header.op), op);
    return *std::move(frame);
  }
  /// Returns the Status in the next frame, which has to be an error.
  Status next_error() { return control::decode_error(next(control::FrameOp::error).payload); }
  /// Checks that the Engine closes the connection.
  void expect_dropped() {
    while (any_raw(channel_)) {
    }
    EXPECT_TRUE(eventually([this] { return peer_.state() != PeerState::up; }));
    hang_up();
  }
  void hang_up() { channel_ = base::FdChannel(base::Fd()); }  ///< Without a goodbye.
  void leave() {
    if (channel_.fd() < 0) return;
    send_raw(channel_, control::FrameOp::goodbye, {});
    hang_up();
  }

 private:
  base::FdChannel channel_;
  Peer peer_;
};

/// Two Engines, of which `near_` has connected to `far_`.
class EnginePair : public ::testing::Test {
 protected:
  explicit EnginePair(std::string_view address = {}) {
    must(far_.listen(address));
    to_far_ = take(near_.connect(far_.address(), 10s));
    to_near_ = take(far_.accept(10s));
  }
  /// Publishes shared memory of `far_` and returns it with its import by `near_`.
  std::pair<Region, RemoteRegion> share(const std::string& name, std::uint64_t bytes,
                                        Permissions peers = {.read = true, .write = true}) {
    const Region region = take(far_.allocate_shared(bytes, {.peers = peers}));
    must(far_.publish(name, region));
    return {region, take(to_far_.lookup(name))};
  }

  Engine near_ = take(Engine::open({.name = "near", .use_gpu = false}));
  Engine far_ = take(Engine::open({.name = "far", .use_gpu = false}));
  Peer to_far_, to_near_;
};

}  // namespace linkspan::test
