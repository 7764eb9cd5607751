// linkspan/peer.hpp - a connected remote Engine.
//
// Threads: any thread. A handle may be copied and may outlive the peer and the Engine; calls then
// answer `disconnected` or `canceled`.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "linkspan/prepared.hpp"
#include "linkspan/region.hpp"
#include "linkspan/transfer.hpp"
#include "linkspan/window.hpp"

namespace linkspan {

/// up: works. lost: its connection has ended, or close() was called; its process may live, and
/// nothing new is started. gone: its process has ended or it said goodbye, or it was a remote one
/// and is lost; nothing of it touches memory any more.
enum class PeerState : std::uint8_t { up, lost, gone };

class LINKSPAN_API Peer {
 public:
  Peer() = default;  ///< None.
  bool valid() const noexcept { return impl_ != nullptr; }
  std::uint64_t id() const noexcept { return id_; }  ///< Unique in this Engine, from 1.
  /// As the peer's EngineOptions say; also when it has gone.
  const std::string& name() const noexcept { return name_; }
  PeerState state() const;

  /// Ends what goes on with this peer and nothing else: its transfers end `canceled`, or
  /// `disconnected` where a wire had to be reset for that; the peer hears a goodbye and sees this
  /// side as gone. ok: nothing of the peer's linkspan touches memory of this Engine any more, by
  /// whatever key it was given. The same two Engines may meet again by connect(), as another Peer.
  /// From the call on whatever is begun with this one answers `disconnected`, whatever waits for
  /// its answer hears `canceled`, what it asks for is refused, and its Windows have failed: their
  /// kernels have to end. Memory of GPUs that its regions had mapped here is given back, unless a
  /// Window uses it; other memory stays mapped until the last RemoteRegion goes. Each call waits,
  /// by any thread and as often as it is made. pending: the time has passed, and a peer of this
  /// host that is stopped, or still copies, may touch memory; call again. One over TCP is waited
  /// for a second at most. canceled: the Engine is closed.
  Status close(Duration timeout = std::chrono::seconds(5)) const;

  /// Imports the region that the peer published under `name`: 5-10 ms for memory of another GPU.
  /// not_found: no such name there. invalid_argument: it is a set of several: lookup_set().
  /// corrupt: its key opens nothing here, which also happens when the peer dies meanwhile.
  /// unreachable: it came over TCP, and the region is reached on its host alone.
  /// timed_out, disconnected.
  Result<RemoteRegion> lookup(std::string_view name,
                              Duration timeout = std::chrono::seconds(10)) const;

  /// Imports all regions of the set that the peer published under `name`: of one version, whatever
  /// is published meanwhile. Errors as above; timed_out also where versions followed each other
  /// faster than they could be imported (the text says so). unsupported: of a release that
  /// publishes no sets.
  Result<RegionSet> lookup_set(std::string_view name,
                               Duration timeout = std::chrono::seconds(10)) const;
  /// The version of that set, as soon as there is one above this: one message when it is published,
  /// and nothing until then. 0: any; a name that was not published yet is waited for too.
  /// timed_out: there is none. no_resource: 64 wait at this peer.
  Result<std::uint64_t> await_version(std::string_view name, std::uint64_t above,
                                      Duration timeout) const;

  /// Copies blocks between a region here and one of the peer's; returns when it is under way or
  /// queued. The lists are read during the call only. Transfers that are in flight together have no
  /// order: a byte that one writes and another reads or writes is undefined. invalid_argument: a
  /// block leaves its region (the text names it), the remote region is another peer's.
  /// permission_denied. unreachable: no path (the text names each). no_resource: 16,384 are queued
  /// for this peer; nothing was started.
  Result<Transfer> write(const Region& local, const RemoteRegion& remote,
                         std::span<const Block> blocks, const TransferOptions& options = {}) const;
  Result<Transfer> read(const Region& local, const RemoteRegion& remote,
                        std::span<const Block> blocks, const TransferOptions& options = {}) const;
  /// The same for blocks of one size at page indices.
  Result<Transfer> write(const Region& local, const RemoteRegion& remote, const Pages& pages,
                         const TransferOptions& options = {}) const;
  Result<Transfer> read(const Region& local, const RemoteRegion& remote, const Pages& pages,
                        const TransferOptions& options = {}) const;
  /// The same for a repeated block. However many there are, the list that is written for the copier
  /// is one batch's at a time.
  Result<Transfer> write(const Region& local, const RemoteRegion& remote, const Strides& strides,
                         const TransferOptions& options = {}) const;
  Result<Transfer> read(const Region& local, const RemoteRegion& remote, const Strides& strides,
                        const TransferOptions& options = {}) const;

