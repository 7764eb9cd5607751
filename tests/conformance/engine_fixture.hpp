// tests/conformance/engine_fixture.hpp - an Engine here, an Engine in an exec'd process, and
// memory of each kind on both sides.
//
// Threads: externally synchronised.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/handles.hpp"
#include "linkspan/engine.hpp"
#include "tests/support/kinds.hpp"
#include "tests/support/process.hpp"
#include "tests/support/take.hpp"

namespace linkspan::test {

/// Which memory: "device0", "device1", "pinned", "host" (pageable) or "shared"; or of a GPU and
/// exported in no way, "unshared0" and "unshared1".
struct Kind {
  const char* name;
  MemoryKind kind;
  unsigned gpu = 0;
  Make make = Make::allocated;
};
inline constexpr Kind kKinds[] = {{"device0", MemoryKind::device, 0},
                                  {"device1", MemoryKind::device, 1},
                                  {"pinned", MemoryKind::pinned},
                                  {"host", MemoryKind::host},
                                  {"shared", MemoryKind::shared}};
inline constexpr Kind kUnshared[] = {{"unshared0", MemoryKind::device, 0, Make::unshared_chunks},
                                     {"unshared1", MemoryKind::device, 1, Make::unshared_chunks}};
/// Memory of the second GPU that cudaMalloc did not make; the last two cannot be mapped by others.
inline constexpr Kind kMadeKinds[] = {
    {"chunks", MemoryKind::device, 1, Make::chunks},
    {"pool", MemoryKind::device, 1, Make::pool},
    {"unshared_chunks", MemoryKind::device, 1, Make::unshared_chunks},
    {"unshared_pool", MemoryKind::device, 1, Make::unshared_pool}};
const Kind& kind_of(const std::string& name);
inline void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }
/// Returns OK, or the reason why memory of these kinds is not available.
Status kinds_here(std::initializer_list<Kind> kinds);

struct MemoryOptions {
  std::string kind;
  std::uint64_t bytes = 1u << 20;
  Permissions peers{.read = true, .write = true};
  std::uint64_t guard = Buffer::kGuard;
};

/// A registered region inside an allocation.
struct Held {
  std::unique_ptr<Buffer> buffer;
  Region whole;  ///< For shared memory, which the Engine allocated.
  Region region;

  static Held make(Engine& engine, const MemoryOptions& options);
  /// Returns memory that is not registered; `region` stays empty.
  static Held loose(Engine& engine, const MemoryOptions& options);
  std::byte* at(std::uint64_t offset) const {
    return static_cast<std::byte*>(buffer->data()) + offset;
  }
  void fill(std::uint64_t seed) { buffer->fill(seed); }
  void fill(std::uint64_t seed, const Extent& part) { buffer->fill(seed, part); }
  std::string difference(std::uint64_t seed, const std::vector<Expected>& expected = {},
                         const std::vector<Extent>& anything = {}) const {
    return buffer->difference(seed, expected, anything);
  }
};

/// A two-sided message, as the far end posts it: with a tag, or by send_ipc and recv_ipc.
struct Message {
  bool sends = false;
  std::string name;  ///< Name of its memory there.
  std::uint64_t offset = 0, bytes = 0;
  std::optional<std::uint64_t> tag = 1;
  Duration deadline{0};
  std::uint64_t conn_id = 0;  ///< 0: its only peer.
};
/// How it ended there.
struct FarEnd {
  std::string code, what;
  std::uint64_t bytes = 0;
};

/// Returns options with a socket folder of this process, in which short names lie.
EngineOptions engine_options(std::string name);

/// The process below, by its name for Child::spawn().
inline constexpr const char* kEngineHelper = "engine";

/// An Engine in a child, which the test controls. It listens from the start.
class FarEngine {
 public:
  explicit FarEngine(const std::vector<std::string>& environment = {},
                     const std::string& helper = kEngineHelper);

  const std::string& address() const noexcept { return address_; }
  Child& process() noexcept { return *child_; }

