// linkspan/engine.hpp - the root object: memory is registered here, peers are met here.
//
//   auto engine = *Engine::open({.name = "prefill"});
//   auto region = *engine.register_memory(pointer, bytes);
//   auto peer   = *engine.connect("unix:/run/app/decode.sock");
//   auto remote = *peer.lookup("kv");
//   auto moved  = *peer.write(region, remote, blocks);
//   Status end  = moved.wait(1s);
//
// Threads: any thread, but for the destructor and moves. Two threads of its own: the
// ProgressThread, which makes progress while nobody waits, and Control, which answers peers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "linkspan/peer.hpp"
#include "linkspan/region.hpp"
#include "linkspan/status.hpp"
#include "linkspan/transfer.hpp"
#include "linkspan/types.hpp"

namespace linkspan {

enum class LogLevel : std::uint8_t { debug, info, warning, error, off };

/// What is left at its default comes from the environment (docs/options.md), then from the table.
struct EngineOptions {
  std::string name{};        ///< For people; 256 bytes at most. Empty: "pid N".
  std::string socket_dir{};  ///< Where bare names of listen() and connect() lie.
  bool any_uid = false;      ///< Also peers of other users. A mapped allocation is theirs then.
  bool use_gpu = true;       ///< False: no CUDA call is ever made.
  unsigned cpu_threads = 0;  ///< For copies by the CPU. 0: the default.
  /// CTAs of 512 threads that one copy by a kernel takes at most from kernels of the user's, of
  /// which 16 are enough for pages of 4 KiB; its streams have the lowest priority. 0: copy engines
  /// only. None: the default, one for each SM.
  std::optional<unsigned> copy_ctas{};
  /// Large copies from pinned host memory to a GPU also take the PCIe links of so many other
  /// visible GPUs, whose bytes go on over NVLink: twice the rate with one, if that link is idle.
  /// Costs a context and 32 MiB of memory on each. 0: none. None: the default, which is none.
  std::optional<unsigned> relay_gpus{};
  /// Measures the copiers of each GPU at their first use, some milliseconds for each link, and
  /// chooses between them by that; keeps 4 MiB of pinned memory and 9 of the GPU's for it. None:
  /// the default, which is no: it chooses by what two H200 have reached.
  std::optional<bool> calibrate{};
  /// A network plugin of NCCL's by which peers are reached as well: names or paths by comma, x is
  /// also libnccl-net-x.so. It is code of its vendor in this process (docs/tcpx.md). Transfers with
  /// peers of this host take it that say `require = "nccl_net"`. Empty: the default; "none": none.
  std::string nccl_net_plugin{};
  /// A file with 16 to 4096 bytes that nobody else may read: peers over TCP have to know them, and
  /// what is said to them is sealed. Needed on both sides, beyond loopback (docs/security.md).
  /// Empty: the environment's; without one, TCP does not leave the host.
  std::string secret_file{};
  /// Without a secret also TCP addresses beyond loopback, where whoever reaches the port is a peer:
  /// nothing shows who he is (docs/security.md). None: the default, which is no.
  std::optional<bool> insecure{};
  /// Network interfaces by comma, as in "eth1,eth2", which the streams to remote peers take in turn
  /// where both sides name some (docs/tcp.md). Each has to be here, with an address. Empty: the
  /// default; without one, what the kernel routes by.
  std::string tcp_interfaces{};
  /// All that goes by TCP by TLS 1.3 with a key of the secret's, without which open() answers
  /// invalid_argument. On both sides or on none. None: the default, which is no.
  std::optional<bool> tls{};
  Duration transfer_deadline{0};
  /// Called with whole lines, one after another, by a thread of the Engine's that does nothing
  /// else: it may wait and call linkspan. Beyond 1 MiB of lines that wait for it, they are counted
  /// and lost. close() waits half a second for it; so does the Engine's end, after which it is not
  /// called. Empty: stderr, for which nothing waits either. LINKSPAN_LOG_LEVEL chooses, from
  /// WARNING up where it is not set.
  std::function<void(LogLevel, std::string_view)> log{};
};

struct ConnectOptions {
  Duration timeout = std::chrono::seconds(10);
  /// The name that the peer's Engine has to have. With a secret it is in what both sides prove, so
  /// that nobody leads the connection to another host of the job. Empty: any.
  std::string expect{};
};

class LINKSPAN_API Engine {
 public:
  static Result<Engine> open(const EngineOptions& options = {});
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  /// Closes with 5 s. What is not quiet by then stays with the process: its memory must live on.
  ~Engine();

