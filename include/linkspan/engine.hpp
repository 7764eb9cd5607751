// linkspan/engine.hpp - the root object of the library: registers memory and connects to peers.
//
//   auto engine = Engine::open({.name = "prefill"}).value();
//   auto region = engine.register_memory(pointer, bytes).value();
//   auto peer   = engine.connect("unix:/run/app/decode.sock").value();
//   auto remote = peer.lookup("kv").value();
//   auto moved  = peer.write(region, remote, blocks).value();
//   Status end  = moved.wait(1s);
//
// An Engine owns the control connections, the transports and the transfers. The bytes themselves
// move through the handles that it returns: Region, Peer, RemoteRegion, Transfer.
// Threads: any thread, but the destructor and moves are externally synchronised. An Engine starts
// two threads: ProgressThread makes progress while no call waits, Control answers peers.
// Calls named ..._async() start further ones (linkspan/future.hpp).
// Invariants: memory of a registered Region may be touched until deregister(), invalidate() or
// close() answered ok.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "linkspan/descriptor.hpp"
#include "linkspan/future.hpp"
#include "linkspan/peer.hpp"
#include "linkspan/region.hpp"
#include "linkspan/status.hpp"
#include "linkspan/transfer.hpp"
#include "linkspan/types.hpp"

namespace linkspan {

enum class LogLevel : std::uint8_t { debug, info, warning, error, off };

/// Options of Engine::open(). A member that is left at its default takes its value from the
/// environment, else from the table in docs/options.md.
struct EngineOptions {
  std::string name{};        ///< Shown in logs and to peers; at most 256 bytes. Empty: "pid N".
  std::string socket_dir{};  ///< Directory of the bare names that listen() and connect() take.
  bool any_uid = false;      ///< Accepts peers of other users, who can then map whole allocations.
  bool use_gpu = true;       ///< False: the Engine makes no CUDA call.
  unsigned cpu_threads = 0;  ///< Threads that copy by the CPU. 0: the default.
  /// Limits how many CTAs of 512 threads one copy by a kernel uses; 16 are enough for pages of
  /// 4 KiB. The copy streams have the lowest priority. 0: copy engines only. Unset: the default,
  /// one CTA for each SM.
  std::optional<unsigned> copy_ctas{};
  /// Sets the number of other visible GPUs whose PCIe links large copies from pinned host memory to
  /// a GPU use as well; their bytes continue over NVLink. One idle link doubles the rate. Each such
  /// GPU costs a context and 32 MiB of its memory. Unset: the default, 0.
  std::optional<unsigned> relay_gpus{};
  /// Measures the copiers of each GPU at their first use, in some milliseconds for each link, and
  /// chooses between them by these rates. Keeps 4 MiB of pinned memory and 9 MiB of the GPU's.
  /// Unset: the default, false, which chooses by rates measured on two H200.
  std::optional<bool> calibrate{};
  /// Sets how TCP is protected. `authenticated` and `encrypted` need a secret, the others
  /// contradict one: else open() answers invalid_argument. Unset: LINKSPAN_SECURITY; if that is not
  /// set, `authenticated` with a secret, else `loopback_only`.
  std::optional<Security> security{};
  /// Names a file with the secret that both sides share: 16 to 4096 bytes, readable by its owner
  /// alone. Line ends at its end do not count. Empty: `secret`, else the environment's.
  std::string secret_file{};
  /// Gives the shared secret itself: 16 to 4096 bytes, which linkspan never prints.
  /// invalid_argument: `secret_file` is set as well. Empty: `secret_file`, else the environment's.
  std::string secret{};
  /// Sets options of the transports, each by its key: {{"tcp.interfaces", "eth1,eth2"}}. An empty
  /// value is the default. invalid_argument names the key and what is allowed.
  ///
  /// tcp.interfaces: network interfaces, separated by commas. Data connections to remote peers use
  /// them round-robin if both sides name some (docs/tcp.md). Each must exist here and have an
  /// address. By default the kernel's routes decide.
  /// tcp.connections: data connections to a peer at most, 0 to 64. 0: none of its bytes go by TCP.
  /// tcp.peer_timeout: seconds after which a remote peer is lost whose host answers no packet.
  /// tcp.stall_timeout: the same where its host answers, but its process takes no byte.
  /// nccl_net.plugin: NCCL network plugins that connect to peers as well: names or paths, separated
  /// by commas; x also means libnccl-net-x.so. A plugin is its vendor's code in this process
  /// (docs/tcpx.md). Between processes of one host only transfers with `require = "nccl_net"` use
  /// it. "none": no plugin, even if the environment names one.
  /// nccl_net.unpack: how fragments from a GPUDirect-TCPX plugin are unpacked: d2d, host, kernel.
  std::map<std::string, std::string> transport{};
  Duration transfer_deadline{0};  ///< For TransferOptions::deadline. 0: the default, 30 s.
  /// Receives the log, one whole line a call, on a thread of the Engine that does nothing else: the
  /// function may block and may call linkspan. While more than 1 MiB of lines are queued, further
  /// lines are dropped and counted. close() and the destructor wait half a second for the queue;
  /// after the destructor the function is not called. Empty: stderr, written without waiting.
  /// LINKSPAN_LOG_LEVEL sets the lowest level, WARNING by default.
  std::function<void(LogLevel, std::string_view)> log{};
};

struct ConnectOptions {
  Duration timeout = std::chrono::seconds(10);
  /// Requires this name of the peer's Engine. With a secret both sides prove it, so the connection
  /// cannot be redirected to another host of the job. Empty: any name.
  std::string expect{};
  /// Gives the secret of the Engine that listens, for this connection and its data connections in
  /// the place of this Engine's own: 16 to 4096 bytes, which linkspan never prints. TCP may then go
  /// beyond loopback. The connection is `encrypted` on an Engine with that security, and
  /// `authenticated` on one without a secret (`loopback_only`) or with `authenticated`.
  /// invalid_argument: another length, or an Engine with `insecure`. permission_denied: the other
  /// side has another secret or none. A Unix socket ignores it, because the kernel names its peer's
  /// user; of several addresses it counts for those of TCP. Empty: the Engine's own.
  std::string secret{};
};

class LINKSPAN_API Engine {
 public:
  /// Opens an Engine with these options. invalid_argument names the option that is wrong.
  static Result<Engine> open(const EngineOptions& options = {});
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  /// Closes with a timeout of 5 s. Transfers that are not quiet by then may still touch their
  /// memory, which must stay allocated until the process ends.
  ~Engine();

