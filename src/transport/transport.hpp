// transport/transport.hpp - the contract between the engine and each transport.
//
// Path of a byte: Engine -> PeerScheduler -> Router -> Endpoint::post -> copier or wire ->
//                 Endpoint::progress -> Completion -> PeerScheduler -> the user's Transfer.
// Threads: an Endpoint is called under its peer's mutex, where nothing blocks. What the Endpoints
// of a transport share, the transport guards. An executor does long work (a copy by CPU threads)
// and owns its state until it returns it. Functions marked OFF THE LOCK may take milliseconds; any
// thread may call them at any time.
// Invariants: each accepted Batch has exactly one Completion, or ended in post().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "base/frame_authenticator.hpp"
#include "cuda/event.hpp"
#include "linkspan/status.hpp"
#include "linkspan/types.hpp"
#include "memory/region.hpp"
#include "transport/channel.hpp"

namespace linkspan::transport {

/// Lists what a transport can do. The router reads these fields and never a name.
/// tests/conformance proves each field: a capability that is claimed and absent is a red build.
struct Capabilities {
  MemoryKinds local_kinds = {};  ///< Reachable without staging; publish() refuses others.
  bool initiator_reads = false;  ///< Can read remote memory without the peer's help.
  bool orders_streams = false;   ///< Accepts Batch::streams if a GPU of this process copies.
  bool gpu_indices = false;      ///< Accepts Pages::indices_on_gpu if a kernel of ours copies.
  bool leaves_host = false;
  bool remote_only = false;            ///< Serves only peers that were met over TCP.
  bool checksums = false;              ///< Accepts TransferHints::checksum.
  std::uint64_t max_batch_bytes = 0;   ///< The router splits larger transfers.
  std::uint64_t max_batch_blocks = 0;  ///< As max_batch_bytes.
  std::uint64_t max_batch_pages = 0;   ///< As max_batch_bytes, for Pages.
  std::uint32_t max_inflight = 0;      ///< Batches that each Endpoint accepts, whatever others do.
};

/// A peer's region after its key was imported.
class Mapping {
 public:
  /// OFF THE LOCK. Unmaps the region. Requires that no Batch uses it.
  virtual ~Mapping() = default;
  virtual std::uint64_t bytes() const noexcept = 0;
  virtual Permissions permissions() const noexcept = 0;
  /// Returns false once the owner has retracted the region and waits until it is unmapped here.
  virtual bool alive() const noexcept = 0;
};

/// Orders a batch among the work of a user's CUDA streams. A transport sees events only: the
/// engine makes all calls on the streams, off the lock, because they may block.
struct StreamDependencies {
  const cuda::Event* after = nullptr;  ///< The batch runs after the work this has recorded.
  std::uint64_t stream = 0;            ///< Identifies the stream, which may stall for long.
  bool wants_event = false;            ///< Asks for Posted::event.
};

/// Carries a user's TransferOptions to the copier or wire.
struct TransferHints {
  bool low_latency = false;      ///< Not together with StreamDependencies.
  unsigned ctas = ~unsigned{0};  ///< At most these of a copy kernel. 0: no kernel is started.
  bool checksum = false;  ///< Verifies received against sent bytes; a mismatch ends as `corrupt`.
};

/// Records the path that a batch took, spelled as in Explanation; for dump() and metrics().
struct PathTaken {
  std::string_view path{};  ///< Points to static text. Empty: the batch had no bytes.
  bool by_peer = false;     ///< The peer executes it.
};

/// Says which bytes a batch copies.
using BatchShape = std::variant<std::span<const Block>, Pages>;

/// Index lists that Transport::keep_pages() has put where a copier of the transport reads them.
class KeptPages {
 public:
  virtual ~KeptPages() = default;  ///< OFF THE LOCK. Requires that no Batch uses it.
};

/// Memory of a peer as kernels, or this CPU, address it.
struct KernelView {
  std::uint64_t address = 0;              ///< Address of the region's first byte.
  std::shared_ptr<const void> keepalive;  ///< Keeps the region mapped, as a Batch does.
  bool atomics = false;  ///< Atomics of all processors that map it are atomic to each other.
};

/// A region of this side and one of the peer's.
struct BatchPair {
  const memory::Region* local = nullptr;
  const Mapping* remote = nullptr;
};

/// The pairs of regions that wait behind that of a Batch, in order. An interface, so that pairs are
/// looked at only where a transport can take several: there may be thousands.
class WaitingPairs {
 public:
  /// Returns how many of the first ones get the same pages as the Batch, at most `most`.
  virtual std::size_t alike(std::size_t most) const = 0;
  /// Returns the pages of a pair: checked, in host lists that are valid during post(), and all that
  /// it gets. Null if it gets something else, or there is no such pair.
  virtual const Pages* pages(std::size_t index) const = 0;
  /// Requires that `index` is below alike(), or has pages().
  virtual BatchPair at(std::size_t index) const = 0;