  /// Checks and keeps what write() or read() would take, to be posted often. Off the data path: for
  /// page lists that a kernel is to read it allocates pinned memory, which may wait for what is in
  /// flight on that GPU. invalid_argument, unreachable as above; what only the peer or the path
  /// refuses, a post tells.
  Result<Prepared> prepare(Op op, const Region& local, const RemoteRegion& remote,
                           std::span<const Block> blocks) const;
  Result<Prepared> prepare(Op op, const Region& local, const RemoteRegion& remote,
                           const Pages& pages) const;
  Result<Prepared> prepare(Op op, const Region& local, const RemoteRegion& remote,
                           const Strides& strides) const;

  /// Two-sided: the peer's recv() of the same tag takes these bytes, the oldest send the oldest
  /// receive; either may come first, and the memory need not be registered (the first of a GPU is
  /// waited for, as in Engine::register_memory()). ok: the bytes are in
  /// the receiver's memory. The memory is the transfer's until it is quiet; of a GPU, the peer
  /// keeps the whole allocation mapped for the next message, so free it when no more are to come.
  /// truncated, on both sides, nothing written: more bytes than the receiver has room for.
  /// timed_out: nobody posted the tag until the deadline. unreachable: neither side can map the
  /// other's memory (the text says why). no_resource: 16,384 are queued here, nothing was started,
  /// or wait there. unsupported: managed memory. invalid_argument: no memory, a notification (the
  /// receive is one). `after`: the peer hears of it once that stream has come by. `require` is held
  /// against the path of the side that copies: the receiver where its memory is the CPU's
  /// ("kernel", "memfd", "bounce"), else the sender.
  Result<Transfer> send(std::uint64_t tag, const void* data, std::uint64_t bytes,
                        const TransferOptions& options = {}) const;
  /// Room for at most `bytes` bytes; Transfer::bytes() tells how many came. After an error the
  /// bytes there are undefined, but for truncated, timed_out and canceled before a sender came.
  Result<Transfer> recv(std::uint64_t tag, void* data, std::uint64_t bytes,
                        const TransferOptions& options = {}) const;

  /// For kernels that write into `remote` and raise signals in the peer's pad themselves: mapped
  /// where a GPU of ours reaches both, else by a queue that this Engine serves over any transport,
  /// for which it looks every 100 us as long as the window lives. `local`: what the proxy sends
  /// from and gets into, and where messages of a mailbox are put down. Off the data path: allocates
  /// on the GPU. invalid_argument: a pad is too small or unaligned, kernels do not reach local
  /// memory. permission_denied. no_resource: 512 windows are open.
  Result<Window> window(const Region& local, const RemoteRegion& remote, const Region& local_pad,
                        const RemoteRegion& remote_pad, const WindowOptions& options = {}) const;

  /// A message to the peer's Engine::notifications(), at most 64 KiB. A remote peer drops, and
  /// logs, what comes while it has not taken 65,536 of them or 16 MiB; any other pushes back:
  /// no_resource.
  Status notify(std::span<const std::byte> message) const;

  /// Which way `blocks` blocks of together `bytes` bytes would take, and why not a better one.
  /// Of the options low_latency, copy_ctas and the streams count.
  Result<Explanation> explain(Op op, const Region& local, const RemoteRegion& remote,
                              std::uint64_t blocks, std::uint64_t bytes,
                              const TransferOptions& options = {}) const;

 private:
  friend class engine::EngineImpl;
  Peer(std::shared_ptr<engine::EngineImpl> core, std::uint64_t id, std::string name);

  std::shared_ptr<engine::EngineImpl> impl_;  // also the Engine's and other handles'
  std::uint64_t id_ = 0;
  std::string name_;
};

}  // namespace linkspan