  /// Registers [pointer, pointer + bytes); linkspan detects whether it is a GPU's, pinned or
  /// pageable. docs/memory.md says what peers can map of it. Not for the data path: the first
  /// region of a GPU takes up to 0.5 s and waits for the work in flight on that GPU, including
  /// streams that wait themselves. invalid_argument: not memory, or beyond its allocation.
  /// unsupported: managed memory.
  Result<Region> register_memory(void* pointer, std::uint64_t bytes,
                                 const RegionOptions& options = {});
  /// Allocates zeroed host memory that every peer of this host can map, and registers it.
  Result<Region> allocate_shared(std::uint64_t bytes, const RegionOptions& options = {});
  /// Publishes the region: peers find it by `name`, of at most 256 bytes. A name stands for one
  /// region or set at a time; a name that another region has is refused.
  Status publish(std::string_view name, const Region& region);
  /// Publishes up to 1024 regions as one set and atomically replaces what `name` stood for: peers
  /// see the old set or the new one, never a mix (docs/weights.md). Returns the version, which only
  /// grows. A region may stand in a set more than once and stay in the next version. The set ends
  /// when the first of its regions is deregistered. An error changes nothing. invalid_argument: no
  /// region, too many, one that is not registered, or one of another set.
  Result<std::uint64_t> publish(std::string_view name, std::span<const Region> regions);
  /// Describes what `name` stands for, so that a process that got the Descriptor's bytes by any way
  /// can lookup() it. Changes nothing. not_found: nothing is published as `name`.
  /// invalid_argument: the Engine does not listen.
  Result<Descriptor> describe(std::string_view name) const;
  /// Ends the registration. Its key is invalid at once; ok means that no peer maps the memory and
  /// no transfer uses it. busy: the text names the remaining users; call again.
  Status deregister(const Region& region, Duration timeout = std::chrono::seconds(10));

  /// Ends the registration of memory that is about to be unmapped or freed. Unlike deregister(), it
  /// cancels this side's transfers on the region, and peers unmap GPU memory even while their users
  /// have its RemoteRegion. An allocator that releases pages but keeps the address calls this, maps
  /// again and registers again. ok: nothing touches the memory any more. busy: the text names the
  /// remaining users; call again (docs/memory.md).
  Status invalidate(const Region& region, Duration timeout = std::chrono::seconds(10));
  /// Ends the registration as deregister() and invalidate() do, without waiting
  /// (linkspan/future.hpp). No peer can import the region from the call on. The memory stays the
  /// Engine's until the Future ends ok.
  Future<void> deregister_async(const Region& region, Duration timeout = std::chrono::seconds(10));
  Future<void> invalidate_async(const Region& region, Duration timeout = std::chrono::seconds(10));