  /// Registers memory of any kind that linkspan detects by the pointer: of a GPU, pinned, pageable.
  /// What peers can map of it, and what to do where they cannot: docs/memory.md.
  /// Off the data path: the first region of a GPU takes up to 0.5 s, and waits for what is in
  /// flight on that GPU, a held stream too. invalid_argument: no memory, or it leaves its
  /// allocation. unsupported: managed memory.
  Result<Region> register_memory(void* pointer, std::uint64_t bytes,
                                 const RegionOptions& options = {});
  /// Zeroed memory that every local peer can map.
  Result<Region> allocate_shared(std::uint64_t bytes, const RegionOptions& options = {});
  /// Lets peers find it. A name, at most 256 bytes, serves one region or set at a time; this takes
  /// none from another region.
  Status publish(std::string_view name, const Region& region);
  /// Lets peers find up to 1024 regions together, at once in the place of what `name` stood for:
  /// they see the old set or this one, never a mix (docs/weights.md). Its version, which only
  /// grows. A region may be in one set more than once, and stay in the next. It ends with the first
  /// of its regions that is deregistered. An error has changed nothing. invalid_argument: none, too
  /// many, one that is not registered, one of another set.
  Result<std::uint64_t> publish(std::string_view name, std::span<const Region> regions);
  /// Ends the registration: its key is dead at once, and ok says that no peer maps it and no
  /// transfer uses it any more. busy: the text names who still does; call again.
  Status deregister(const Region& region, Duration timeout = std::chrono::seconds(10));

  /// The memory is about to be unmapped or freed: as deregister(), but what this side has in flight
  /// on the region is canceled, and peers let go of GPU memory although their users hold its
  /// RemoteRegion. For an allocator that gives the pages away and keeps the address: map again,
  /// then register again. ok: nobody touches it any more. busy: the text names who still does; call
  /// again (docs/memory.md).
  Status invalidate(const Region& region, Duration timeout = std::chrono::seconds(10));

  /// "unix:/path", or a name below socket_dir; empty: a name is made up. "tcp:host:port", as in
  /// "tcp:127.0.0.1:4711" and "tcp:[::1]:0", of which port 0 is any that is free. Again: in the
  /// place of the one before, but a Unix socket and a TCP port may be listened at together. busy:
  /// somebody listens there. permission_denied: beyond loopback without a secret.
  Status listen(std::string_view address = {});
  /// For connect(), of the last listen(), with its real port. Empty: not listening.
  std::string address() const;
  /// Until both sides are ready; where nobody listens yet, until somebody does. A peer over TCP is
  /// a remote one, also on this host: only transports that leave the host reach it. unreachable,
  /// timed_out, permission_denied (another user or secret; beyond loopback without one), not_found
  /// (no host of that name), invalid_argument.
  Result<Peer> connect(std::string_view address, Duration timeout = std::chrono::seconds(10));
  /// The same. permission_denied as well: the peer has another name than `expect`.
  Result<Peer> connect(std::string_view address, const ConnectOptions& options);
  /// The next peer that has connected to us. timed_out: none came.
  Result<Peer> accept(Duration timeout);

  /// One source to several targets: Peer::write() of the same shape to each, whoever's they are,
  /// checked once where they allow it. Each has its own outcome, in its place, and disturbs no
  /// other; each peer gets the notification. The source may be written again when all are quiet.
  std::vector<Result<Transfer>> write_to_all(const Region& local,
                                             std::span<const RemoteRegion> targets,
                                             std::span<const Block> blocks,
                                             const TransferOptions& options = {});
  std::vector<Result<Transfer>> write_to_all(const Region& local,
                                             std::span<const RemoteRegion> targets,
                                             const Pages& pages,
                                             const TransferOptions& options = {});
  std::vector<Result<Transfer>> write_to_all(const Region& local,
                                             std::span<const RemoteRegion> targets,
                                             const Strides& strides,
                                             const TransferOptions& options = {});

  /// Does what is to be done now; how many transfers became quiet by it. Nobody has to call it.
  std::size_t progress();
  /// Those that came since the last call, in order. Where there are none it looks for 50 us and
  /// then sleeps until one comes, the Engine is closed or `timeout` has passed; to look costs no
  /// system call, to be woken one of the peer's.
  std::vector<Notification> notifications(Duration timeout = {});
  /// What is outstanding, for people: peers, transfers with whom they wait for, regions; the first
  /// 64 of each. `linkspan ps PID` asks for the same from outside.
  std::string dump() const;
  /// What was counted since open(), in the text format of Prometheus.
  std::string metrics() const;

  /// Cancels what is in flight, says goodbye to all peers, and waits until those that had imported
  /// memory of this Engine copy there no more: then that is the user's again. pending: something is
  /// not quiet; the text names whom it waits for, and the memory must live on. Call again.
  Status close(Duration timeout);

 private:
  friend class engine::EngineImpl;
  explicit Engine(std::shared_ptr<engine::EngineImpl> core);

  std::shared_ptr<engine::EngineImpl> impl_;  // also of Peers, Transfers and RemoteRegions
};

}  // namespace linkspan
