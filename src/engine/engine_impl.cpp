#include "engine/engine_impl.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/interrupt.hpp"
#include "base/untrusted_input.hpp"
#include "engine/transfers/completion_queue.hpp"
#include "transport/registry.hpp"

namespace linkspan::engine {
namespace {

using namespace std::chrono_literals;

// How long before the predicted end of a copy for a peer the Control thread begins to poll, and for
// how long it polls.
constexpr Duration kBeforeCompletion = 100us, kControlAwake = 200us;

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

}  // namespace

Result<std::shared_ptr<EngineImpl>> EngineImpl::open(const EngineOptions& options) {
  auto settings = base::Options::from_environment();
  if (!settings.ok()) return settings.status();
  if (!options.socket_dir.empty()) settings->socket_dir = options.socket_dir;
  if (options.cpu_threads != 0) settings->cpu_threads = options.cpu_threads;
  if (options.copy_ctas) settings->copy_ctas = options.copy_ctas;
  if (options.relay_gpus) settings->relay_gpus = *options.relay_gpus;
  if (options.calibrate) settings->calibrate = *options.calibrate;
  if (options.insecure) settings->insecure = *options.insecure;
  if (options.tls) settings->tls = *options.tls;
  if (!options.secret_file.empty()) settings->secret_file = options.secret_file;
  settings->transport = options.transport;
  if (Status s = transport::check_options(*settings); !s.ok()) return s;
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
  static std::atomic<bool> warned{false};  // once, because every Engine reads the same environment
  if (!warning.empty() && !warned.exchange(true)) impl->log_.write(base::Level::warning, warning);
  if (Status status = impl->set_up(options); !status.ok()) return status;
  return impl;
}

Status EngineImpl::set_up_identity(const EngineOptions& options) {
  if (options.name.size() > control::kMaxEngineName)
    return {Code::invalid_argument, Scope::process,
            "EngineOptions::name has " + std::to_string(options.name.size()) + " bytes, \"" +
                base::printable(std::string_view(options.name).substr(0, 32)) + "...\": " +
                std::to_string(control::kMaxEngineName) + " at most, give a shorter one"};
  auto secret = base::read_secret(options_);
  if (!secret.ok()) return secret.status();
  auto interfaces = transport::interfaces(options_);
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
  return {};
}

Status EngineImpl::set_up_gpus(bool use_gpu) {
  if (use_gpu) {
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
  return {};
}

Status EngineImpl::set_up(const EngineOptions& options) {
  if (Status status = set_up_identity(options); !status.ok()) return status;
  if (Status status = set_up_gpus(options.use_gpu); !status.ok()) return status;
  registry_ = std::make_unique<memory::Registry>(identity_.incarnation, topology_.get());
  auto transports = transport::create_all({.topology = topology_.get(),
                                           .registry = registry_.get(),
                                           .incarnation = identity_.incarnation,
                                           .options = &options_,
                                           .log = &log_});
  if (!transports.ok()) return transports.status();
  transports_ = *std::move(transports);
  auto progress = ProgressThread::create();
  if (!progress.ok()) return progress.status();
  progress_thread_ = *std::move(progress);
  set_up_services();
  auto control = control::ControlPlane::open(identity_, *this, log_);
  if (!control.ok()) return control.status();
  control_ = *std::move(control);
  manager_->set_control(*control_);
  return progress_thread_->start([this] { return poll(); });
}

void EngineImpl::set_up_services() {
  buffers_.emplace(*registry_, topology_.get(), transports_);
  streams_.emplace(topology_.get());
  submission_.emplace(
      Submission::SubmissionServices{.engine = this,
                                     .registry = *registry_,
                                     .topology = topology_.get(),
                                     .transports = transports_,
                                     .streams = *streams_,
                                     .peers = peers_,
                                     .progress = *progress_thread_,
                                     .log = log_,
                                     .default_deadline = options_.transfer_deadline});
  registrations_.emplace(*registry_, topology_.get(), transports_, *streams_, peers_);
  directory_.emplace(*registry_, peers_);
  imports_.emplace(transports_, *streams_, peers_, *progress_thread_, options_.connect_deadline);
  messages_.emplace(transports_, *buffers_, *streams_, topology_.get(), peers_, *imports_,
                    *submission_, *progress_thread_, log_);
  windows_.emplace(*registrations_, topology_.get(), no_gpu_, transports_, *submission_, peers_,
                   *progress_thread_);
  manager_.emplace(PeerManager::PeerServices{.options = options_,
                                             .identity = identity_,
                                             .transports = transports_,
                                             .peers = peers_,
                                             .inbox = inbox_,
                                             .progress = *progress_thread_,
                                             .log = log_});
  diagnostics_.emplace(Diagnostics::DiagnosticSources{.identity = identity_,
                                                      .topology = topology_.get(),
                                                      .no_gpu = no_gpu_,
                                                      .transports = transports_,
                                                      .registry = *registry_,
                                                      .peers = peers_,
                                                      .manager = *manager_,
                                                      .inbox = inbox_,
                                                      .windows = *windows_,
                                                      .closed = closed_});
}

EngineImpl::~EngineImpl() {
  // Each uses the next: the control plane the imports, these the ProgressThread.
  if (control_) control_->close(base::Deadline::in(1s));
  if (imports_) imports_->end();
  if (progress_thread_) progress_thread_->end();
  if (windows_) windows_->clear();
  peers_.destroy();
}

transport::PollHint EngineImpl::poll() {
  using When = transport::PollHint::When;
  const base::Time now = base::Clock::steady().now();
  const transport::PollHint peers = peers_.poll(now);
  // Peers usually send the next request as soon as a copy for them completes, so the control
  // thread keeps polling around that time.
  if (peers.for_peer && (peers.when == When::now || peers.at - now < kBeforeCompletion))
    control_->stay_awake(kControlAwake);
  return transport::earlier(peers, windows_->serve());
}

void EngineImpl::on_disconnected(control::Session& session) {
  const std::uint64_t peer = session.id();
  manager_->on_disconnected(session);
  windows_->end(peer, not_connected(peer));
  directory_->forget_peer(peer);
  imports_->end_lookups(peer, {Code::disconnected, Scope::peer, session.failure().what()});
}

Status EngineImpl::notify(std::uint64_t peer, std::span<const std::byte> message) {
  const auto found = peers_.find(peer);
  return found == nullptr ? not_connected(peer) : found->notify(message);
}

PeerState EngineImpl::state(std::uint64_t peer) const {
  const auto found = closed_ ? nullptr : peers_.find(peer);
  return found == nullptr ? PeerState::gone : found->state();
}

Status EngineImpl::wait(const TransferState& transfer, Duration timeout) {
  const auto is_quiet = [&] { return transfer.quiet.load(std::memory_order_acquire); };
  const base::Time now = base::Clock::steady().now();
  if (const auto peer = is_quiet() ? nullptr : peers_.find(transfer.peer))
    peer->wait(transfer,
               now + std::clamp(timeout, Duration::zero(), Duration(base::Time::max() - now)));
  if (is_quiet()) return transfer.end;
  progress_thread_->wake();
  return {Code::timed_out, Scope::request,
          "transfer " + std::to_string(transfer.id) + " goes on: the wait's time-out passed"};
}

Status EngineImpl::cancel(TransferState& transfer) {
  if (const auto peer = peers_.find(transfer.peer)) peer->cancel(transfer);
  progress_thread_->wake();
  if (transfer.quiet.load(std::memory_order_acquire)) return {};
  return {Code::pending, Scope::request,
          "transfer " + std::to_string(transfer.id) + " is not quiet yet"};
}

Status EngineImpl::attach_completion_queue(TransferState& transfer,
                                           std::shared_ptr<CompletionQueueState> queue,
                                           std::uint64_t cookie) {
  if (transfer.added.exchange(true))
    return {Code::invalid_argument, Scope::request,
            "transfer " + std::to_string(transfer.id) + " was added to a completion queue before"};
  queue->reserve();
  if (const auto peer = peers_.find(transfer.peer))
    peer->attach(transfer, std::move(queue), cookie);
  else
    queue->push(cookie);     // its peer is forgotten, so it is quiet
  progress_thread_->wake();  // perhaps the only thread left to poll
  return {};
}

bool EngineImpl::has_ended() {
  return control_ == nullptr || control_->end(base::Deadline::in(1s)).ok();
}

}  // namespace linkspan::engine
