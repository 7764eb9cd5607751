// linkspan/peer.hpp - a connected Engine of another process: transfers start here.
//
// Path of a byte: write(), read(), send() and recv() check the shape, choose a path and start or
// queue the transfer; the returned Transfer tells its end.
// Threads: any thread.
// Invariants: a handle may be copied and may outlive the peer and the Engine; calls then answer
// `disconnected` or `canceled`.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "linkspan/future.hpp"
#include "linkspan/prepared.hpp"
#include "linkspan/region.hpp"
#include "linkspan/transfer.hpp"

namespace linkspan {

struct WindowOptions;
class Window;

/// up: connected. lost: the connection has ended or close() was called; no new work is started, but
/// the process may live and may still touch memory. gone: the process has ended, the peer
/// disconnected in order, or a remote peer is lost; nothing of it touches memory any more.
enum class PeerState : std::uint8_t { up, lost, gone };

/// A local region, one of the peer's, and what a transfer of several pairs copies between them.
struct TransferPart {
  Region local;
  RemoteRegion remote;
  Shape shape;
};

class LINKSPAN_API Peer {
 public:
  Peer() = default;  ///< None.
  bool valid() const noexcept { return impl_ != nullptr; }
  std::uint64_t id() const noexcept { return id_; }  ///< Unique in this Engine, from 1.
  /// Returns EngineOptions::name of the peer, also after it has ended.
  const std::string& name() const noexcept { return name_; }
  PeerState state() const;

  /// Disconnects this peer alone. ok: the peer's linkspan no longer touches memory of this Engine,
  /// by any key that it was given.
  ///
  /// Transfers with the peer end `canceled`, or `disconnected` if a data connection had to be
  /// reset. From the call on new calls with this Peer answer `disconnected`, calls that wait for
  /// its reply answer `canceled`, its requests are refused, and its Windows fail: their kernels
  /// must end. The peer sees this side as gone. The same two Engines may connect again, as another
  /// Peer.
  ///
  /// GPU memory of the peer is unmapped here unless a Window uses it; other memory stays mapped
  /// until the last RemoteRegion is dropped. Several threads may call this, also repeatedly; each
  /// call waits. pending: `timeout` has passed, and a peer of this host that is stopped or still
  /// copies may touch memory; call again. A peer over TCP is waited for at most 1 s. canceled: the
  /// Engine is closed.
  Status close(Duration timeout = std::chrono::seconds(5)) const;

  /// Imports the region that the peer published under `name`; takes 5 to 10 ms for memory of
  /// another GPU. not_found: the peer has no such name. invalid_argument: the name is a set of
  /// several regions; use lookup_set(). corrupt: the region's key cannot be opened here, which also
  /// happens if the peer dies meanwhile. unreachable: the peer is connected over TCP, and the
  /// region can be reached on its own host only. timed_out, disconnected.
  Result<RemoteRegion> lookup(std::string_view name,
                              Duration timeout = std::chrono::seconds(10)) const;
  /// Imports the regions of all names, in about the time of one answer and all mappings. An error
  /// is that of the first name that has one; then no region is imported.
  Result<std::vector<RemoteRegion>> lookup_all(std::span<const std::string> names,
                                               Duration timeout = std::chrono::seconds(10)) const;

  /// Imports all regions of the set that the peer published under `name`, all of one version.
  /// Regions that an earlier version `known` has as well are taken from there: a set that has grown
  /// costs what is new. Errors are lookup()'s; timed_out also if new versions are published faster
  /// than they can be imported (the text says so). unsupported: the peer's release publishes no
  /// sets.
  Result<RegionSet> lookup_set(std::string_view name, Duration timeout = std::chrono::seconds(10),
                               const RegionSet& known = {}) const;
  /// Looks up as above without waiting (linkspan/future.hpp). Lookups at one peer run one after the
  /// other: for many names a set is faster.
  Future<RemoteRegion> lookup_async(std::string_view name,
                                    Duration timeout = std::chrono::seconds(10)) const;
  Future<RegionSet> lookup_set_async(std::string_view name,
                                     Duration timeout = std::chrono::seconds(10),
                                     const RegionSet& known = {}) const;
  /// Waits until the set's version is greater than `above`, and returns it. 0 accepts any version;
  /// the name need not be published yet. The peer sends one message when it publishes, so waiting
  /// costs no traffic. timed_out: no such version. no_resource: 64 calls wait at this peer.
  Result<std::uint64_t> await_version(std::string_view name, std::uint64_t above,
                                      Duration timeout) const;

  /// Starts or queues a copy between a local region and one of the peer's: write() to the peer,
  /// read() from it. The shape is blocks, pages or strides; its lists are read during the call
  /// only, and of strides the blocks are generated one batch at a time. Transfers in flight at the
  /// same time have no order: a byte that one writes and another reads or writes is undefined.
  /// invalid_argument: a block leaves its region (the text names it), or the remote region is
  /// another peer's. permission_denied. unreachable: no path (the text names each).
  /// no_resource: 16,384 transfers are queued for this peer; nothing was started.
  Result<Transfer> write(const Region& local, const RemoteRegion& remote, const Shape& shape,
                         const TransferOptions& options = {}) const;
  Result<Transfer> read(const Region& local, const RemoteRegion& remote, const Shape& shape,
                        const TransferOptions& options = {}) const;

