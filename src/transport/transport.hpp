// transport/transport.hpp - the contract between the engine and every way to a peer.
//
// Path of a byte: Engine -> TransferScheduler -> Router -> Endpoint::post -> copier or wire ->
//                 Endpoint::progress -> Completion -> TransferScheduler -> the user's Transfer.
// Threads: under the scheduler's lock, where nothing blocks: long work (a copy by CPU threads) is
// an executor's, which owns its slot until it hands it back. What is marked OFF THE LOCK may take
// milliseconds: any thread, beside all the rest.
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

/// What a transport can do, as data. The router reads these fields and never a name.
/// tests/conformance proves each field; a capability that is claimed and absent is a red build.
struct Capabilities {
  MemoryKinds local_kinds = {};  ///< Reachable without staging; publish() refuses others.
  bool initiator_reads = false;  ///< Can pull without the peer's help.
  bool orders_streams = false;   ///< Takes Batch::streams, where a GPU of ours copies.
  bool gpu_indices = false;      ///< Takes Pages::indices_on_gpu, where a kernel of ours copies.
  bool leaves_host = false;
  bool remote_only = false;            ///< Its streams go beside a TCP connection.
  bool checksums = false;              ///< Takes TransferHints::checksum.
  std::uint64_t max_batch_bytes = 0;   ///< The router splits what is larger.
  std::uint64_t max_batch_blocks = 0;  ///< The same.
  std::uint64_t max_batch_pages = 0;   ///< The same of Pages.
  std::uint32_t max_inflight = 0;      ///< Each Endpoint takes so many, whatever others do.
};

/// A peer's region after its key was imported.
class Mapping {
 public:
  virtual ~Mapping() = default;  ///< OFF THE LOCK, no Batch using it: gives the mapping back.
  virtual std::uint64_t bytes() const noexcept = 0;
  virtual Permissions permissions() const noexcept = 0;
  /// False: its owner has retracted the region and waits for us to give the mapping back.
  virtual bool alive() const noexcept = 0;
};

/// Where a batch stands in the order of a user's streams. All calls on those streams are the
/// engine's, off the lock, because they may block: a transport sees events.
struct StreamDependencies {
  const cuda::Event* after = nullptr;  ///< The batch runs behind what this has recorded.
  std::uint64_t stream = 0;            ///< Of which stream that is: it may stand still for long.
  /// Out: recorded behind the batch. Left empty where only the Completion tells of its end.
  std::optional<cuda::PooledEvent>* release = nullptr;
};

/// What a user asks of the copier or wire, by TransferOptions.
struct TransferHints {
  bool low_latency = false;      ///< Not beside StreamDependencies.
  unsigned ctas = ~unsigned{0};  ///< That a kernel of ours takes at most. 0: none is started.
  bool checksum = false;  ///< What arrives is held against what was sent: else it ends `corrupt`.
};

/// Which way a batch went, in the words of Explanation; for dump() and metrics().
struct PathTaken {
  std::string_view path{};  ///< Of a static text. Empty: it had no bytes.
  bool by_peer = false;     ///< The peer executes it.
};

/// What a batch copies.
using BatchShape = std::variant<std::span<const Block>, Pages>;

/// Index lists that PageKeeper::keep_pages() has put where a copier of the transport reads them.
class KeptPages {
 public:
  virtual ~KeptPages() = default;  ///< OFF THE LOCK, no Batch using it.
};

/// One submission: however many blocks, it costs one launch and one flag. No order among blocks or
/// batches: a byte that two in flight both write ends as either's. No blocks is a batch as well.
struct Batch {
  Op op = Op::write;
  const memory::Region* local = nullptr;  ///< Published here. Borrowed until the Completion.
  const Mapping* remote = nullptr;        ///< Imported here, this peer's. Borrowed as well.
  BatchShape shape;                       ///< Read during post() only, but of `kept`.
  /// Its blocks or pages were checked as post() would.
  bool checked = false;
  /// Of pages that were checked: what this transport made of lists of which the shape's are a part.
  /// Borrowed until the Completion, and the shape's lists with it.
  const KeptPages* kept = nullptr;
  std::uint64_t first = 0;  ///< Of pages: where the shape's lists begin in the user's, or `kept`.
  /// Of Pages::indices_on_gpu: in whose memory they are, as was asked. Zero: pinned.
  GpuUuid indices_gpu{};
  StreamDependencies streams = {};  ///< Read during post() only.
  TransferHints hints = {};
  /// Out: as post() chose it, and until the Completion as it was gone. Null: nobody asks.
  PathTaken* path_taken = nullptr;
  /// Of a write, for the peer's user. Read during post() only.
  std::span<const std::byte> notification{};
  /// How many notifications this side has sent over the peer's control connection before: the
  /// peer's user hears `notification` behind them.
  std::uint64_t notifications_before = 0;
  /// Out, of a batch with one: post() has taken it along, and an OK Completion says that the peer
  /// has it. Left as it is by a transport that takes none.
  bool* notifies = nullptr;
  std::uint64_t cookie = 0;  ///< Unique among those in flight; comes back untouched.
};