  /// The number of a list of pairs, and the index of these in it. Equal: the pairs are equal.
  struct Place {
    std::uint64_t list = 0;
    std::size_t first = 0;
    friend bool operator==(const Place&, const Place&) = default;
  };
  virtual Place place() const = 0;

 protected:
  ~WaitingPairs() = default;
};

/// One submission. Costs one launch and one completion flag, whatever the number of blocks.
/// Neither blocks nor batches are ordered: a byte that two of them write ends as either's. A batch
/// may have no blocks.
struct Batch {
  Op op = Op::write;
  const memory::Region* local = nullptr;  ///< Published here. Borrowed until the Completion.
  const Mapping* remote = nullptr;  ///< Imported from this peer. Borrowed until the Completion.
  BatchShape shape;                 ///< Read during post() only, unless `kept` is set.
  /// The caller has done the checks of post() on the blocks or pages.
  bool checked = false;
  /// For checked pages: what keep_pages() made of the lists that contain the shape's. Borrowed
  /// until the Completion, and so are the shape's lists.
  const KeptPages* kept = nullptr;
  /// For checked pages; may be null. A transport may take the first of these pairs into the batch,
  /// because one kernel copies them all. Read during post() only; the regions of those that it took
  /// are borrowed as `local` and `remote` are.
  const WaitingPairs* more = nullptr;
  /// For pages: where the shape's lists begin in the user's, or in those of `kept`.
  std::uint64_t first = 0;
  /// For Pages::indices_on_gpu: the GPU whose memory the user named for them. Zero: pinned memory.
  GpuUuid indices_gpu{};
  StreamDependencies streams = {};  ///< Read during post() only.
  TransferHints hints = {};
  /// For the peer's user, with a write. Read during post() only.
  std::span<const std::byte> notification{};
  /// Notifications that this side sent over the control connection before. The peer's user gets
  /// `notification` after these.
  std::uint64_t notifications_before = 0;
  /// Promises that the caller of post() makes a Posted::callers_copy that is `now`, and knows
  /// Posted::ended.
  bool caller_copies = false;
  std::uint64_t cookie = 0;  ///< Unique among those in flight; returned in the Completion.
};

/// Names the part of a batch that the user's threads may copy.
struct CallersCopy {
  std::uint64_t id = 0;  ///< For Endpoint::copy_as_caller(). 0: none.
  bool now = false;      ///< The caller of post() copies it alone. Else waiters may help.
};

/// Describes a batch that a transport has started; post() returns it.
struct Posted {
  PathTaken path{};        ///< May still change: the Completion has the last one.
  std::size_t joined = 0;  ///< How many pairs of Batch::more it took.
  /// The notification travels with the batch: an OK Completion means that the peer has it.
  bool notifies = false;
  /// Recorded after the batch, if asked for. Empty if only the Completion reports the end.
  std::optional<cuda::PooledEvent> event{};
  CallersCopy callers_copy{};
  bool ended = false;  ///< It is over and went well. No Completion follows.
};

/// Reports the end of a batch once it is quiet: whatever the status, the transport never again
/// touches the memory of either side.
struct Completion {
  std::uint64_t cookie = 0;
  Status status;  ///< OK: visible to CPU code and kernels that start after they learn of it.
  PathTaken path{};
  /// Where the transport itself has failed, which is `unreachable` with Scope::transport: what is
  /// left of the batch, for another transport. Of a batch that took pairs of Batch::more: empty.
  std::vector<Block> unfinished{};
};

/// Receives what progress() delivers. An interface, because to make a std::function may allocate.
class CompletionSink {
 public:
  virtual void complete(Completion&& completion) = 0;  ///< Must not call an Endpoint.