  /// Starts or queues one transfer between several pairs of regions, of any kinds and over any
  /// transports: one handle, deadline and cancel, and the notification follows all of it. The forms
  /// with two sets copy one shape, or shapes[i], between local[i] and remote[i] for each i, such as
  /// the same pages of all layers. Errors as above, with the index of the pair; nothing was started
  /// then. A pair after the first that has no path ends the transfer, also as `unreachable` with
  /// its index. invalid_argument also: no pair, more than 65,536, or lists of different lengths.
  Result<Transfer> write(std::span<const TransferPart> parts,
                         const TransferOptions& options = {}) const;
  Result<Transfer> write(std::span<const Region> local, std::span<const RemoteRegion> remote,
                         const Shape& shape, const TransferOptions& options = {}) const;
  Result<Transfer> write(std::span<const Region> local, std::span<const RemoteRegion> remote,
                         std::span<const Shape> shapes, const TransferOptions& options = {}) const;
  Result<Transfer> read(std::span<const TransferPart> parts,
                        const TransferOptions& options = {}) const;
  Result<Transfer> read(std::span<const Region> local, std::span<const RemoteRegion> remote,
                        const Shape& shape, const TransferOptions& options = {}) const;
  Result<Transfer> read(std::span<const Region> local, std::span<const RemoteRegion> remote,
                        std::span<const Shape> shapes, const TransferOptions& options = {}) const;

  /// Checks and stores what write() or read() would take, so that it can be posted repeatedly. Not
  /// for the data path: for page lists that a kernel reads it allocates pinned memory, which may
  /// wait for the work in flight on that GPU. invalid_argument and unreachable as above; errors
  /// that only the peer or the path reports come from post().
  Result<Prepared> prepare(Op op, const Region& local, const RemoteRegion& remote,
                           const Shape& shape) const;
  /// Does so for several pairs of regions, which each post() copies as one transfer. A page list
  /// is stored once for all pairs of the form with one shape. Errors name the pair by its index, as
  /// those of write(); permission_denied as well.
  Result<Prepared> prepare(Op op, std::span<const TransferPart> parts) const;
  Result<Prepared> prepare(Op op, std::span<const Region> local,
                           std::span<const RemoteRegion> remote, const Shape& shape) const;
  Result<Prepared> prepare(Op op, std::span<const Region> local,
                           std::span<const RemoteRegion> remote,
                           std::span<const Shape> shapes) const;

  /// Sends `bytes` at `data` to the peer's recv() of the same tag. The oldest send matches the
  /// oldest receive; either may come first. ok: the bytes are in the receiver's memory.
  ///
  /// The memory need not be registered; the first call with memory of a GPU may wait as
  /// Engine::register_memory() does. The memory belongs to the transfer until it is quiet. The peer
  /// keeps a whole GPU allocation mapped for later messages, so free it only after the last one.
  /// With `after`, the peer learns of the message when that stream reaches it. `require` is checked
  /// on the side that copies: the receiver if its memory is the CPU's ("kernel", "memfd",
  /// "bounce"), else the sender.
  ///
  /// truncated, on both sides, with nothing written: the receiver has less room. timed_out: the
  /// peer did not post the tag before the deadline. unreachable: neither side can map the other's
  /// memory (the text says why). no_resource: 16,384 transfers are queued here, and nothing was
  /// started; or as many messages wait at the peer. unsupported: managed memory. invalid_argument:
  /// not memory, or a notification was given (the receive itself is one).
  Result<Transfer> send(std::uint64_t tag, const void* data, std::uint64_t bytes,
                        const TransferOptions& options = {}) const;
  /// Receives at most `bytes` bytes into `data`; Transfer::bytes() returns how many arrived. After
  /// an error the bytes at `data` are undefined, except after truncated, and after timed_out or
  /// canceled if no send had matched.
  Result<Transfer> recv(std::uint64_t tag, void* data, std::uint64_t bytes,
                        const TransferOptions& options = {}) const;

  /// Makes a Window: kernels write into the peer's region and raise signals in its pad themselves.
  /// The window is mapped if a local GPU reaches both; else a proxy queue of this Engine executes
  /// the operations over any transport, and is polled every 100 us while the window lives. Not for
  /// the data path: allocates on the GPU. invalid_argument: a pad is too small or unaligned, or
  /// kernels do not reach the local memory. permission_denied. no_resource: 512 windows are open.
  /// Declared in linkspan/window.hpp: WindowOptions, Window.
  Result<Window> window(const WindowOptions& options) const;

  /// Sends a message of at most 64 KiB to the peer's Engine::notifications(). While 65,536 messages
  /// or 16 MiB are unread, a remote peer drops and logs further ones; a peer of this host makes
  /// this call answer no_resource.
  Status notify(std::span<const std::byte> message) const;

  /// Returns the path that `blocks` blocks of together `bytes` bytes would take, and why better
  /// paths are refused. The options low_latency, copy_ctas, after and release are considered.
  Result<Explanation> explain(Op op, const Region& local, const RemoteRegion& remote,
                              std::uint64_t blocks, std::uint64_t bytes,
                              const TransferOptions& options = {}) const;

 private:
  friend struct engine::HandleAccess;
  Peer(std::shared_ptr<engine::EngineImpl> core, std::uint64_t id, std::string name);

  std::shared_ptr<engine::EngineImpl> impl_;  // also the Engine's and other handles'
  std::uint64_t id_ = 0;
  std::string name_;
};

}  // namespace linkspan
