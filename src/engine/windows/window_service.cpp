#include "engine/windows/window_service.hpp"

#include <algorithm>

#include "base/interrupt.hpp"
#include "engine/diagnostics/report.hpp"
#include "engine/handle_access.hpp"

namespace linkspan::engine {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kSignalSources = 512;     // windows that write signals
constexpr Duration kOrderPollInterval = 110us;  // without a recent order
constexpr Duration kSpinForSignal = 50us, kSignalPollInterval = 50us;

Status no_signal(std::uint32_t index, const device::PadLayout& layout) {
  return {Code::invalid_argument, Scope::request,
          "there is no signal " + std::to_string(index) + ": the pads have " +
              std::to_string(layout.signals)};
}

}  // namespace

/// Returns the index of a signal source for a window. The first window allocates all of them.
Result<std::size_t> WindowService::acquire_signal_source() {
  const base::MutexLock first(signal_sources_mutex_);
  {
    const base::MutexLock lock(windows_->mutex);
    if (const auto source = windows_->acquire()) return *source;
    if (!windows_->in_use.empty())
      return Status(
          Code::no_resource, Scope::process,
          std::to_string(kSignalSources) + " windows are open, which is all that there may be");
  }
  auto sources = registrations_.allocate_shared(kSignalSources * 8,
                                                {.peers = {.read = false, .write = false}});
  if (!sources.ok()) return sources.status();
  const base::MutexLock lock(windows_->mutex);
  windows_->signal_sources = (*sources)->id();
  windows_->source_address = (*sources)->region().facts().address;
  windows_->in_use.resize(kSignalSources);
  return *windows_->acquire();
}

Result<std::shared_ptr<WindowState>> WindowService::open(std::uint64_t peer,
                                                         const WindowOptions& options) {
  const RemoteRegion &remote = options.remote, &remote_pad = options.remote_pad;
  const auto usable = peers_.usable(peer);
  if (!usable.ok()) return usable.status();
  auto data = submission_.resolve(peer, Op::write, options.local, remote);
  if (!data.ok()) return data.status();
  auto pads = submission_.resolve(peer, Op::write, options.local_pad, remote_pad);
  if (!pads.ok()) return pads.status();
  if (!remote_pad.permissions().write)
    return Status(
        Code::permission_denied, Scope::request,
        "signals are written to \"" + remote_pad.name() + "\", which its owner does not permit");
  WindowState::WindowParts parts;
  parts.peer = peer;
  parts.data = {data->local->id(), data->remote, data->transport};
  parts.pad = {{}, pads->remote, pads->transport};
  parts.local = data->local;
  parts.local_pad = pads->local;
  GpuUuid gpu = options.gpu;
  for (const TransferEndpoints* each : {&*data, &*pads})
    if (gpu == GpuUuid{}) gpu = each->local->region().facts().gpu;
  if (gpu != GpuUuid{}) {
    if (context_.topology == nullptr)
      return Status(Code::unsupported, Scope::request,
                    "a window of a GPU: " + context_.no_gpu.what());
    auto device = context_.topology->activate(gpu);
    if (!device.ok()) return device.status();
    parts.device = *device;
    parts.destroyer = context_.topology->destroyer();
  }
  for (const TransferEndpoints* each : {&*data, &*pads}) {
    const memory::Region::Facts& f = each->local->region().facts();
    const bool reached = parts.device == nullptr || f.kind == MemoryKind::pinned ||
                         (f.kind == MemoryKind::shared && each->local->pinned()) ||
                         (f.kind == MemoryKind::device && f.gpu == gpu);
    if (!reached)
      return Status(Code::invalid_argument, Scope::request,
                    "kernels of the window's GPU do not reach the local " +
                        std::string(each == &*data ? "region" : "pad") + ", " +
                        std::string(name_of(f.kind)) +
                        " memory: take memory of that GPU, pinned or shared memory");
  }
  const auto reach = [&](const TransferEndpoints& to, const GpuUuid& by) {
    return context_.transports[to.transport]->reach(*to.remote->mappings[to.transport], by);
  };
  MappedAddresses& mapped = parts.mapped;
  mapped.data = mapped.keep(reach(*data, gpu));
  auto pad = reach(*pads, gpu);
  parts.atomics = pad.ok() && pad->atomics;
  mapped.pad = mapped.keep(std::move(pad));
  if (!remote.permissions().write) {
    mapped.data = 0;
    mapped.why_not = "\"" + remote.name() + "\" is not permitted to be written";
  }
  mapped.pad_here = mapped.keep(reach(*pads, {}));
  auto source = acquire_signal_source();
  if (!source.ok()) return source.status();
  parts.signal_source = *source;
  {
    const base::MutexLock lock(windows_->mutex);
    parts.pad.local = windows_->signal_sources;
  }
  auto state = WindowState::create(std::move(parts), options, windows_);
  if (!state.ok()) {
    const base::MutexLock lock(windows_->mutex);
    windows_->release(*source, nullptr);
    return state.status();
  }
  if (Status status = (*state)->cannot_raise(); !status.ok() && (*state)->device().proxied())
    return status;
  if ((*usable)->state() != PeerState::up)  // it was lost meanwhile
    end(peer, not_connected(peer));
  for (const TransferEndpoints* each : {&*data, &*pads})  // so may a region
    if (each->local->removed()) end_on(*each->local);
  context_.progress->wake();
  return state;
}