 protected:
  ~CompletionSink() = default;
};

/// Tells when progress() has something to do again.
struct PollHint {
  enum class When : std::uint8_t { idle, now, at };
  When when = When::idle;  ///< idle: only post() or a message of the peer changes that.
  base::Time at{};         ///< For `at`: the latest time; an earlier poll does no harm.
  bool for_peer = false;   ///< Covers the peer's requests too. A peer often sends another one next.
  bool moved = false;      ///< Something has just begun or ended, and more may follow.
  bool patient = false;    ///< For `at`: a little later is enough, no thread needs to spin.
};

/// Returns a hint for two things that progress() serves.
inline PollHint earlier(const PollHint& a, const PollHint& b) noexcept {
  using When = PollHint::When;
  const bool second =
      a.when == When::idle ||
      (a.when == When::at && (b.when == When::now || (b.when == When::at && b.at < a.at)));
  PollHint next = second ? b : a;
  next.for_peer = a.for_peer || b.for_peer;
  next.moved = a.moved || b.moved;
  return next;
}

/// Summarises a Batch that is not posted yet; for explain() and the router.
struct BatchSummary {
  std::uint64_t blocks = 0, bytes = 0;
  TransferHints hints = {};
  bool gpu_indices = false;  ///< Only a kernel of `indices_gpu` can read the page indices.
  GpuUuid indices_gpu{};     ///< Zero: a kernel of any GPU.
};

/// Describes a peer's transfer on a region of this side; for dump() and the texts of `busy`.
struct Served {
  std::uint64_t serial = 0;  ///< The region's.
  Op op = Op::write;         ///< As the peer sees it.
  std::uint64_t bytes = 0;   ///< Moved so far.
  Duration still{};          ///< Time since the last byte moved.
};

/// One connection to one peer. Batches may complete in any order.
class Endpoint {
 public:
  virtual ~Endpoint() = default;  ///< Requires that it is closed and drained.
  /// Starts a batch; never calls a sink. After OK one Completion follows, unless it has `ended`;
  /// after an error nothing has started.
  /// no_resource: try again after progress(). invalid_argument: a block leaves its region (the sum
  /// may overflow), index lengths differ, a limit is exceeded, or the Mapping is another peer's.
  /// permission_denied: the peer does not permit it. unsupported: a capability is absent, or the
  /// batch depends on a CUDA stream and no GPU of this process copies it. unreachable: no path.
  /// canceled: closed. timed_out, disconnected: no peer.
  virtual Result<Posted> post(const Batch& batch) = 0;
  /// OFF THE LOCK. Copies all of it if it is `now`, else at most a MiB that no other thread has
  /// begun. Returns whether there was any. `now`: once; else any thread, at any time.
  virtual bool copy_as_caller(CallersCopy /*copy*/) { return false; }
  /// Asks for an early end. The Completion still comes once the batch is quiet, as OK or as
  /// `canceled`, after which any part may have been written. Ignores a cookie not in flight.
  virtual void cancel(std::uint64_t cookie) = 0;
  /// Advances the batches and returns the number of Completions that it delivered.
  virtual std::size_t progress(CompletionSink& sink) = 0;
  virtual PollHint poll_hint() const = 0;
  /// Returns the path that such a batch would take, and why not a better one. Costs microseconds.
  virtual Explanation explain(Op op, const memory::Region& local, const Mapping& remote,
                              BatchSummary shape) const = 0;
  /// Describes, for the log, the paths to this peer known at connect, and those still to be tried.
  virtual std::string describe_paths() const = 0;
  /// Handles what the peer sent over the Channel. unsupported: an op that this release does not
  /// know.
  virtual Status on_message(std::uint16_t op, std::span<const std::byte> bytes,
                            std::span<base::Fd> fds) = 0;
  /// Receives a connection that either side requested by Channel::open_data_connection(): a
  /// non-blocking socket with its sealing, or why it could not be made. corrupt: the peer makes too
  /// many. unsupported: the transport has no connections beside the Channel.
  virtual Status on_data_connection(Result<base::AuthenticatedSocket> /*socket*/) {
    return {Code::unsupported, Scope::request, "no streams of this transport here"};
  }
  /// Refuses the peer's later requests to copy here; running ones go on. Does nothing for wires,
  /// which fence themselves.
  virtual void stop_serving() {}
  /// Lists what the peer does on regions of this side, if this is a wire.
  virtual std::vector<Served> served() const { return {}; }
  virtual void close() = 0;  ///< Refuses new posts and cancels the pending ones.
  /// Called when the peer's process has ended and nothing of it will touch memory again. Requests
  /// to the peer complete as `disconnected`; copies here run to their own end. Later posts return
  /// `disconnected`. For a remote peer only the connection has ended: the wire fences itself, and
  /// the peer's late bytes may be written until drained() returns true.
  virtual void peer_terminated() = 0;
  /// Returns true, after peer_terminated(), once no byte of that peer is written any more. Until
  /// then poll_hint() is not idle.
  virtual bool drained() const = 0;
};

/// Counts what a copier of a transport has begun, for peers as well; for metrics().
struct CopyCount {
  const char* copier = "";
  std::uint64_t orders = 0, blocks = 0;
};

/// Holds a peer's key for import_key(). The fds came over the peer's Unix socket, never from a
/// store. The callee may move them out; the caller closes the rest.
struct RemoteKey {
  std::span<const std::byte> bytes;
  std::span<base::Fd> fds;
  // The sender, as the connection knows it and not as the key claims:
  std::uint64_t incarnation = 0;  ///< Keys of other owners are refused. 0: any owner.
  bool from_this_process = false;
  std::int64_t pid = 0;  ///< 0: unknown here.
};

class Transport {
 public:
  virtual ~Transport() = default;  ///< Requires that its Endpoints and Mappings have ended.
  virtual std::string_view name() const noexcept = 0;
  virtual const Capabilities& capabilities() const noexcept = 0;
  /// OFF THE LOCK. Publishes the region; called once for each, even if it stays local. Wires
  /// register it here.
  virtual Result<memory::PublishedKey> publish(const memory::Region& region) = 0;
  /// OFF THE LOCK, before the Region ends. Invalidates its key at once. OK: no peer reaches it
  /// through this transport any more. busy: a peer still does, call again. `revoke_immediately`:
  /// the memory itself goes away, so peers unmap GPU memory even while their users keep the
  /// Mapping.
  virtual Status retract(const memory::Region& region, bool revoke_immediately) = 0;
  /// Any thread. Retracts a private region, which no peer can map, without asking
  /// any peer. Requires that no peer uses its key any more. busy: this side executes on it for a
  /// peer, call again.
  virtual Status forget(const memory::Region& region) = 0;
  /// OFF THE LOCK. Imports a peer's key and measures what it claims: a hostile key is `corrupt`,
  /// never a crash.
  virtual Result<std::unique_ptr<Mapping>> import_key(RemoteKey key, base::Deadline deadline) = 0;
  /// OFF THE LOCK. Unmaps the GPU memory of a peer that this side has closed, although the Mapping
  /// lives. Requires that no Batch uses it. Does nothing for wires.
  virtual void unmap(const Mapping& /*mapping*/) {}
  /// OFF THE LOCK. Copies both lists, which were checked, for later batches between these two
  /// regions. Returns null if such batches would gain nothing.
  virtual Result<std::unique_ptr<KeptPages>> keep_pages(const memory::Region& /*local*/,
                                                        const Mapping& /*remote*/,
                                                        const Pages& /*pages*/) {
    return std::unique_ptr<KeptPages>();
  }
  /// Returns the address for kernels of that GPU, or for this CPU if `gpu` is zero. unreachable:
  /// the text says why.
  virtual Result<KernelView> reach(const Mapping& /*remote*/, const GpuUuid& /*gpu*/) const {
    return Status(Code::unreachable, Scope::peer, std::string(name()) + " maps nothing");
  }
  /// Any thread. Returns one entry for each copier.
  virtual std::vector<CopyCount> copies() const = 0;
  virtual std::vector<std::byte> address() const = 0;  ///< Travels in the handshake.
  /// Returns at once. Both peers call it, each with the other's address(). Until both have, post()
  /// may return no_resource, and timed_out after the deadline. The Channel outlives the Endpoint.
  virtual Result<std::unique_ptr<Endpoint>> connect(std::span<const std::byte> address,
                                                    Channel& channel, base::Deadline deadline) = 0;
};

}  // namespace linkspan::transport
