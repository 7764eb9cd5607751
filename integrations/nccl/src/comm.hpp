// nccl/comm.hpp - one direction between two processes, as NCCL sees it: messages in their order.
//
// A receive tells the sender its room. A message of more than kSmallBytes waits for its room and is
// written there; a smaller one goes at once, at most kAhead before its receive, whose room then
// makes place for one more; all comms of a Link have Link::kMaxAhead of them. While small messages
// come, several rooms are told together, unless the sender wants one of them. Both ends count
// messages from 0. Threads: externally synchronised (Net::mutex_). Invariants: a request belongs to
// its comm, and its place is used again once test() has told its end. What the peer says is
// checked: it ends its comm, never this process.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "integrations/nccl/src/link.hpp"

namespace linkspan::nccl {

/// Maximum of requests of a comm that NCCL has not tested to their end.
inline constexpr std::size_t kRequests = 32;
inline constexpr std::uint64_t kAhead = 16;  ///< Small messages before their receives, at most.
inline constexpr std::size_t kTogether = kAhead / 2;  ///< Rooms that are told together, at most.

/// Memory that NCCL registered with a comm.
struct Memory {
  std::uint64_t number = 0;  ///< Link::name_of(); 0: of a sender.
  std::byte* data = nullptr;
  Region region;

  /// Returns whether it has all of these bytes.
  bool has(const void* from, std::size_t bytes) const noexcept {
    const auto begin = reinterpret_cast<std::uintptr_t>(from),
               own = reinterpret_cast<std::uintptr_t>(data);
    return begin >= own && begin - own <= region.bytes() && bytes <= region.bytes() - (begin - own);
  }
};

class Comm;

struct Request {
  Comm* comm = nullptr;  ///< Null: unused.
  std::uint64_t number = 0;
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;  ///< Of a receive its room; at its end what has come.
  const Memory* memory = nullptr;
  std::optional<Transfer> transfer{};     ///< Of a send that is on its way.
  std::optional<base::Deadline> limit{};  ///< Of `transfer`, which a stopped peer keeps.
  bool done = false;
};

class Comm {
 public:
  explicit Comm(std::uint64_t id) : id_(id) {}
  virtual ~Comm() = default;
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  std::uint64_t id() const noexcept { return id_; }
  /// Returns the request of that place, null if NCCL has none there.
  Request* request(std::size_t place) noexcept {
    Request& at = requests_[place % kRequests];
    return at.comm == nullptr ? nullptr : &at;
  }
  virtual bool receives() const noexcept = 0;
  /// Returns Peer::id() of the process at the other end.
  virtual std::uint64_t peer() const noexcept = 0;
  /// Goes on with the request. Returns whether it has ended; an error ends the comm. disconnected:
  /// the process there is gone, and what it sent before may be in a notification still.
  virtual Result<bool> test(Request& request) = 0;
  /// Takes what the peer's comm said.
  virtual void take(const Frame& frame, std::span<const std::byte> rest) = 0;
  /// Tells the peer's comm that this one is closed, if there is room on the connection.
  virtual void say_closed() = 0;

  /// Ends the comm, as fail() does.
  void abandon(Status why) {
    if (failure_.ok()) failure_ = std::move(why);
  }

  /// Returns whether a request has it that has not ended.
  bool uses(const Memory& memory) const noexcept {
    return std::ranges::any_of(
        requests_, [&](const Request& each) { return each.memory == &memory && !each.done; });
  }

  std::map<Memory*, std::unique_ptr<Memory>> memories;

 protected:
  /// Returns the place of the next message, or null while NCCL has not tested the one before it.
  Request* place(std::uint64_t number) noexcept {
    Request& place = requests_[number % kRequests];
    return place.comm == nullptr ? &place : nullptr;
  }
  /// Ends the comm: every later test answers this.
  void fail(std::string what) { abandon({Code::corrupt, Scope::peer, std::move(what)}); }
  /// Returns the number of the first message of `count` that has not ended.
  std::uint64_t first_open(std::uint64_t count) const noexcept {
    for (const Request& each : requests_)
      if (each.comm != nullptr && !each.done) count = std::min(count, each.number);
    return count;
  }
  /// Returns an error if the other end was closed before that message.
  Status reaches(std::uint64_t number) const {
    if (number < closed_at_) return {};
    return {Code::disconnected, Scope::peer, "the other rank has closed its end of the comm"};
  }

  const std::uint64_t id_;
  std::array<Request, kRequests> requests_;
  Status failure_;
  std::uint64_t closed_at_ = ~std::uint64_t{0};  // the first message that the peer's comm has not
};

class SendComm final : public Comm {
 public:
  SendComm(std::uint64_t id, std::shared_ptr<Link> link) : Comm(id), link_(std::move(link)) {}
  SendComm(const SendComm&) = delete;
  SendComm& operator=(const SendComm&) = delete;
  ~SendComm() override { link_->ahead -= ahead(); }

  Link& link() const noexcept { return *link_; }
  bool receives() const noexcept override { return false; }
  std::uint64_t peer() const noexcept override { return link_->peer(); }
  /// Set by the `accepted` of the peer.
  std::optional<std::uint64_t> receiver;

  /// Starts a message. Null: too many are under way.
  Result<Request*> send(const void* data, std::size_t bytes, const Memory* memory);
  /// Waits until the small messages are there, whose requests have ended before.
  void settle(Duration timeout);
  Result<bool> test(Request& request) override;
  void take(const Frame& frame, std::span<const std::byte> rest) override;
  void say_closed() override;

 private:
  /// Returns how many messages have begun before their receives.
  std::uint64_t ahead() const noexcept { return begun_ - std::min(begun_, rooms_); }
  Status send_some();
  Result<bool> begin(Request& request);
  Result<Transfer> write(const Request& request, const Frame& landed);

  const std::shared_ptr<Link> link_;                 // also of other comms to that process
  std::uint64_t count_ = 0, begun_ = 0, rooms_ = 0;  // messages: of NCCL, on their way, with room
  std::deque<Transfer> small_under_way_;
  bool small_ = false;  // the last message that began was small, and no room was wanted since
  std::array<Frame, kRequests + kAhead> room_{};  // of the messages from `begun_`
};

class ReceiveComm final : public Comm {
 public:
  /// `sender`: the peer's comm.
  ReceiveComm(std::uint64_t id, Peer peer, std::uint64_t sender)
      : Comm(id), peer_(std::move(peer)), sender_(sender) {
    unsaid_.push_back({.kind = FrameKind::accepted, .comm = sender, .number = id});
  }

  bool receives() const noexcept override { return true; }
  std::uint64_t peer() const noexcept override { return peer_.id(); }
  /// Tells the sender that there is this comm. Returns false if that has to be tried again.
  Result<bool> accept();
  /// Posts a receive. Null: too many are under way.
  Result<Request*> receive(void* data, std::size_t bytes, const Memory* memory);
  Result<bool> test(Request& request) override;
  void take(const Frame& frame, std::span<const std::byte> rest) override;
  void say_closed() override;

 private:
  void say_rooms();
  Status say_all();
  void end(Request& request, std::span<const std::byte> message);

  const Peer peer_;
  const std::uint64_t sender_;
  std::uint64_t came_ = 0;    // number behind the last message that has come
  bool small_ = false;        // that message was small
  std::uint64_t wanted_ = 0;  // the sender waits for the rooms before it
  std::uint64_t count_ = 0;   // receives
  std::deque<Frame> unsaid_;  // to the sender
  std::map<std::uint64_t, std::vector<std::byte>> early_;  // small messages before their receives
};

}  // namespace linkspan::nccl
