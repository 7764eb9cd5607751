#include "engine/engine_impl.hpp"

#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "base/interrupt.hpp"
#include "base/untrusted_input.hpp"
#include "engine/transfers/completion_queue.hpp"
#include "transport/registry.hpp"

namespace linkspan::engine {
namespace {

using namespace std::chrono_literals;

constexpr Duration kSpin = 200us;    // shorter waits poll without sleeping
constexpr Duration kWakeUp = 100us;  // latency of waking up
constexpr Duration kBeforeCompletion = 100us, kControlAwake = 200us;
constexpr unsigned kPollsPerClockRead =
    4;                               // for each read of the clock and acquisition of the lock
constexpr Duration kMaxWait = 10ms;  // also the cost of a missed wake-up
constexpr Duration kRemoteCloseTimeout = 1s;  // for each step of close()

/// The user's callback, which may wait and may call linkspan.
class Callback final : public base::LogQueue::Outlet {
 public:
  explicit Callback(std::function<void(LogLevel, std::string_view)> log) : log_(std::move(log)) {}
  void deliver(base::Level level, std::string_view line) override {
    log_(static_cast<LogLevel>(level), line);
  }

 private:
  const std::function<void(LogLevel, std::string_view)> log_;
};

base::LogSink sink_to(const std::shared_ptr<base::LogQueue>& queue) {
  if (queue == nullptr) return base::stderr_sink();
  return [queue](base::Level level, std::string_view text) { queue->push(level, text); };
}

Status engine_closed() { return {Code::canceled, Scope::process, "the Engine is closed"}; }

}  // namespace

Result<std::shared_ptr<EngineImpl>> EngineImpl::open(const EngineOptions& options) {
  auto settings = base::Options::from_environment();
  if (!settings.ok()) return settings.status();
  if (!options.socket_dir.empty()) settings->socket_dir = options.socket_dir;
  if (options.cpu_threads != 0) settings->cpu_threads = options.cpu_threads;
  if (options.copy_ctas) settings->copy_ctas = options.copy_ctas;
  if (options.relay_gpus) settings->relay_gpus = *options.relay_gpus;
  if (options.calibrate) settings->calibrate = *options.calibrate;
  if (!options.nccl_net_plugin.empty()) settings->nccl_net_plugin = options.nccl_net_plugin;
  if (options.insecure) settings->insecure = *options.insecure;
  if (options.tls) settings->tls = *options.tls;
  if (!options.secret_file.empty()) settings->secret_file = options.secret_file;
  if (!options.tcp_interfaces.empty()) settings->tcp_interfaces = options.tcp_interfaces;
  if (options.transfer_deadline > Duration::zero())
    settings->transfer_deadline = options.transfer_deadline;
  const base::Level level = settings->log_level;
  const std::string warning = settings->warning;
  // Shared with every handle of the user. In a forked child its end would wait for threads that do
  // not exist.
  const auto lines =
      options.log == nullptr
          ? nullptr
          : std::make_shared<base::LogQueue>(std::make_unique<Callback>(options.log));
  std::shared_ptr<EngineImpl> impl(
      new EngineImpl(*std::move(settings), base::Log(level, sink_to(lines)), lines),
      [](EngineImpl* ending) {
        // If the Control thread does not end the object is leaked: nothing may wait for that
        // thread.
        if (!ending->forked() && ending->has_ended()) delete ending;
      });
  static std::atomic<bool> warned{false};  // of the environment, which every Engine reads
  if (!warning.empty() && !warned.exchange(true)) impl->log_.write(base::Level::warning, warning);
  if (Status status = impl->set_up(options); !status.ok()) return status;
  return impl;
}

Status EngineImpl::set_up(const EngineOptions& options) {
  if (options.name.size() > control::kMaxEngineName)
    return {Code::invalid_argument, Scope::process,
            "EngineOptions::name has " + std::to_string(options.name.size()) + " bytes, \"" +
                base::printable(std::string_view(options.name).substr(0, 32)) + "...\": " +
                std::to_string(control::kMaxEngineName) + " at most, give a shorter one"};
  auto secret = base::read_secret(options_);
  if (!secret.ok()) return secret.status();
  auto interfaces = control::find_interfaces(options_.tcp_interfaces);
  if (!interfaces.ok()) return interfaces.status();
  identity_ = {.engine = options.name.empty() ? "pid " + std::to_string(::getpid()) : options.name,
               .incarnation = base::random_u64(),
               .socket_dir = options_.socket_dir,
               .any_uid = options.any_uid,
               .insecure = options_.insecure,
               .secret = *std::move(secret),
               .interfaces = *std::move(interfaces)};
  if (options_.tls) {
    if (identity_.secret.empty())
      return {Code::invalid_argument, Scope::process,
              "TLS (LINKSPAN_TLS, EngineOptions::tls) takes its key from a secret, and there is "
              "none: give both sides the same file by LINKSPAN_SECRET_FILE or "
              "EngineOptions::secret_file"};
    auto tls = base::TlsContext::create(identity_.secret);
    if (!tls.ok()) return tls.status();
    identity_.tls = *std::move(tls);
  }
  if (options.use_gpu) {
    auto topology = cuda::Topology::create();
    // A driver that fails does not mean a machine without a GPU: the user's memory may be on one,
    // and a CPU would copy it.
    if (!topology.ok() && topology.status().code() != Code::unsupported) return topology.status();
    if (topology.ok())
      topology_ = *std::move(topology);
    else
      no_gpu_ = topology.status();
  } else {
    no_gpu_ = Status(Code::unsupported, Scope::process, "EngineOptions::use_gpu is false");
  }
  if (topology_ == nullptr && log_.enabled(base::Level::info))
    log_.write(base::Level::info, "no GPU: " + no_gpu_.what());
  registry_ = std::make_unique<memory::Registry>(identity_.incarnation, topology_.get());
  auto transports = transport::create_all({.topology = topology_.get(),
                                           .registry = registry_.get(),
                                           .incarnation = identity_.incarnation,
                                           .options = &options_,
                                           .log = &log_});
  if (!transports.ok()) return transports.status();
  transports_ = *std::move(transports);
  streams_ = std::make_unique<StreamOrders>(topology_.get());
  unregistered_ = std::make_unique<UnregisteredBuffers>(*registry_, topology_.get(), transports_);
  auto control = control::ControlPlane::open(identity_, *this, log_);
  if (!control.ok()) return control.status();
  control_ = *std::move(control);
  auto watcher = ProgressThread::start([this] { return poll(); });
  if (!watcher.ok()) return watcher.status();
  progress_thread_ = *std::move(watcher);
  return {};
}

EngineImpl::~EngineImpl() {
  // Each uses the next: Control the opener, the opener the ProgressThread.
  if (control_) control_->close(after(1s));
  opener_.end();
  progress_thread_.reset();
  std::set<std::shared_ptr<WindowState>> windows;
  {
    const base::MutexLock lock(windows_->mutex);
    windows.swap(windows_->all);
  }
  windows.clear();
  std::vector<std::shared_ptr<void>> garbage;
  {
    const base::MutexLock lock(scheduler_.mutex);
    scheduler_.destroy_peers();
    garbage = scheduler_.extract_garbage();
  }
}

transport::PollHint EngineImpl::poll() {
  using When = transport::PollHint::When;
  std::vector<std::shared_ptr<void>> garbage;
  transport::PollHint next;
  {
    const base::MutexLock lock(scheduler_.mutex);
    advance();
    garbage = scheduler_.extract_garbage();
    next = scheduler_.poll_hint();
    // Peers usually send the next request as soon as a copy for them completes, so the control
    // thread keeps polling around that time.
    if (next.for_peer &&
        (next.when == When::now || next.at - base::Clock::steady().now() < kBeforeCompletion))
      control_->stay_awake(kControlAwake);
  }
  serve_windows(next);
  return next;
}

std::size_t EngineImpl::progress() {
  const base::MutexLock lock(scheduler_.mutex);
  return advance();
}

std::size_t EngineImpl::advance(base::Time now) {
  const std::size_t ended = scheduler_.progress(now);
  if (ended != 0) quiet_.notify_all();
  return ended;
}

Result<Explanation> EngineImpl::explain(std::uint64_t peer, Op op, const Region& local,
                                        const RemoteRegion& remote, transport::BatchSummary shape) {
  const auto between = resolve_endpoints(peer, op, local, remote);
  return between.ok() ? explain(*between, shape) : between.status();
}

Result<Explanation> EngineImpl::explain(const TransferEndpoints& between,
                                        transport::BatchSummary shape) {
  const base::MutexLock lock(scheduler_.mutex);
  const PeerRecord* record = scheduler_.find_peer(between.peer);
  if (record == nullptr || record->closing)
    return Status(Code::disconnected, Scope::peer,
                  "peer " + std::to_string(between.peer) + " is gone");
  const auto& endpoint = record->endpoints[between.transport];
  if (endpoint == nullptr)
    return Status(Code::unreachable, Scope::peer, "the peer did not offer the region's transport");
  return endpoint->explain(between.op, between.local->region(),
                           *between.remote->mappings[between.transport], shape);
}

Status EngineImpl::wait(TransferState& transfer, Duration timeout) {
  const base::Clock& clock = base::Clock::steady();
  const auto is_quiet = [&] { return transfer.quiet.load(std::memory_order_acquire); };
  const base::Time begin = clock.now();
  const base::Time limit =
      begin + std::clamp(timeout, Duration::zero(), Duration(base::Time::max() - begin));
  progress_thread_->user_waits(true);
  for (base::Time now = begin; !is_quiet() && now < limit; now = clock.now()) {
    if (!scheduler_.mutex.try_lock()) {
      std::this_thread::yield();
      continue;
    }
    for (unsigned polls = 0; polls < kPollsPerClockRead && !is_quiet(); ++polls) advance(now);
    const Duration sleep = is_quiet() ? Duration::zero() : wait_until_next_poll(begin, now);
    if (sleep > Duration::zero())
      quiet_.wait(scheduler_.mutex, after(std::min<Duration>(sleep, limit - now)));
    scheduler_.mutex.unlock();
    if (is_quiet()) break;
  }
  progress_thread_->user_waits(false);
  if (is_quiet()) return transfer.end;
  progress_thread_->wake();
  return {Code::timed_out, Scope::request,
          "transfer " + std::to_string(transfer.id) + " goes on: the wait's time-out passed"};
}

/// Returns how long a waiter may sleep: zero at first, and zero close to the predicted time.
Duration EngineImpl::wait_until_next_poll(base::Time begin, base::Time now) {
  using When = transport::PollHint::When;
  if (now - begin < kSpin) return Duration::zero();
  const transport::PollHint next = scheduler_.poll_hint();
  if (next.when == When::now) return Duration::zero();
  if (next.when == When::idle) return kMaxWait;  // ended by the thread that reads a message
  const Duration left = next.at - now - kWakeUp;
  return std::clamp<Duration>(left, Duration::zero(), kMaxWait);
}

Status EngineImpl::cancel(TransferState& transfer) {
  {
    const base::MutexLock lock(scheduler_.mutex);
    scheduler_.cancel(transfer);
    advance();
  }
  progress_thread_->wake();
  if (transfer.quiet.load(std::memory_order_acquire)) return {};
  return {Code::pending, Scope::request,
          "transfer " + std::to_string(transfer.id) + " is not quiet yet"};
}

Status EngineImpl::attach_completion_queue(TransferState& transfer,
                                           std::shared_ptr<CompletionQueueState> queue,
                                           std::uint64_t cookie) {
  {
    const base::MutexLock lock(scheduler_.mutex);
    if (transfer.added)
      return {
          Code::invalid_argument, Scope::request,
          "transfer " + std::to_string(transfer.id) + " was added to a completion queue before"};
    queue->reserve();
    transfer.added = true;
    if (transfer.quiet) {
      queue->push(cookie);
      return {};
    }
    transfer.queue = std::move(queue);
    transfer.cookie = cookie;
  }
  progress_thread_->wake();  // perhaps the only thread left to poll
  return {};
}

/// Waits until close() is not blocked by `blocker`. Returns false at the deadline or on an
/// interrupt. Drops remote peers that block it for long: they map nothing of ours, and their
/// connections stop writing by themselves.
bool EngineImpl::await(TransferScheduler::CloseBlocker blocker, base::Deadline deadline,
                       std::optional<std::uint64_t> peer) {
  const base::Deadline patience = after(
      peer ? std::min<Duration>(kRemoteCloseTimeout, deadline.left() / 4) : kRemoteCloseTimeout);
  while (scheduler_.is_close_blocked(blocker, peer) && !deadline.passed() && !(peer && closed_)) {
    advance();
    if (patience.passed())
      for (const auto& session : scheduler_.remote_close_blockers(blocker, peer))
        control_->drop(session, Status(Code::timed_out, Scope::peer, "it holds up close()"));
    if (base::wait_or_interrupted(quiet_, scheduler_.mutex,
                                  after(std::min<Duration>(deadline.left(), kMaxWait))))
      return false;
  }
  return !scheduler_.is_close_blocked(blocker, peer);
}

Status EngineImpl::close(Duration timeout) {
  const base::Deadline deadline = after(timeout);
  Status finished = finish_windows(deadline);
  if (InterruptCheck::has_ended()) return base::interrupted();
  end_windows(std::nullopt, {Code::canceled, Scope::process, "the Engine is closed"});
  if (!finished.ok()) return finished;
  {
    const base::MutexLock lock(scheduler_.mutex);
    scheduler_.close();
  }
  progress_thread_->wake();
  {
    const base::MutexLock lock(scheduler_.mutex);
    const bool ended = await(TransferScheduler::CloseBlocker::transfers, deadline);
    if (InterruptCheck::has_ended()) return base::interrupted();
    if (!ended)
      return {Code::pending, Scope::process, "not quiet: transfers of " + scheduler_.waits_for()};
    // Copies for peers end here too, or are finished by their Endpoints, which begin none any more.
    const bool copied = await(TransferScheduler::CloseBlocker::copies, deadline);
    if (InterruptCheck::has_ended()) return base::interrupted();
    if (!copied) return {Code::pending, Scope::process, "a copy for a peer is not quiet"};
  }
  if (!closed_.exchange(true)) {
    const base::MutexLock lock(events_mutex_);
    event_.notify_all();
  }
  control_->send_goodbye();
  {
    const base::MutexLock lock(scheduler_.mutex);
    // Over a network a peer may have begun something more before it received the goodbye.
    const bool free = await(TransferScheduler::CloseBlocker::memory, deadline);
    if (InterruptCheck::has_ended()) return base::interrupted();
    if (!free) {
      const std::string peers = scheduler_.peers_with_keys();
      return {Code::pending, Scope::process,
              peers.empty() ? "a copy for a peer is not quiet"
                            : "memory of this Engine may be copied by " + peers};
    }
    (void)await(TransferScheduler::CloseBlocker::messages,
                deadline);  // what is left of them is dropped
  }
  Status ended = control_->end(deadline);
  if (log_queue_ != nullptr) (void)log_queue_->flush(after(base::LogQueue::kPatience));
  return ended;
}

Status EngineImpl::close(std::uint64_t peer, Duration timeout) {
  const base::Deadline deadline = after(timeout);
  const auto pending = [peer](const char* what) {
    return InterruptCheck::has_ended()
               ? base::interrupted()
               : Status(Code::pending, Scope::peer, "peer " + std::to_string(peer) + " " + what);
  };
  {
    const base::MutexLock lock(scheduler_.mutex);
    if (!scheduler_.close(peer)) return {};
  }
  const Status why(Code::canceled, Scope::peer,
                   "this side has closed peer " + std::to_string(peer));
  end_windows(peer, why);
  end_lookups(peer, why);
  forget_set_waits(peer);
  progress_thread_->wake();
  {
    const base::MutexLock lock(scheduler_.mutex);
    if (!await(TransferScheduler::CloseBlocker::transfers, deadline, peer))
      return closed_ ? engine_closed() : pending("may still touch memory of transfers with it");
    if (!await(TransferScheduler::CloseBlocker::copies, deadline, peer))
      return closed_ ? engine_closed() : pending("has asked for a copy that is not quiet");
  }
  unmap_regions_of(peer);
  control_->send_goodbye(peer);
  const base::MutexLock lock(scheduler_.mutex);
  if (await(TransferScheduler::CloseBlocker::memory, deadline, peer)) return {};
  return closed_ ? engine_closed()
                 : pending(
                       "has not answered the goodbye, and may still copy on memory that it had "
                       "imported");
}

void EngineImpl::unmap_regions_of(std::uint64_t peer) {
  std::vector<std::shared_ptr<ImportedRegion>> regions;  // perhaps the last handles
  {
    const base::MutexLock lock(scheduler_.mutex);
    regions = scheduler_.imported_from(peer);
  }
  for (const auto& region : regions)
    for (std::size_t i = 0; i < region->mappings.size(); ++i)
      if (region->mappings[i] != nullptr) transports_[i]->unmap(*region->mappings[i]);
}

bool EngineImpl::has_ended() { return control_ == nullptr || control_->end(after(1s)).ok(); }

}  // namespace linkspan::engine