transport::PollHint WindowService::serve() {
  std::vector<std::shared_ptr<WindowState>> over;  // end after the lock
  const base::MutexLock lock(windows_->mutex);
  const auto any = [this](const auto& is) LINKSPAN_REQUIRES(windows_->mutex) {
    return std::any_of(windows_->all.begin(), windows_->all.end(), is);
  };
  const bool leaving = any([](const auto& window) { return window->released(); });
  bool moved = false, polls = false;
  for (auto each = windows_->all.begin(); each != windows_->all.end();) {
    WindowState& window = **each;
    const bool waits = leaving && any([&](const auto& other) { return other->precedes(window); });
    if (!waits) moved |= window.serve(*this, windows_->source_address);
    polls |= window.wants_polling() && window.failure().ok();
    if (window.over())
      over.push_back(std::move(windows_->all.extract(each++).value()));
    else
      ++each;
  }
  using When = transport::PollHint::When;
  if (moved) return {.when = When::now, .moved = true};
  if (!polls) return {};
  return {.when = When::at, .at = base::Clock::steady().now() + kOrderPollInterval};
}

Status WindowService::finish(base::Deadline deadline) {
  context_.progress->wake();
  const base::MutexLock lock(windows_->mutex);
  for (const auto& window : windows_->all) window->retire();
  const auto undrained = [this]() LINKSPAN_REQUIRES(windows_->mutex) {
    return std::find_if(windows_->all.begin(), windows_->all.end(),
                        [](const auto& window) { return !window->drained(); });
  };
  for (auto window = undrained(); window != windows_->all.end(); window = undrained()) {
    if (deadline.passed())
      return {Code::pending, Scope::process,
              "what kernels ordered for peer " + std::to_string((*window)->peer()) +
                  " was not done in time, and is dropped now"};
    if (base::wait_or_interrupted(windows_->changed, windows_->mutex, deadline))
      return base::interrupted();
  }
  return {};
}

void WindowService::end_on(const memory::Registration& region) {
  const base::MutexLock lock(windows_->mutex);
  for (const auto& window : windows_->all) window->end_on(region);
  context_.progress->wake();  // other windows may have waited for one of these
}

void WindowService::end(std::optional<std::uint64_t> peer, const Status& why) {
  const base::MutexLock lock(windows_->mutex);
  for (const auto& window : windows_->all)
    if (!peer || window->peer() == *peer) window->end(why);
}

Status WindowService::raise(WindowState& window, std::uint32_t index, std::uint64_t n,
                            Duration timeout) {
  if (index >= window.device().layout.signals) return no_signal(index, window.device().layout);
  const base::Deadline deadline = base::Deadline::in(timeout);
  std::uint64_t number = 0;
  {
    const base::MutexLock lock(windows_->mutex);
    if (!window.failure().ok()) return window.failure();
    if (std::uint64_t* signal = window.remote_signal(index)) {
      device::detail::add_release(signal, n);
      return {};
    }
    if (Status status = window.cannot_raise(); !status.ok()) return status;
    number = window.enqueue_raise(index, n);
  }
  context_.progress->wake();
  const base::MutexLock lock(windows_->mutex);
  while (!window.raised(number)) {
    if (!window.failure().ok()) return window.failure();
    if (deadline.passed())
      return {Code::timed_out, Scope::request,
              "signal " + std::to_string(index) + " is not written yet: it will be"};
    if (base::wait_or_interrupted(windows_->changed, windows_->mutex, deadline))
      return base::interrupted();
  }
  return {};
}

Result<std::uint64_t> WindowService::wait_signal(WindowState& window, std::uint32_t index,
                                                 std::uint64_t at_least, Duration timeout) {
  if (index >= window.device().layout.signals) return no_signal(index, window.device().layout);
  const auto release = [](const memory::Registration* pad) { pad->release(); };
  std::unique_ptr<const memory::Registration, decltype(release)> pad(nullptr, release);
  {
    const base::MutexLock lock(windows_->mutex);
    // deregister() does not end while this reads the pad.
    if (window.local_pad() == nullptr || !window.local_pad()->acquire())
      return WindowState::deregistered();
    pad.reset(window.local_pad());
  }
  if (pad->region().facts().kind == MemoryKind::device)
    return Status(
        Code::unsupported, Scope::request,
        "the pad is in memory of a GPU, where this CPU cannot look: put it into pinned or "
        "shared memory");
  const auto* const signal = pointer<std::uint64_t>(pad->region().facts().address) + index;
  const base::Deadline deadline = base::Deadline::in(timeout);
  const base::Deadline spin = base::Deadline::in(kSpinForSignal);
  base::InterruptPoll poll;
  for (;;) {
    const std::uint64_t value = device::detail::load_acquire(signal);
    if (value >= at_least) return value;
    if (deadline.passed())
      return Status(Code::timed_out, Scope::request,
                    "signal " + std::to_string(index) + " is " + std::to_string(value) + ", not " +
                        std::to_string(at_least));
    if (!spin.passed()) continue;
    if (poll.due_and_interrupted()) return base::interrupted();
    const base::MutexLock lock(windows_->mutex);
    if (!window.failure().ok()) return window.failure();
    windows_->changed.wait(windows_->mutex, base::Deadline::in(std::min<Duration>(
                                                deadline.left(), kSignalPollInterval)));
  }
}

void WindowService::clear() {
  std::set<std::shared_ptr<WindowState>> windows;  // end without the mutex
  const base::MutexLock lock(windows_->mutex);
  windows.swap(windows_->all);
}

std::string WindowService::dump() {
  Listing listed("windows");
  std::string text;
  const base::MutexLock lock(windows_->mutex);
  for (const auto& window : windows_->all)
    if (listed.room()) text += window->dump();
  return text + listed.more();
}

Status WindowService::cancel(WindowState& window) {
  const base::MutexLock lock(windows_->mutex);
  window.end({Code::canceled, Scope::request, "Window::cancel() was called"});
  return {};
}

Status WindowService::failure(const WindowState& window) {
  const base::MutexLock lock(windows_->mutex);
  return window.failure();
}

}  // namespace linkspan::engine
