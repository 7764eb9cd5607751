#include "engine/core.hpp"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "transport/batch.hpp"
#include "transport/registry.hpp"

namespace linkspan::engine {
namespace {

using namespace std::chrono_literals;

constexpr Duration kSpin = 200us;    // what is shorter than this is not worth a sleep
constexpr Duration kWakeUp = 100us;  // it takes to be awake again
constexpr Duration kNap = 10ms;      // in close(): a missed ring costs so much

base::LogSink sink_of(const EngineOptions& options) {
  if (!options.log) return base::stderr_sink();
  return [log = options.log](base::Level level, std::string_view text) {
    log(static_cast<LogLevel>(level), text);
  };
}

}  // namespace

Result<std::shared_ptr<Core>> Core::open(const EngineOptions& options) {
  auto settings = base::Options::from_environment();
  if (!settings.ok()) return settings.status();
  if (!options.socket_dir.empty()) settings->socket_dir = options.socket_dir;
  if (options.cpu_threads != 0) settings->cpu_threads = options.cpu_threads;
  if (options.copy_ctas) settings->copy_ctas = options.copy_ctas;
  if (options.transfer_deadline > Duration::zero())
    settings->transfer_deadline = options.transfer_deadline;
  const base::Level level = settings->log_level;
  const std::string warning = settings->warning;
  // Shared with every handle that the user holds. In a forked child its end would wait for threads
  // that are not there.
  std::shared_ptr<Core> core(new Core(*std::move(settings), base::Log(level, sink_of(options))),
                             [](Core* ending) {
                               if (!ending->forked()) delete ending;
                             });
  static std::atomic<bool> warned{false};  // of the environment, which every Engine reads
  if (!warning.empty() && !warned.exchange(true)) core->log_.write(base::Level::warning, warning);
  if (Status status = core->set_up(options); !status.ok()) return status;
  return core;
}

Status Core::set_up(const EngineOptions& options) {
  identity_ = {.engine = options.name.empty() ? "pid " + std::to_string(::getpid()) : options.name,
               .incarnation = base::random_u64(),
               .any_uid = options.any_uid};
  if (options.use_gpu) {
    auto topology = cuda::Topology::create();
    // A driver that is there and fails is no machine without a GPU: the user's memory may be on
    // one, and a CPU would copy it.
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
                                           .options = &options_});
  if (!transports.ok()) return transports.status();
  transports_ = *std::move(transports);
  streams_ = std::make_unique<StreamOrders>(topology_.get());
  loose_ = std::make_unique<LooseMemory>(*registry_, topology_.get(), transports_);
  auto control = control::Control::open(identity_, *this, log_);
  if (!control.ok()) return control.status();
  control_ = *std::move(control);
  {
    const base::MutexLock lock(worker_.mutex);
    control_raw_ = control_.get();
  }
  auto watcher = Watcher::start([this] { return look(); });
  if (!watcher.ok()) return watcher.status();
  watcher_ = *std::move(watcher);
  return {};
}

Core::~Core() {
  // Each uses what ends after it: Control the opener, and that one the Watcher.
  if (control_) control_->close(after(1s));
  opener_.end();
  watcher_.reset();
  std::vector<std::shared_ptr<void>> garbage;
  {
    const base::MutexLock lock(worker_.mutex);
    worker_.destroy_peers();
    garbage = worker_.take_garbage();
  }
}

transport::NextLook Core::look() {
  std::vector<std::shared_ptr<void>> garbage;
  transport::NextLook next;
  {
    const base::MutexLock lock(worker_.mutex);
    if (worker_.progress() != 0) quiet_.notify_all();
    garbage = worker_.take_garbage();
    next = worker_.next_look();
  }
  return next;
}

std::size_t Core::progress() {
  const base::MutexLock lock(worker_.mutex);
  const std::size_t ended = worker_.progress();
  if (ended != 0) quiet_.notify_all();
  return ended;
}

Result<Sides> Core::sides(std::uint64_t peer, Op op, const Region& local,
                          const RemoteRegion& remote) const {
  const auto refuse = [](Code code, std::string what) {
    return Status(code, Scope::request, std::move(what));
  };
  if (!remote.valid()) return refuse(Code::invalid_argument, "no remote region was given");
  const ImportedRegion& imported = *remote.imported_;
  if (imported.peer != peer || remote.core_.get() != this)
    return refuse(Code::invalid_argument, "the remote region \"" + imported.name +
                                              "\" is of peer " + std::to_string(imported.peer) +
                                              ", not of peer " + std::to_string(peer));
  std::size_t transport = 0;
  while (transport < imported.mappings.size() && imported.mappings[transport] == nullptr)
    ++transport;
  if (transport == imported.mappings.size())
    return refuse(Code::unreachable, "no transport reaches \"" + imported.name + "\"");
  if (!local.valid()) return refuse(Code::invalid_argument, "no local region was given");
  Sides sides{.peer = peer,
              .op = op,
              .transport = transport,
              .local = local.registration_,
              .remote = remote.imported_};
  if (Status status = is_registered(*sides.local); !status.ok()) return status;
  return sides;
}