  /// Listens at "unix:/path", at a bare name below socket_dir, or at "tcp:host:port"
  /// ("tcp:127.0.0.1:4711"; in "tcp:[::1]:0" port 0 is any free one). An empty address makes up a
  /// bare name. A second call replaces the previous address of the same family; one Unix and one
  /// TCP address may be active at once. busy: the address is in use. permission_denied: beyond
  /// loopback without a secret.
  Status listen(std::string_view address = {});
  /// Returns the address of the last listen() as connect() takes it, with the real port. Empty: the
  /// Engine does not listen.
  std::string address() const;
  /// Returns all addresses of this Engine with commas between them, as connect() takes them in any
  /// process of any host: the Unix socket, then each TCP address of the host if listen() was given
  /// "tcp:0.0.0.0:0" or "tcp:[::]:0". Each ends with '#' and digits that stand for this Engine, so
  /// that connect() never takes another one at the same path or port for it.
  std::string addresses() const;
  /// Connects to the Engine that listens at `address`, and returns once both sides are ready.
  /// Retries until the timeout while no process listens. A peer over TCP counts as remote, also on
  /// this host: only network transports reach it. Of several addresses of one Engine, separated by
  /// commas, takes a Unix socket if that Engine is on this host, else the first TCP address that
  /// answers. Errors: unreachable; timed_out; permission_denied (another user or secret; beyond
  /// loopback without a secret; another Engine than the address says); not_found (no host of that
  /// name); invalid_argument.
  Result<Peer> connect(std::string_view address, Duration timeout = std::chrono::seconds(10));
  /// Connects as above. permission_denied also if the peer's name is not `expect`.
  Result<Peer> connect(std::string_view address, const ConnectOptions& options);
  /// Connects as above without waiting (linkspan/future.hpp).
  Future<Peer> connect_async(std::string_view address, const ConnectOptions& options = {});
  /// Connects to the Engine that made the Descriptor, and imports the region or the set that its
  /// name stands for now. The peer of an earlier lookup() of the same address is used again while
  /// it is up; several threads at once share one connection. Errors are those of connect(),
  /// Peer::lookup() and Peer::lookup_set().
  Result<LookupResult> lookup(const Descriptor& descriptor,
                              Duration timeout = std::chrono::seconds(10));
  /// Returns the next peer that connected to this Engine. timed_out: none did.
  Result<Peer> accept(Duration timeout);
  /// Returns all connected peers, those that connected to this Engine too, in the order of their
  /// ids.
  std::vector<Peer> peers() const;
  /// Returns the connected peer whose Engine has this name, the latest of several. not_found.
  Result<Peer> find_peer(std::string_view name) const;

  /// Writes one source to several targets, of any peers: Peer::write() of the same shape to each.
  /// result[i] belongs to targets[i]; a failure does not affect the others. Each peer gets the
  /// notification. The source may change again once all transfers are quiet.
  std::vector<Result<Transfer>> write_to_all(const Region& local,
                                             std::span<const RemoteRegion> targets,
                                             const Shape& shape,
                                             const TransferOptions& options = {});

  /// Makes progress once without waiting, and returns how many transfers became quiet by it.
  /// Calling it is never required. notifications(), Transfer::done() and each wait do the same.
  std::size_t progress();
  /// Returns the notifications that arrived since the last call, in order. Without any it polls for
  /// 50 us, then sleeps until one arrives, the Engine is closed or `timeout` passes. Polling makes
  /// no system call; a wake-up costs the peer one.
  std::vector<Notification> notifications(Duration timeout = {});
  /// Returns a text that lists the first 64 peers, transfers (with what each waits for) and
  /// regions. `linkspan ps PID` prints the same from another process.
  std::string dump() const;
  /// Returns the counters since open() in the text format of Prometheus.
  std::string metrics() const;

  /// Cancels all transfers and futures, disconnects all peers, and waits until peers that imported
  /// memory of this Engine no longer copy to or from it. ok: all registered memory is the user's
  /// again. pending: something is not quiet; the text names what it waits for, and the memory must
  /// stay allocated. Call again.
  Status close(Duration timeout);

 private:
  friend struct engine::HandleAccess;
  explicit Engine(std::shared_ptr<engine::EngineImpl> core);

  std::shared_ptr<engine::EngineImpl> impl_;  // also of Peers, Transfers and RemoteRegions
};

}  // namespace linkspan
