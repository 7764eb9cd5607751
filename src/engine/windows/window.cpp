#include "engine/windows/window.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/no_memory.hpp"
#include "engine/diagnostics/report.hpp"

namespace linkspan::engine {
namespace {

using device::ProxyEntry;
using device::ProxyOp;

constexpr std::size_t kRunning = 256;  // concurrent copies of a window

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
  const memory::Region::Facts &local = parts.local->region().facts(),
                              &pad = parts.local_pad->region().facts();
  if (Status status = check_pad("the local", pad.bytes, pad.address, layout); !status.ok())
    return status;
  if (Status status = check_pad("the remote", parts.pad.remote->bytes, parts.mapped.pad, layout);
      !status.ok())
    return status;
  const MappedAddresses& mapped = parts.mapped;
  const bool proxied = options.force_proxy || mapped.data == 0 || mapped.pad == 0;
  device::Window window;
  if (!proxied) {
    window.remote = pointer<unsigned char>(mapped.data);
    window.remote_pad = pointer<unsigned char>(mapped.pad);
    window.atomics = parts.atomics ? 1 : 0;
  }
  window.remote_bytes = parts.data.remote->bytes;
  window.local = pointer<unsigned char>(local.address);
  window.local_bytes = local.bytes;
  window.local_pad = pointer<unsigned char>(pad.address);
  window.layout = layout;
  window.proxy.patience =
      static_cast<std::uint64_t>(std::max<Duration>(options.patience, {}).count());
  std::unique_ptr<WindowState> made;
  // From then on the WindowState owns the signal source; before, the caller does.
  const Status status = base::or_no_memory([&]() -> Status {
    std::string path = !proxied              ? "mapped"
                       : options.force_proxy ? "proxy: WindowOptions::force_proxy"
                                             : "proxy: " + mapped.why_not;
    auto orders =
        ProxyOrders::create(parts.device, parts.destroyer, proxied ? options.queue : 0, window);
    if (!orders.ok()) return orders.status();
    made.reset(new WindowState(std::move(parts), std::move(set), window, std::move(path),
                               *std::move(orders)));
    return {};
  });
  if (!status.ok()) return status;
  const std::shared_ptr<WindowState> state = std::move(made);
  {
    const base::MutexLock lock(state->set_->mutex);
    state->sums_.resize(layout.signals);
    state->parts_.number = ++state->set_->made;
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
  state->orders_.retire();
  if (state->over()) state->set_->all.erase(state);
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
  if (parts_.mapped.pad_here == 0 || device_.proxied()) return nullptr;
  return pointer<std::uint64_t>(parts_.mapped.pad_here) + index;
}

Status WindowState::cannot_raise() const {
  if (parts_.mapped.pad_here != 0 || parts_.pad.remote->peers.read) return {};
  return {Code::permission_denied, Scope::request,
          "a signal that is not mapped here is read before it is raised: let peers read " +
              quoted(parts_.pad.remote->name)};
}

std::uint64_t WindowState::enqueue_raise(std::uint32_t index, std::uint64_t n) {
  pending_raises_.push_back({index, n});
  return ++last_raise_;
}

void WindowState::end(const Status& why) {
  if (!failure_.ok()) return;
  failure_ = why;
  orders_.publish(true);  // first: an aborted kernel reads the reason there
  orders_.abort_waits();
  set_->changed.notify_all();
}

Status WindowState::deregistered() {
  return {Code::invalid_argument, Scope::request,
          "the window's local region or pad was deregistered"};
}

void WindowState::end_on(const memory::Registration& region) {
  for (auto* const each : {&parts_.local, &parts_.local_pad}) {
    if (each->get() != &region) continue;
    end(deregistered());
    each->reset();
  }
}

bool WindowState::drained() const {
  return !failure_.ok() ||
         (running_.empty() && pending_raises_.empty() && orders_.front() == nullptr);
}

std::string WindowState::dump() const {
  std::string text = "window onto " + quoted(parts_.data.remote->name) + " of peer " +
                     std::to_string(parts_.peer) + ", " + path_;
  if (device_.proxied())
    text += ": " + std::to_string(orders_.taken()) + " orders of kernels taken, " +
            std::to_string(orders_.done()) + " done";
  if (released_) text += ", its handles are gone";
  if (!failure_.ok()) text += "; ended: " + failure_.what();
  return text + "\n";
}

/// Counts transfers that have ended, in order.
bool WindowState::reap(std::uint64_t source_address) {
  bool any = false;
  while (!running_.empty() && running_.front().transfer->quiet.load(std::memory_order_acquire)) {
    const ProxyTransfer over = std::move(running_.front());
    running_.pop_front();
    any = true;
    const Status& status = over.transfer->end;
    if (!status.ok())
      end(status);
    else if (over.fetched)
      sums_[*over.fetched] =
          std::atomic_ref(pointer<std::uint64_t>(source_address)[parts_.signal_source]).load();
    else
      ended(over.of_kernel);
  }
  return any;
}

void WindowState::ended(bool of_kernel) {
  if (of_kernel) return orders_.count_done();
  ++raised_;
  set_->changed.notify_all();
}

/// Starts a transfer. Returns false if there is no room now, or if the window has failed.
bool WindowState::start(WindowCopier& copier, Op op, const WindowRegions& regions,
                        const Block& block, ProxyTransfer as) {
  std::list<ProxyTransfer> added;
  added.push_back(std::move(as));  // first: where it finds no memory, nothing was started
  auto transfer = copier.copy(parts_.peer, op, regions, block);
  if (!transfer.ok()) {
    if (transfer.status().code() != Code::no_resource) end(transfer.status());
    return false;
  }
  added.front().transfer = *std::move(transfer);
  running_.splice(running_.end(), added);
  return true;
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
  if (is_signal) {
    const device::PadLayout& layout = device_.layout;
    if (entry.remote % 8 != 0 || !memory::fits(entry.remote, 8, layout.slots_at())) return bad();
    if (op == ProxyOp::add && entry.remote / 8 >= sums_.size()) return bad();
    if (parts_.mapped.pad_here != 0) {  // what was copied before is quiet, so this releases it
      auto* const there = pointer<std::uint64_t>(parts_.mapped.pad_here + entry.remote);
      op == ProxyOp::add ? device::detail::add_release(there, entry.value)
                         : device::detail::store_release(there, entry.value);
      ended(of_kernel);
      return true;
    }
    const std::size_t index = entry.remote / 8;
    const Block block{parts_.signal_source * 8, entry.remote, 8};
    std::uint64_t value = entry.value;
    if (op == ProxyOp::add) {
      if (!sums_[index] && parts_.pad.remote->peers.read) {
        (void)start(copier, Op::read, parts_.pad, block, {.is_signal = true, .fetched = index});
        return false;
      }
      value += sums_[index].value_or(0);
    }
    std::atomic_ref(pointer<std::uint64_t>(source_address)[parts_.signal_source]).store(value);
    if (!start(copier, Op::write, parts_.pad, block, {.is_signal = true, .of_kernel = of_kernel}))
      return false;
    if (op == ProxyOp::add) sums_[index] = value;
    return true;
  }
  if (op != ProxyOp::put && op != ProxyOp::get) return bad();
  return start(copier, op == ProxyOp::get ? Op::read : Op::write, parts_.data,
               {entry.local, entry.remote, entry.bytes}, {.of_kernel = of_kernel});
}

bool WindowState::serve(WindowCopier& copier, std::uint64_t source_address) {
  bool any = reap(source_address);
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
  while (failure_.ok()) {
    const ProxyEntry* const order = orders_.front();
    if (order == nullptr || !begin(copier, *order, true, source_address)) break;
    orders_.pop();
    any = true;
  }
  if (any) orders_.publish(!failure_.ok());
  if (any && drained()) set_->changed.notify_all();
  return any;
}

}  // namespace linkspan::engine