Status Core::is_registered(const memory::Registration& local) const {
  if (registry_->find(local.id()) != nullptr) return {};
  return {Code::invalid_argument, Scope::request,
          "the local region is not registered in this Engine"};
}

/// Checked against both regions, whatever its size.
Result<Core::Planned> Core::plan(const Sides& sides, const UserShape& shape) const {
  constexpr transport::Capabilities kAnySize{.max_batch_bytes = ~std::uint64_t{0},
                                             .max_batch_blocks = ~std::uint64_t{0},
                                             .max_batch_pages = ~std::uint64_t{0}};
  const std::uint64_t here = sides.local->region().bytes();
  const std::uint64_t there =
      std::min(sides.remote->bytes, sides.remote->mappings[sides.transport]->bytes());
  const transport::Capabilities& limits = transports_[sides.transport]->capabilities();
  Planned planned;
  if (const auto* pages = std::get_if<Pages>(&shape)) {
    if (Status status = transport::check_pages(*pages, here, there, kAnySize); !status.ok())
      return status;
    planned = {make_plan(*pages, limits), transport::shape_of(*pages)};
    return planned;
  }
  if (const auto* strides = std::get_if<Strides>(&shape)) {
    if (Status status = transport::check_strides(*strides, here, there, kAnySize); !status.ok())
      return status;
    planned = {make_plan(*strides, limits), transport::shape_of(transport::merged(*strides))};
  } else {
    const auto blocks =
        transport::checked_blocks(std::get<std::span<const Block>>(shape), here, there, kAnySize);
    if (!blocks.ok()) return blocks.status();
    planned = {make_plan(*blocks, limits), transport::shape_of(*blocks)};
  }
  planned.plan.checked = true;
  return planned;
}

Result<Transfer> Core::submit(std::uint64_t peer, Op op, const Region& local,
                              const RemoteRegion& remote, const UserShape& shape,
                              const TransferOptions& options) {
  auto between = sides(peer, op, local, remote);
  if (!between.ok()) return between.status();
  auto planned = plan(*between, shape);
  if (!planned.ok()) return planned.status();
  auto transfer = std::make_shared<TransferState>();
  static_cast<Sides&>(*transfer) = *std::move(between);
  transfer->own = std::move(planned->plan);
  return begin(std::move(transfer), planned->size, options);
}

Result<Transfer> Core::begin(std::shared_ptr<TransferState> transfer, transport::Shape size,
                             const TransferOptions& options) {
  const auto refuse = [](Code code, std::string what) {
    return Status(code, Scope::request, std::move(what));
  };
  if (options.notification.size() > kMaxNotification)
    return refuse(Code::invalid_argument,
                  "a notification of " + std::to_string(options.notification.size()) +
                      " bytes; at most " + std::to_string(kMaxNotification));
  if (!options.require.empty()) {
    auto way = explain(*transfer, size);
    if (!way.ok()) return way.status();
    if (!meets(way->path, options.require))
      return refuse(Code::unsupported, "path \"" + options.require +
                                           "\" was required, this transfer takes \"" + way->path +
                                           "\": " + way->reason);
  }
  auto place =
      streams_->place(options.after, options.release, transfer->local->region().facts().gpu);
  if (!place.ok()) return place.status();
  transfer->bytes = size.bytes;
  transfer->batches = transfer->plan().batches;
  transfer->stream = place->after;
  transfer->mark = std::move(place->mark);
  transfer->stay = std::move(place->stay);
  transfer->wants_release = place->release.device != nullptr;
  transfer->notification.assign(options.notification.begin(), options.notification.end());
  transfer->submitted = base::Clock::steady().now();
  const Duration deadline =
      options.deadline > Duration::zero() ? options.deadline : options_.transfer_deadline;
  transfer->deadline =
      transfer->submitted + std::min(deadline, Duration(base::Time::max() - transfer->submitted));
  if (!transfer->local->acquire())
    return refuse(Code::invalid_argument, "the local region was deregistered");
  Status status;
  {
    const base::MutexLock lock(worker_.mutex);
    status = worker_.submit(transfer);
  }
  if (!status.ok()) {
    transfer->local->release();
    return status;
  }
  watcher_->expect();
  if (place->release.device != nullptr) hold_stream(*transfer, *place);
  return Transfer(shared_from_this(), std::move(transfer));
}

