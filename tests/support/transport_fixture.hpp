// tests/support/transport_fixture.hpp - two connected ends of any transport, and memory that shows
// every byte that landed in a wrong place.
//
// The near end is in this process. The far end is in this one too or in an exec'd one, with one
// interface for both: it allocates, fills, checks, publishes and retracts its memory on request, so
// the tests are the same.
// Threads: externally synchronised, except publish() and Link::import(): any thread.
// Invariants: each accepted batch has completed once when a Link ends, or the test has failed.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "memory/registry.hpp"
#include "tests/support/kinds.hpp"
#include "tests/support/process.hpp"
#include "tests/support/take.hpp"
#include "transport/transport.hpp"

namespace linkspan::test {

using base::Clock, base::Deadline, base::FakeClock, base::Fd;
using memory::PublishedKey;
using transport::Batch, transport::Capabilities, transport::Channel, transport::Completion,
    transport::CompletionSink, transport::Endpoint, transport::Mapping, transport::PollHint,
    transport::Transport;

/// A region inside an allocation of some end, with the expected contents of the allocation.
class Memory {
 public:
  static constexpr std::uint64_t kBytes = (1u << 20) + (1u << 18);  // offsets beyond 1 MiB

  virtual ~Memory() = default;
  /// Fills the memory, its guards too, with fresh data.
  void fill(std::uint64_t seed) {
    seed_ = seed;
    expected_.clear();
    put(seed);
  }
  /// Expects from now on at `offset` the `bytes` that `from` was filled with at `from_offset`.
  void expect(std::uint64_t offset, const Memory& from, std::uint64_t from_offset,
              std::uint64_t bytes) {
    expected_.push_back({offset, from.seed_, from_offset, bytes});
  }
  void check() const { ASSERT_EQ(difference(seed_, expected_), ""); }

  // Used by fill() and check().
  virtual void put(std::uint64_t seed) = 0;
  virtual std::string difference(std::uint64_t seed, std::span<const Expected> expected) const = 0;

 private:
  std::uint64_t seed_ = 0;
  std::vector<Expected> expected_;
};

/// Op of a message that carries the socket of a data connection.
inline constexpr std::uint16_t kStreamOp = 0xFFFE;
/// Passes a received message to the endpoint.
Status deliver(Endpoint& endpoint, base::Frame& message);

/// One end, which the test controls.
class End {
 public:
  virtual ~End() = default;
  virtual Result<std::vector<std::byte>> address() = 0;
  /// Makes the Endpoint; once.
  virtual Status connect(std::span<const std::byte> address) = 0;
  virtual Result<std::unique_ptr<Memory>> allocate(Permissions peers) = 0;
  virtual Result<PublishedKey> publish(const Memory& memory) = 0;
  virtual Status retract(const Memory& memory) = 0;
  virtual void progress() = 0;  ///< Does what does not happen by itself.
  virtual void close() = 0;     ///< Closes its Endpoint.
  virtual void die() = 0;       ///< Suddenly. Nothing of it will touch memory again.
  virtual bool alive() const = 0;
};

/// An end in this process.
class HereEnd final : public End {
 public:
  /// The transport and the memory that it is tried with.
  struct Parts {
    std::unique_ptr<memory::Registry> registry;
    std::unique_ptr<Transport> transport;
    MemoryKind kind = MemoryKind::host;
    bool exclusive = false;  ///< Its regions must not be mapped.
  };
  explicit HereEnd(Parts parts) : parts_(std::move(parts)) {}
  ~HereEnd() override;

  /// Sets the channel by which the Endpoint sends to its peer, before connect(). Without it nothing
  /// is sent.
  void use(std::shared_ptr<Channel> channel) { channel_ = std::move(channel); }
  Status connect_by(std::span<const std::byte> address, Deadline deadline);

  Transport& transport() { return *parts_.transport; }
  Endpoint* endpoint() { return endpoint_.get(); }
  static const memory::Region& region(const Memory& memory);