/// Exactly one for each accepted Batch, and only when it is quiet: the wire will never again touch
/// the memory, on either side, whatever the status says.
struct Completion {
  std::uint64_t cookie = 0;
  Status status;  ///< OK: visible to CPU code and kernels that start after they are told of it.
};

/// Where progress() delivers. An interface: to make a std::function may allocate.
class CompletionSink {
 public:
  virtual void complete(Completion&& completion) = 0;  ///< Calls no Endpoint.

 protected:
  ~CompletionSink() = default;
};

/// When progress() has something to do again.
struct PollHint {
  enum class When : std::uint8_t { idle, now, at };
  When when = When::idle;  ///< idle: only post() or a message of the peer changes that.
  base::Time at{};         ///< For `at`: by then; sooner does no harm.
  bool for_peer = false;   ///< Also for what a peer has asked for, who may ask for more at its end.
  bool moved = false;      ///< Something has just begun or ended, which more may follow.
  bool patient = false;    ///< For `at`: a little later will do, nobody need spin until then.
};

/// What is known of a Batch that is not posted yet; for explain() and the router.
struct BatchSummary {
  std::uint64_t blocks = 0, bytes = 0;
  TransferHints hints = {};
  bool gpu_indices = false;  ///< Only a kernel can read which pages they are: of `indices_gpu`,
  GpuUuid indices_gpu{};     ///< or zero: of any GPU.
};

/// What a peer does on a region of this side by a wire; for dump() and the words of `busy`.
struct Served {
  std::uint64_t serial = 0;  ///< Of the region.
  Op op = Op::write;         ///< The peer's.
  std::uint64_t bytes = 0;   ///< That have moved.
  Duration still{};          ///< Since the last of them.
};

/// One connection to one peer. Batches may complete in any order.
class Endpoint {
 public:
  virtual ~Endpoint() = default;  ///< Requires: closed and drained.
  /// Starts a batch; never calls a sink. OK: one Completion follows. Any other: not started.
  /// no_resource: slots come back only in progress(). invalid_argument: a block leaves its region
  /// (the sum may overflow), index lengths differ, a limit is passed, the Mapping is another
  /// peer's. permission_denied: the peer does not permit it. unsupported: a capability is absent,
  /// or the batch is to run after a stream and no GPU of ours copies it. unreachable: no path.
  /// canceled: closed. timed_out, disconnected: no peer.
  virtual Status post(const Batch& batch) = 0;
  /// Asks for an early end. The Completion still comes when it is quiet, as OK or as `canceled`,
  /// when any part has landed. A cookie that is not in flight is ignored.
  virtual void cancel(std::uint64_t cookie) = 0;
  virtual std::size_t progress(CompletionSink& sink) = 0;  ///< Advances; how many it delivered.
  virtual PollHint poll_hint() const = 0;
  /// Which way such a batch would take, and why not a better one. Costs microseconds.
  virtual Explanation explain(Op op, const memory::Region& local, const Mapping& remote,
                              BatchSummary shape) const = 0;
  /// What is known at connect of the ways to this peer, and what is still to be tried; for the log.
  virtual std::string describe_paths() const = 0;
  /// What the peer sent over the Channel. unsupported: an op this release does not know.
  virtual Status on_message(std::uint16_t op, std::span<const std::byte> bytes,
                            std::span<base::Fd> fds) = 0;
  /// What the peer asks this side to copy from now on is refused; what was begun goes on. Of wires,
  /// which fence themselves: nothing.
  virtual void stop_serving() {}
  /// Lists what the peer does on regions of this side, if this is a wire.
  virtual std::vector<Served> served() const { return {}; }
  virtual void close() = 0;  ///< Refuses new posts and cancels the pending ones.
  /// The peer's process has ended and nothing of it will touch memory again: what it was asked to
  /// execute completes as `disconnected`, what runs here goes on to its own end. Posts answer
  /// `disconnected`. Of a remote peer only the connection is known to have ended: a wire fences
  /// itself: nothing of that peer lands any more once drained() says so.
  virtual void peer_terminated() = 0;
  /// After peer_terminated(): nothing of that peer lands any more. Until then poll_hint() is not
  /// idle.
  virtual bool drained() const = 0;
};