/// The user's stream waits: for an event in ours, or for a Gate that the end of the transfer opens.
/// Both fail only with the user's context, which has nothing left to run.
void Core::hold_stream(TransferState& transfer, StreamPlace& place) {
  std::optional<cuda::PooledEvent> behind;
  {
    const base::MutexLock lock(worker_.mutex);
    transfer.wants_release = false;  // from now on an event would come too late
    behind = std::move(transfer.behind);
    if (!behind && transfer.quiet) return;
    // Before it is armed: an end that comes meanwhile opens it. A closing that begins then waits
    // for the Gate's stream, and arm() for the closing.
    if (!behind) transfer.gate = place.gate;
  }
  Status status;
  if (behind) {
    const auto scope = place.release.device->enter();
    status = scope.ok() ? cuda::make_wait(*scope, place.release.handle, **behind) : scope.status();
  } else {
    status = place.gate->arm(place.release);
  }
  if (!status.ok() && log_.enabled(base::Level::error))
    log_.write(base::Level::error, "transfer " + std::to_string(transfer.id) +
                                       " does not hold its stream: " + status.to_string());
}

Result<Explanation> Core::explain(std::uint64_t peer, Op op, const Region& local,
                                  const RemoteRegion& remote, transport::Shape shape) {
  const auto between = sides(peer, op, local, remote);
  return between.ok() ? explain(*between, shape) : between.status();
}

Result<Explanation> Core::explain(const Sides& sides, transport::Shape shape) {
  const base::MutexLock lock(worker_.mutex);
  const PeerRecord* record = worker_.find_peer(sides.peer);
  if (record == nullptr)
    return Status(Code::disconnected, Scope::peer,
                  "peer " + std::to_string(sides.peer) + " is gone");
  const auto& endpoint = record->endpoints[sides.transport];
  if (endpoint == nullptr)
    return Status(Code::unreachable, Scope::peer, "the peer did not offer the region's transport");
  return endpoint->explain(sides.op, sides.local->region(),
                           *sides.remote->mappings[sides.transport], shape);
}

Status Core::wait(TransferState& transfer, Duration timeout) {
  const auto is_quiet = [&] { return transfer.quiet.load(std::memory_order_acquire); };
  const base::Deadline deadline = after(timeout);
  const base::Time begin = base::Clock::steady().now();
  watcher_->user_waits(true);
  while (!is_quiet() && !deadline.passed()) {
    if (!worker_.mutex.try_lock()) {
      std::this_thread::yield();
      continue;
    }
    if (worker_.progress() != 0) quiet_.notify_all();
    const Duration nap = is_quiet() ? Duration::zero() : nap_until_next_look(begin);
    if (nap > Duration::zero())
      quiet_.wait(worker_.mutex, after(std::min<Duration>(nap, deadline.left())));
    worker_.mutex.unlock();
  }
  watcher_->user_waits(false);
  if (is_quiet()) return transfer.end;
  watcher_->wake();
  return {Code::timed_out, Scope::request,
          "transfer " + std::to_string(transfer.id) + " goes on: the wait's time-out passed"};
}

/// How long a waiter may sleep: not at all at first, nor close to what is predicted.
Duration Core::nap_until_next_look(base::Time begin) {
  using When = transport::NextLook::When;
  const base::Time now = base::Clock::steady().now();
  if (now - begin < kSpin) return Duration::zero();
  const transport::NextLook next = worker_.next_look();
  if (next.when == When::now) return Duration::zero();
  if (next.when == When::idle) return kNap;  // a message ends it, and whoever reads it rings
  const Duration left = next.at - now - kWakeUp;
  return std::clamp<Duration>(left, Duration::zero(), kNap);
}

Status Core::cancel(TransferState& transfer) {
  {
    const base::MutexLock lock(worker_.mutex);
    worker_.cancel(transfer);
    if (worker_.progress() != 0) quiet_.notify_all();
  }
  watcher_->wake();
  if (transfer.quiet.load(std::memory_order_acquire)) return {};
  return {Code::pending, Scope::request,
          "transfer " + std::to_string(transfer.id) + " is not quiet yet"};
}

Status Core::close(Duration timeout) {
  const base::Deadline deadline = after(timeout);
  {
    const base::MutexLock lock(worker_.mutex);
    worker_.close();
  }
  watcher_->wake();
  {
    const base::MutexLock lock(worker_.mutex);
    while (!worker_.idle() && !deadline.passed()) {
      if (worker_.progress() != 0) quiet_.notify_all();
      quiet_.wait(worker_.mutex, after(std::min<Duration>(deadline.left(), kNap)));
    }
    if (!worker_.idle())
      return {Code::pending, Scope::process, "not quiet: transfers of " + worker_.waits_for()};
    // Copies for peers end here too, or are finished by their Endpoints.
    while (!worker_.serves_nobody() && !deadline.passed()) {
      worker_.progress();
      quiet_.wait(worker_.mutex, after(std::min<Duration>(deadline.left(), kNap)));
    }
    if (!worker_.serves_nobody())
      return {Code::pending, Scope::process, "a copy for a peer is not quiet"};
  }
  if (closed_.exchange(true)) return {};
  control_->close(deadline);
  const base::MutexLock lock(events_mutex_);
  event_.notify_all();
  return {};
}

}  // namespace linkspan::engine
