#include "copy/gpu_copier.hpp"

#include <algorithm>
#include <string>

#include "copy/chooser.hpp"

namespace linkspan::copy {
namespace {

constexpr int kHighestPriority = -8;  // a stream's priority; the driver clamps it

}  // namespace

Result<std::unique_ptr<GpuCopier>> GpuCopier::create(const cuda::Device& device,
                                                     const Bounds& bounds,
                                                     const base::Clock& clock) {
  if (bounds.queues == 0)
    return Status(Code::invalid_argument, Scope::request, "a copier needs a queue");
  const unsigned queues = bounds.queues + kStreamOrderedQueues;
  const auto sms = static_cast<unsigned>(std::max(device.info().sm_count, 1));
  const unsigned ctas = std::min(bounds.ctas.value_or(sms), sms);
  const Status kernel = ctas == 0 ? Status(Code::unsupported, Scope::request,
                                           "copies may take no CTAs here (LINKSPAN_COPY_CTAS or "
                                           "EngineOptions::copy_ctas is 0)")
                                  : device.kernels();
  auto scope = device.enter();
  if (!scope.ok()) return scope.status();
  const unsigned kernel_args = kernel.ok() ? kKernelArgsPerQueue : 0;
  auto memory = cuda::PinnedBuffer::create(
      *scope, std::size_t{queues} * (kLine + kernel_args * sizeof(ArgsMemory)));
  if (!memory.ok()) return memory.status();
  auto abort_flags = cuda::DeviceBuffer::create(*scope, kLine * kKernelArgsPerQueue * queues);
  if (!abort_flags.ok()) return abort_flags.status();
  auto aborts = cuda::Stream::create(*scope, kHighestPriority);
  if (!aborts.ok()) return aborts.status();
  auto* const args_memory = reinterpret_cast<ArgsMemory*>(memory->data() + queues * kLine);
  std::vector<CopyQueue> made;
  made.reserve(queues);
  for (std::size_t i = 0; i < queues; ++i) {
    auto stream = cuda::Stream::create(*scope);
    if (!stream.ok()) return stream.status();
    auto flag = CompletionFlag::create(*scope, *memory, i * kLine, i < bounds.queues);
    if (!flag.ok()) return flag.status();
    CopyQueue& queue = made.emplace_back(*std::move(stream), *std::move(flag));
    if (i < bounds.queues) queue.waiting.parts.reserve(kStreamEntries);
    for (std::size_t s = 0; s < kernel_args; ++s) {
      const std::size_t index = i * kernel_args + s;
      queue.kernel_args[s] = {.memory = args_memory + index,
                              .abort_flag = abort_flags->address() + index * kLine};
    }
  }
  Status zeroed = aborts->fill(*scope, abort_flags->address(), 0, abort_flags->bytes());
  if (zeroed.ok()) zeroed = aborts->synchronize(*scope);
  if (!zeroed.ok()) return zeroed;
  return std::unique_ptr<GpuCopier>(new GpuCopier(device, kernel, ctas, clock, *std::move(memory),
                                                  *std::move(abort_flags), *std::move(aborts),
                                                  std::move(made)));
}

GpuCopier::GpuCopier(const cuda::Device& device, const Status& kernel, unsigned ctas,
                     const base::Clock& clock, cuda::PinnedBuffer memory,
                     cuda::DeviceBuffer abort_flags, cuda::Stream aborts,
                     std::vector<CopyQueue> queues)
    : device_(device),
      ctas_(kernel.ok() ? Result<unsigned>(ctas) : kernel),
      clock_(clock),
      memory_(std::move(memory)),
      abort_flags_(std::move(abort_flags)),
      aborts_(std::move(aborts)),
      queues_(std::move(queues)) {
  joined_.reserve(kStreamEntries);
}

Result<Ticket> GpuCopier::start(const Order& order) {
  const bool kernel = order.method == Method::sm_kernel;
  if (!kernel && order.method != Method::copy_engine)
    return Status(Code::invalid_argument, Scope::request,
                  std::string("a GPU does not copy by ") + name_of(order.method));
  if (!context_error_.ok()) return context_error_;
  const PageList& pages = order.pages;
  if (!pages.to_index.empty() && !kernel)
    return Status(Code::invalid_argument, Scope::request, "pages are copied by the kernel only");
  if (kernel && !has_kernel())
    return Status(Code::unsupported, Scope::request, "no copy kernel: " + this->kernel().what());
  if (kernel && order.ctas == 0)
    return Status(Code::invalid_argument, Scope::request, "a kernel needs a CTA");
  const std::uint64_t limit = max_pieces(order.method);
  std::uint64_t cut = 0, bytes = 0;
  for (const Piece& piece : order.pieces) {
    cut += entries(order.method, order.link, piece.bytes);
    bytes += piece.bytes;
    if (cut > limit)
      return Status(Code::invalid_argument, Scope::request,
                    "one order of " + std::string(name_of(order.method)) + " takes " +
                        std::to_string(limit) + " pieces of " +
                        std::to_string(kernel ? kListBytes : copy_bytes(order.link)) + " bytes");
  }
  if (!pages.to_index.empty()) {
    const std::uint64_t pairs = 1 + pages.more.size();
    if (pages.to_index.size() > kPages / pages.lists() ||
        pages.from_index.size() != pages.to_index.size() || pairs > kPairs ||
        pages.page_bytes > kPagedBytes / (pairs * pages.to_index.size()))
      return Status(Code::invalid_argument, Scope::request,
                    "one order of pages takes " + std::to_string(kPages) + " of them, " +
                        std::to_string(kPairs) + " pairs of regions and " +
                        std::to_string(kPagedBytes) + " bytes");
    cut = bytes = pages.page_bytes * pages.to_index.size() * pairs;
  }

  CopyQueue* const chosen = choose_queue(order);
  if (chosen == nullptr) return Status::no_resource();
  CopyQueue& queue = *chosen;
  const auto index = static_cast<std::size_t>(chosen - queues_.data());
  poll_completion_flag(queue);
  if (!context_error_.ok()) return context_error_;
  const std::uint64_t number = queue.submitted + 1;
  QueuedOrder& record = queue.of(number);
  if (number - queue.quiet > kOrdersPerQueue || record.number != 0) return Status::no_resource();
  const Ticket ticket = number * queues_.size() + index;
  if (cut == 0) {
    record = {.number = number};
    queue.submitted = number;
    retire(queue, queue.quiet);
    ++unreported_;
    return ticket;
  }
  if (may_wait(queue, order, bytes)) {
    const std::size_t waiting = std::max<std::size_t>(queue.entries, queue.waiting.parts.size());
    if (waiting + order.pieces.size() + kExtraEntries > kStreamEntries)
      return Status::no_resource();
    wait(queue, number, order, bytes);
    if (queue.waiting.bytes >= kEnoughBytes || queue.waiting.parts.size() >= kEnoughPieces)
      begin_waiting_if_due(queue);
    return ticket;
  }
  if (!queue.waiting.parts.empty() && !begin_waiting(queue)) return Status::no_resource();
  if (!context_error_.ok()) return context_error_;
  Relay::RelayStreams* relay_streams = nullptr;
  if (relay_.ok()) {
    const auto found = (*relay_)->choose_streams(order);
    if (!found.ok()) return found.status();
    relay_streams = *found;
  }
  // The flag write, waits, an event.
  const unsigned extra_entries = 1 + (order.after != nullptr ? 1 : 0) +
                                 (order.release != nullptr ? 1 : 0) +
                                 (relay_streams != nullptr ? 1 : 0);
  if (queue.entries + (kernel ? 1 : cut) + extra_entries > kStreamEntries)
    return Status::no_resource();
  KernelArgs* args = kernel ? idle_args(queue) : nullptr;
  if (kernel && args == nullptr) return Status::no_resource();

  auto scope = device_.enter();
  if (!scope.ok()) return scope.status();
  std::optional<cuda::PooledEvent> release;
  if (order.release != nullptr) {
    auto event = device_.events().acquire();
    if (!event.ok()) return event.status();
    release.emplace(*std::move(event));
  }
  if (order.after != nullptr) {
    const Status waits = queue.stream.wait_for(*scope, *order.after);
    if (waits.scope() == Scope::process) fail_all(waits);
    if (!waits.ok()) return waits;
    queue.user_stream = order.stream;
    if (relay_streams != nullptr && !(*relay_)->wait_for(*relay_streams, *order.after).ok())
      relay_streams = nullptr;
  }
  SubmitResult queued = kernel ? queue_kernel(*scope, queue, *args, order, bytes)
                               : queue_copies(*scope, queue, order, relay_streams);
  if (queued.entries == 0) {
    if (queued.status.scope() == Scope::process) fail_all(queued.status);
    return queued.status;
  }
  const Status written =
      queue.flag.write(*scope, queue.stream, number, bytes, queue.in_stream == 0);
  if (queued.status.ok()) queued.status = written;
  if (release && (*release)->record(*scope, queue.stream.get()).ok())
    *order.release = std::move(release);

  const base::Time now = clock_.now();
  queue.last_due =
      std::max(now, queue.last_due) +
      earliest_time(order.method, order.link, bytes - queued.relayed, 1, rates(order.link));
  record = {.number = number,
            .entries = queued.entries + extra_entries,
            .args = args,
            .first = pages.first,
            .relay_streams = relay_streams,
            .chunks = queued.chunks,
            .status = queued.status,
            .due = queue.last_due,
            .last_poll = now};
  queue.submitted = number;
  ++queue.in_stream;
  queue.entries += record.entries;
  if (args != nullptr) args->state = KernelArgs::ArgsState::busy;
  if (number == queue.quiet + 1) queue.next_query = record.due + kOverdue;
  // the flag was not written, so only the stream shows the end
  if (!written.ok()) queue.next_query = now;
  if (queued.status.scope() == Scope::process || !queued.joined) fail_all(queued.status);
  return ticket;
}

void GpuCopier::abort(Ticket ticket) {
  QueuedOrder* order = find(ticket);
  if (order == nullptr || order->entries == 0) return;
  CopyQueue& queue = queues_[ticket % queues_.size()];
  if (order->number > queue.begun())
    return end_unbegun(queue, *order, Status(Code::canceled, Scope::request, "canceled"));
  // KernelArgs of a quiet order may already belong to another one; those of joined orders are
  // shared.
  if (order->args != nullptr && order->number > queue.quiet && !order->joined)
    request_abort(*order->args);
}

std::optional<Status> GpuCopier::poll(Ticket ticket) {
  QueuedOrder* order = find(ticket);
  if (order == nullptr)
    return Status(Code::internal, Scope::request, "poll of a ticket that is not in flight");
  CopyQueue& queue = queues_[ticket % queues_.size()];
  const auto quiet = [&] { return order->entries == 0 || order->number <= queue.quiet; };
  if (!quiet()) advance(queue);
  if (!quiet()) return std::nullopt;
  Status end = std::move(order->status);
  *order = {};
  --unreported_;
  return end;
}

base::Time GpuCopier::expected(base::Time now) const {
  if (unreported_ > 0) return now;
  base::Time soonest = base::Time::max();
  for (const CopyQueue& queue : queues_)
    if (queue.quiet < queue.submitted) {
      const QueuedOrder& oldest = queue.of(queue.quiet + 1);
      soonest = std::min(soonest, poll_hint(oldest.due, oldest.last_poll));
    }
  return soonest;
}

/// Returns the queue that waits for the order's user stream already, or an idle one.
GpuCopier::CopyQueue* GpuCopier::choose_queue(const Order& order) {
  const std::size_t ours = queues_.size() - kStreamOrderedQueues;
  if (order.after == nullptr) return &queues_[order.queue % ours];
  CopyQueue* idle = nullptr;
  for (CopyQueue& queue : std::span(queues_).subspan(ours)) {
    if (queue.quiet != queue.submitted) advance(queue);
    if (queue.quiet == queue.submitted)
      idle = &queue;
    else if (queue.user_stream == order.stream)
      return &queue;
  }
  return idle;
}

GpuCopier::QueuedOrder* GpuCopier::find(Ticket ticket) {
  const std::uint64_t number = ticket / queues_.size();
  QueuedOrder& order = queues_[ticket % queues_.size()].of(number);
  return number != 0 && order.number == number ? &order : nullptr;
}

void GpuCopier::advance(CopyQueue& queue) {
  poll_completion_flag(queue);
  begin_waiting_if_due(queue);
}

}  // namespace linkspan::copy