  Result<std::vector<std::byte>> address() override { return transport().address(); }
  Status connect(std::span<const std::byte> address) override {
    return connect_by(address, Deadline::after(Clock::steady(), 10s));
  }
  Result<std::unique_ptr<Memory>> allocate(Permissions peers) override;
  Result<PublishedKey> publish(const Memory& memory) override;
  Status retract(const Memory& memory) override;
  void progress() override;
  void close() override;
  void die() override;
  bool alive() const override { return alive_; }

 private:
  Parts parts_;
  std::shared_ptr<Channel> channel_;  // no second owner: it knows how to delete what it holds
  std::unique_ptr<Endpoint> endpoint_;
  bool alive_ = true;
};

struct Ends {
  std::unique_ptr<End> far;
  std::unique_ptr<HereEnd> near;  // ends first: its Channel is a loan of the far end's
  Line* line = nullptr;           ///< Brings the near end's messages; null: there are none.
};

/// An entry of this table subjects a transport to the whole suite.
struct Subject {
  std::string name;
  Result<Ends> (*open)(const Subject& subject);  ///< `unsupported`: not on this machine.
  // How either process makes its end, for open_in_two_processes().
  Result<HereEnd::Parts> (*near_parts)() = nullptr;
  Result<HereEnd::Parts> (*far_parts)() = nullptr;
};
const std::vector<Subject>& all_subjects();
inline void PrintTo(const Subject& subject, std::ostream* out) { *out << subject.name; }

/// Opens the far end in a child, which finds the subject by name and makes its far_parts.
Result<Ends> open_in_two_processes(const Subject& subject);

/// Fds of a key, which other keys may share.
using SharedFds = decltype(PublishedKey::fds);

/// The near end posts from `here` to `there`.
class Link final : private CompletionSink {
 public:
  explicit Link(Ends ends);
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  ~Link();
  void join() { must(far->connect(take(near->address()))); }

  static Deadline soon() { return Deadline::after(Clock::steady(), 20s); }
  /// Imports with duplicates of the key's fds, as the control thread would have sent them.
  Result<std::unique_ptr<Mapping>> import(const PublishedKey& from, Deadline deadline = soon()) {
    return import(from.bytes, from.fds, deadline);
  }
  Result<std::unique_ptr<Mapping>> import(std::span<const std::byte> bytes, const SharedFds& fds,
                                          Deadline deadline = soon());
  /// Retries until it is OK; it is busy while a transfer or mapping still uses it.
  Status retract(End& end, const Memory& memory);

  Batch batch(std::variant<std::span<const Block>, Pages> shape, Op op = Op::write) {
    return {.op = op,
            .local = &HereEnd::region(*here),
            .remote = remote.get(),
            .shape = shape,
            .cookie = ++cookies_};
  }
  Status post(const Batch& batch);
  void progress();
  /// Waits until a message comes or what poll_hint() has asked for, then makes progress once.
  void progress_when_asked();
  /// Waits until every batch has completed; returns false if some have not after 20 s.
  [[nodiscard]] bool drain();
  /// Gives late bytes and second completions the time to come.
  void linger();
  /// Posts, drains and expects OK.
  void run(const Batch& batch);

  std::size_t in_flight() const { return inflight_.size(); }

 private:
  Ends ends_;

 public:
  HereEnd* const near;
  End* const far;
  FakeClock clock;  // connect()'s
  std::unique_ptr<Memory> here, there;
  PublishedKey key;
  std::unique_ptr<Mapping> remote;
  Endpoint* endpoint = nullptr;                         // near's
  std::map<std::uint64_t, Status> done;                 // by cookie
  std::map<std::uint64_t, transport::PathTaken> paths;  // by cookie, as it was known last
  transport::Posted posted;                             // of the last batch

 private:
  void complete(Completion&& completion) override;
  bool deliver();  // messages of the far end

  std::set<std::uint64_t> inflight_;
  std::uint64_t cookies_ = 0;
  bool posting_ = false;
};

class TransportConformance : public ::testing::TestWithParam<Subject> {
 protected:
  /// Skips for `unsupported` only, and not for what CI lists in LINKSPAN_TEST_REQUIRE
  /// ("local,tcp").
  void SetUp() override;

  std::unique_ptr<Link> link;
};

}  // namespace linkspan::test
