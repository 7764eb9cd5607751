#include "engine/windows/window.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "engine/diagnostics/report.hpp"

namespace linkspan::engine {
namespace {

using device::ProxyEntry;
using device::ProxyOp;

constexpr std::size_t kRunning = 256;      // concurrent copies of a window
constexpr std::uint64_t kTicketsAt = 128;  // after the abort flag, in a cache line of its own

template <class T>
T* pointer(std::uint64_t address) {
  return reinterpret_cast<T*>(address);  // NOLINT(performance-no-int-to-ptr)
}

Status too_large(const char* what, std::uint64_t is, std::uint64_t most) {
  return {Code::invalid_argument, Scope::request,
          std::string(what) + " is " + std::to_string(is) + "; at most " + std::to_string(most)};
}

Status check(const device::PadLayout& layout) {
  if (layout.signals > 1u << 20) return too_large("PadLayout::signals", layout.signals, 1u << 20);
  if (layout.mailboxes > 1u << 16)
    return too_large("PadLayout::mailboxes", layout.mailboxes, 1u << 16);
  if (layout.mailbox_bytes > 1u << 20)
    return too_large("PadLayout::mailbox_bytes", layout.mailbox_bytes, 1u << 20);
  if (layout.mailbox_bytes % 16 != 0)
    return {Code::invalid_argument, Scope::request,
            "PadLayout::mailbox_bytes is " + std::to_string(layout.mailbox_bytes) +
                ": it has to be a multiple of 16"};
  return {};
}

Status check_pad(const char* whose, std::uint64_t bytes, std::uint64_t address,
                 const device::PadLayout& layout) {
  if (bytes < layout.bytes())
    return {Code::invalid_argument, Scope::request,
            std::string(whose) + " pad has " + std::to_string(bytes) + " bytes; its layout takes " +
                std::to_string(layout.bytes())};
  if (address % 16 != 0)
    return {Code::invalid_argument, Scope::request,
            std::string(whose) + " pad is not at a multiple of 16 bytes"};
  return {};
}

}  // namespace

std::optional<std::size_t> WindowSet::acquire() {
  for (auto each = retiring.begin(); each != retiring.end();) {
    const bool quiet = each->second == nullptr || each->second->quiet;
    if (quiet) in_use[each->first] = false;
    each = quiet ? retiring.erase(each) : std::next(each);
  }
  const auto free = std::find(in_use.begin(), in_use.end(), false);
  if (free == in_use.end()) return std::nullopt;
  *free = true;
  return static_cast<std::size_t>(free - in_use.begin());
}

Result<std::shared_ptr<WindowState>> WindowState::create(WindowParts parts,
                                                         const WindowOptions& options,
                                                         std::shared_ptr<WindowSet> set) {
  const device::PadLayout& layout = options.layout;
  if (Status status = check(layout); !status.ok()) return status;
  if (options.queue == 0 || options.queue > 1u << 20)
    return too_large("WindowOptions::queue", options.queue, 1u << 20);
  const memory::Region::Facts local = parts.local, pad = parts.local_pad;
  if (Status status = check_pad("the local", pad.bytes, pad.address, layout); !status.ok())
    return status;
  if (Status status = check_pad("the remote", parts.pad.remote->bytes, parts.remote_pad, layout);
      !status.ok())
    return status;
  auto state = std::shared_ptr<WindowState>(new WindowState(std::move(parts), std::move(set)));
  const WindowParts& p = state->parts_;
  const bool proxied = options.force_proxy || p.remote == 0 || p.remote_pad == 0;
  state->path_ = !proxied              ? "mapped"
                 : options.force_proxy ? "proxy: WindowOptions::force_proxy"
                                       : "proxy: " + p.why_not;
  device::Window& window = state->device_;
  if (!proxied) {
    window.remote = pointer<unsigned char>(p.remote);
    window.remote_pad = pointer<unsigned char>(p.remote_pad);
    window.atomics = p.remote_pad_on_gpu || p.device == nullptr ? 1 : 0;
  }
  window.remote_bytes = p.data.remote->bytes;
  window.local = pointer<unsigned char>(local.address);
  window.local_bytes = local.bytes;
  window.local_pad = pointer<unsigned char>(pad.address);
  window.layout = layout;
  window.proxy.patience =
      static_cast<std::uint64_t>(std::max<Duration>(options.patience, {}).count());
  if (Status status = state->make_queue(options.queue, proxied); !status.ok()) return status;
  {
    const base::MutexLock lock(state->set_->mutex);
    state->sums_.resize(layout.signals);
    state->set_->all.insert(state);
  }
  return std::shared_ptr<WindowState>(state.get(),
                                      [state](WindowState*) { release_handle(state); });
}

/// Called when the last handle ends.
void WindowState::release_handle(const std::shared_ptr<WindowState>& state) {
  if (state->set_->fork.forked()) return;
  const base::MutexLock lock(state->set_->mutex);
  state->released_ = true;
  state->retire();
  if (state->drained()) state->set_->all.erase(state);
}

void WindowState::retire() {
  if (begin_until_ != ~std::uint64_t{0}) return;
  begin_until_ = taken_ + device_.proxy.capacity;
  abort_waits();
}

Status WindowState::make_queue(std::uint32_t capacity, bool proxied) {
  const std::size_t queue_bytes = (std::size_t{capacity} + 1) * sizeof(ProxyEntry);
  unsigned char* entries = nullptr;  // as the window's kernels see them
  unsigned char* flags = nullptr;
  if (parts_.device != nullptr) {
    const auto scope = parts_.device->enter();
    if (!scope.ok()) return scope.status();
    auto queue = cuda::PinnedBuffer::create(*scope, queue_bytes);
    if (!queue.ok()) return queue.status();
    auto on_gpu = cuda::DeviceBuffer::create(*scope, 2 * kTicketsAt);
    if (!on_gpu.ok()) return on_gpu.status();
    auto stream = cuda::Stream::create(*scope);
    if (!stream.ok()) return stream.status();
    std::memset(queue->data(), 0, queue_bytes);
    if (Status status = stream->fill(*scope, on_gpu->address(), 0, 2 * kTicketsAt); !status.ok())
      return status;
    if (Status status = stream->synchronize(*scope); !status.ok()) return status;
    entries_ = reinterpret_cast<ProxyEntry*>(queue->data());
    entries = pointer<unsigned char>(queue->device_address());
    flags = pointer<unsigned char>(on_gpu->address());
    on_gpu_ = cuda::DeferredDestroyer::end_by(
        parts_.destroyer, std::unique_ptr<OnGpu>(new OnGpu{*std::move(queue), *std::move(on_gpu),
                                                           *std::move(stream)}));
  } else {
    host_queue_.resize(capacity + 1);
    entries_ = host_queue_.data();
    entries = reinterpret_cast<unsigned char*>(entries_);
    flags = reinterpret_cast<unsigned char*>(host_flags_.data());
    static_assert(sizeof host_flags_ >= kTicketsAt);
  }
  state_ = reinterpret_cast<std::uint64_t*>(entries_ + capacity);
  device_.abort = reinterpret_cast<std::uint32_t*>(flags);
  if (!proxied) return {};
  device_.proxy.entries = reinterpret_cast<ProxyEntry*>(entries);
  device_.proxy.state =
      reinterpret_cast<std::uint64_t*>(entries + std::size_t{capacity} * sizeof(ProxyEntry));
  device_.proxy.tickets = reinterpret_cast<std::uint64_t*>(
      flags + (parts_.device != nullptr ? kTicketsAt : kTicketsAt / 2));
  device_.proxy.capacity = capacity;
  return {};
}

WindowState::~WindowState() {
  if (set_->fork.forked()) return;
  const base::MutexLock lock(set_->mutex);
  set_->release(parts_.signal_source, running_.empty() || !running_.front().is_signal
                                          ? nullptr
                                          : running_.front().transfer);
  end({Code::canceled, Scope::request, "the window has gone"});
}

std::uint64_t* WindowState::remote_signal(std::uint32_t index) const noexcept {
  if (parts_.remote_pad_here == 0 || device_.proxied()) return nullptr;
  return pointer<std::uint64_t>(parts_.remote_pad_here) + index;
}

std::uint64_t* WindowState::local_signal(std::uint32_t index) const noexcept {
  const memory::Region::Facts& pad = parts_.local_pad;
  return pad.kind == MemoryKind::device ? nullptr : pointer<std::uint64_t>(pad.address) + index;
}

std::uint64_t WindowState::enqueue_raise(std::uint32_t index, std::uint64_t n) {
  pending_raises_.push_back({index, n});
  return ++last_raise_;
}

void WindowState::end(const Status& why) {
  if (!failure_.ok()) return;
  failure_ = why;
  publish_progress();  // first: an aborted kernel reads the reason there
  abort_waits();
  set_->changed.notify_all();
}

void WindowState::abort_waits() {
  if (on_gpu_ != nullptr) {
    const auto scope = parts_.device->enter();  // of a lost context no kernel is left
    if (scope.ok()) (void)on_gpu_->stream.write_value(*scope, on_gpu_->flags.address(), 1);
  } else {
    std::atomic_ref(host_flags_[0]).store(1, std::memory_order_release);
  }
}

bool WindowState::next_is_there() const {
  if (!device_.proxied() || taken_ >= begin_until_) return false;
  return device::detail::load_acquire(&entries_[taken_ % device_.proxy.capacity].number) ==
         taken_ + 1;
}

bool WindowState::drained() const {
  return !failure_.ok() || (running_.empty() && pending_raises_.empty() && !next_is_there());
}

std::string WindowState::dump() const {
  std::string text = "window onto " + quoted(parts_.data.remote->name) + " of peer " +
                     std::to_string(parts_.peer) + ", " + path_;
  if (device_.proxied())
    text += ": " + std::to_string(taken_) + " orders of kernels taken, " + std::to_string(done_) +
            " done";
  if (released_) text += ", its handles are gone";
  if (!failure_.ok()) text += "; ended: " + failure_.what();
  return text + "\n";
}

/// Counts transfers that have ended, in order.
bool WindowState::reap() {
  bool any = false;
  while (!running_.empty() && running_.front().transfer->quiet.load(std::memory_order_acquire)) {
    const ProxyTransfer over = std::move(running_.front());
    running_.pop_front();
    any = true;
    const Status& status = over.transfer->end;
    status.ok() ? ended(over.of_kernel) : end(status);
  }
  return any;
}

void WindowState::ended(bool of_kernel) {
  ++(of_kernel ? done_ : raised_);
  if (!of_kernel) set_->changed.notify_all();
}

/// Begins an order. Returns false if there is no room now, or if a signal has to wait for earlier
/// orders.
bool WindowState::begin(WindowCopier& copier, const ProxyEntry& entry, bool of_kernel,
                        std::uint64_t source_address) {
  const auto op = static_cast<ProxyOp>(entry.op);
  const bool is_signal = op == ProxyOp::add || op == ProxyOp::set;
  if (is_signal ? !running_.empty()
                : running_.size() >= kRunning || (!running_.empty() && running_.front().is_signal))
    return false;
  const auto bad = [&] {
    end({Code::invalid_argument, Scope::request,
         "a kernel asked the proxy for what there is not: op " + std::to_string(entry.op) + " at " +
             std::to_string(entry.remote)});
    return false;
  };
  Block block{entry.local, entry.remote, entry.bytes};
  const WindowRegions* regions = &parts_.data;
  if (is_signal) {
    const device::PadLayout& layout = device_.layout;
    if (entry.remote % 8 != 0 || !memory::fits(entry.remote, 8, layout.slots_at())) return bad();
    if (op == ProxyOp::add && entry.remote / 8 >= sums_.size()) return bad();
    if (parts_.remote_pad_here != 0) {  // what was copied before is quiet, so this releases it
      auto* const there = pointer<std::uint64_t>(parts_.remote_pad_here + entry.remote);
      op == ProxyOp::add ? device::detail::add_release(there, entry.value)
                         : device::detail::store_release(there, entry.value);
      ended(of_kernel);
      return true;
    }
    std::uint64_t value = entry.value;
    if (op == ProxyOp::add) value += sums_[entry.remote / 8];
    std::atomic_ref(*(pointer<std::uint64_t>(source_address) + parts_.signal_source)).store(value);
    block = {parts_.signal_source * 8, entry.remote, 8};
    regions = &parts_.pad;
  } else if (op != ProxyOp::put && op != ProxyOp::get) {
    return bad();
  }
  auto transfer =
      copier.copy(parts_.peer, op == ProxyOp::get ? Op::read : Op::write, *regions, block);
  if (!transfer.ok()) {
    if (transfer.status().code() != Code::no_resource) end(transfer.status());
    return false;
  }
  if (op == ProxyOp::add) sums_[entry.remote / 8] += entry.value;
  running_.push_back({*std::move(transfer), is_signal, of_kernel});
  return true;
}

/// Writes the state that kernels read.
void WindowState::publish_progress() {
  if (!device_.proxied()) return;
  device::detail::store_release(state_ + device::kProxyDone, done_);
  device::detail::store_release(state_ + device::kProxyTaken, taken_);
  device::detail::store_release(state_ + device::kProxyFailed, failure_.ok() ? 0 : 1);
}

bool WindowState::serve(WindowCopier& copier, std::uint64_t source_address) {
  bool any = reap();
  while (failure_.ok() && !pending_raises_.empty()) {
    const Raise& raise = pending_raises_.front();
    const ProxyEntry entry{.op = static_cast<std::uint64_t>(ProxyOp::add),
                           .remote = std::uint64_t{raise.index} * 8,
                           .bytes = 8,
                           .value = raise.n};
    if (!begin(copier, entry, false, source_address)) break;
    pending_raises_.pop_front();
    any = true;
  }
  while (failure_.ok() && next_is_there()) {
    if (!begin(copier, entries_[taken_ % device_.proxy.capacity], true, source_address)) break;
    ++taken_;
    any = true;
  }
  if (any) publish_progress();
  if (any && drained()) set_->changed.notify_all();
  return any;
}

}  // namespace linkspan::engine