/// What a transport's copiers have begun, for peers as well; for metrics().
struct CopyCount {
  const char* copier = "";
  std::uint64_t orders = 0, blocks = 0;
};

/// What import_key() takes. The fds came over the peer's Unix socket, never from a store; it may
/// move them out, and the caller closes what it leaves.
struct RemoteKey {
  std::span<const std::byte> bytes;
  std::span<base::Fd> fds;
  // Whom it came from, as the connection knows it and not as the key claims:
  std::uint64_t incarnation = 0;  ///< No other owner's key is taken. 0: any.
  bool from_this_process = false;
  std::int64_t pid = 0;  ///< 0: unknown here.
};

class Transport {
 public:
  virtual ~Transport() = default;  ///< After its Endpoints and Mappings.
  virtual std::string_view name() const noexcept = 0;
  virtual const Capabilities& capabilities() const noexcept = 0;
  /// OFF THE LOCK. Once for every Region, also one that stays local: wires register it here.
  virtual Result<memory::PublishedKey> publish(const memory::Region& region) = 0;
  /// OFF THE LOCK, before the Region ends. Its key is dead at once. OK: no peer reaches it through
  /// here any more. busy: one still does, ask again. `revoke_immediately`: the memory itself goes
  /// away, so peers give back what maps GPU memory although their users hold the Mapping.
  virtual Status retract(const memory::Region& region, bool revoke_immediately) = 0;
  /// Under the scheduler's lock. As retract(), of a private region (no peer can map it) whose key
  /// no peer uses any more, as the caller knows: nobody is asked. busy: this side executes on it
  /// for a peer, ask again.
  virtual Status forget(const memory::Region& region) = 0;
  /// OFF THE LOCK. A hostile key is `corrupt`, never a crash: what it claims is measured.
  virtual Result<std::unique_ptr<Mapping>> import_key(RemoteKey key, base::Deadline deadline) = 0;
  /// OFF THE LOCK. This side has closed the peer whose region that is, and no Batch uses it any
  /// more: gives back what maps memory of GPUs although the Mapping lives. Of wires: nothing.
  virtual void unmap(const Mapping& /*mapping*/) {}
  /// Under the scheduler's lock. One for each copier that it has.
  virtual std::vector<CopyCount> copies() const = 0;
  virtual std::vector<std::byte> address() const = 0;  ///< Travels in the handshake.
  /// Returns at once. Both peers call it, each with the other's address(). Until both have, post()
  /// may answer no_resource; past the deadline, timed_out. The Channel outlives the Endpoint.
  virtual Result<std::unique_ptr<Endpoint>> connect(std::span<const std::byte> address,
                                                    Channel& channel, base::Deadline deadline) = 0;
};

/// What an Endpoint is as well, if its wire is made of connections beside the Channel.
class DataConnectionSink {
 public:
  /// One that this side or the other has asked for by Channel::open_data_connection(): a socket
  /// that does not block, how what goes over it is sealed, or why it could not be made. corrupt:
  /// the peer makes too many.
  virtual Status on_data_connection(Result<base::AuthenticatedSocket> socket) = 0;

 protected:
  ~DataConnectionSink() = default;
};

/// What a Transport is as well, if lists of pages that are posted again and again can lie ready.
/// tests/conformance finds and proves it.
class PageKeeper {
 public:
  /// OFF THE LOCK. Copies both lists, which were checked, for batches between these two that
  /// follow. Null: such batches would gain nothing.
  virtual Result<std::unique_ptr<KeptPages>> keep_pages(const memory::Region& local,
                                                        const Mapping& remote,
                                                        const Pages& pages) = 0;

 protected:
  ~PageKeeper() = default;
};

/// What a Transport is as well, if kernels can load and store in what it has imported.
class KernelReach {
 public:
  struct KernelView {
    std::uint64_t address = 0;              ///< Of the region's first byte.
    std::shared_ptr<const void> keepalive;  ///< As a Batch: until it goes nothing is given back.
  };
  /// For kernels of that GPU; for this CPU where it is zero. unreachable: the text says why.
  virtual Result<KernelView> reach(const Mapping& remote, const GpuUuid& gpu) const = 0;

 protected:
  ~KernelReach() = default;
};

}  // namespace linkspan::transport