  /// Registers memory and publishes it as `name`.
  void add(const std::string& name, const MemoryOptions& options);
  void fill(const std::string& name, std::uint64_t seed);
  void fill(const std::string& name, std::uint64_t seed, const Extent& part);
  std::string difference(const std::string& name, std::uint64_t seed,
                         const std::vector<Expected>& expected = {});
  Status deregister(const std::string& name, Duration timeout);
  Status invalidate(const std::string& name, Duration timeout);
  /// Returns the CUDA handle of the allocation that `name` lies in, and its offset, for
  /// cuda::IpcMapping.
  std::pair<cuda::IpcHandle, std::uint64_t> ipc(const std::string& name);
  /// Returns the received notifications as texts; waits 10 s for `count`.
  std::vector<std::string> notifications(std::size_t count);
  /// Notifies its peer of each text. Returns when all were accepted, for which it waits 10 s.
  void notify(const std::vector<std::string>& texts);

  // Connects as an initiator, which has one peer and looks up its regions by name.
  void connect(const std::string& address);
  void accept();  ///< Accepts the next peer that has connected.
  Status close_peer(Duration timeout);
  /// Returns the path, or the error.
  Result<std::string> explain(const std::string& local, const std::string& remote,
                              std::uint64_t bytes);
  /// Returns the reasons against better paths in one text.
  std::string why_no_better(const std::string& local, const std::string& remote,
                            std::uint64_t bytes = 1);
  /// Submits `count` writes, which together cover the region; returns when all are in flight.
  void start(const std::string& local, const std::string& remote, std::uint64_t count,
             const std::string& require = "");
  /// Drops the regions that it has looked up. None may be in use by a transfer.
  void let_go();
  /// Returns one text for each transfer that was started: "ok" or the code's name.
  std::vector<std::string> ends();
  /// Keeps such a transfer in flight from now on: starts the next when one ends.
  void churn(Op op, const std::string& local, const std::string& remote, const Block& block,
             const std::string& require = "");
  /// Returns the first failure so far, or nothing.
  std::string wrong();
  /// Waits until nothing of that is in flight. Returns the first failure, or nothing.
  std::string rest();

  // Adds memory for two-sided messages with the peer that has connected to it.
  void add_loose(const std::string& name, const MemoryOptions& options);
  /// Posts the message. Returns its number once it is in flight.
  Result<std::size_t> post(const Message& message);
  FarEnd end(std::size_t number);  ///< Waits 20 s.
  std::string cancel(std::size_t number);
  std::string dump();

  /// Forks a child that does nothing and keeps all that it inherited; the test ends it.
  pid_t fork();

 private:
  Json call(Json request) { return take(child_->line().call(request)).value; }

  std::unique_ptr<Child> child_;
  std::string address_;
};

/// Set in the far end's environment: its kernel refuses process_vm_readv and _writev.
inline constexpr const char* kNoCrossProcess = "LINKSPAN_TEST_NO_CROSS_PROCESS=1";

/// There too: where it listens.
inline constexpr const char* kListenAt = "LINKSPAN_TEST_ADDRESS=";

/// There too: it has no /proc when its Engine opens.
inline constexpr const char* kNoProc = "LINKSPAN_TEST_NO_PROC=1";

/// There too: the Engine logs to stderr, and that is this file.
inline constexpr const char* kStderrFile = "LINKSPAN_TEST_STDERR=";

/// An Engine here that is connected to one there. Memory that is registered here outlives it.
struct Pair {
  explicit Pair(const std::vector<std::string>& environment = {},
                const std::string& helper = kEngineHelper,
                const EngineOptions& options = engine_options("near"))
      : far(environment, helper),
        engine(take(Engine::open(options))),
        peer(take(engine.connect(far.address()))) {}

  RemoteRegion remote(const std::string& name) { return take(peer.lookup(name)); }

  FarEngine far;
  Engine engine;
  Peer peer;
};

/// Waits 30 s for the end. Returns its status, also if the transfer never began.
Status finished(const Result<Transfer>& transfer);
/// Returns one of `count` parts of a region. Transfers in flight use different parts, because the
/// result of two writes to one byte is undefined.
Block part_of(std::uint64_t bytes, std::uint64_t index, std::uint64_t count);
/// Returns true if this side knows by the deadline that the peer has ended.
bool is_down(const Peer& peer, base::Deadline deadline);

}  // namespace linkspan::test
