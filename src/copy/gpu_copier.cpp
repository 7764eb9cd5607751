#include "copy/gpu_copier.hpp"

#include <algorithm>
#include <atomic>
#include <string>

#include "copy/chooser.hpp"

namespace linkspan::copy {
namespace {

constexpr int kFirst = -8;  // a stream's priority; the driver clamps it

}  // namespace

Result<std::unique_ptr<GpuCopier>> GpuCopier::create(const cuda::Device& device,
                                                     const Bounds& bounds,
                                                     const base::Clock& clock) {
  if (bounds.lanes == 0)
    return Status(Code::invalid_argument, Scope::request, "a copier needs a lane");
  const unsigned lanes = bounds.lanes + kHeldLanes;
  const auto sms = static_cast<unsigned>(std::max(device.info().sm_count, 1));
  const unsigned ctas = std::min(bounds.ctas.value_or(sms), sms);
  const Status kernel = ctas == 0 ? Status(Code::unsupported, Scope::request,
                                           "copies may take no CTAs here (LINKSPAN_COPY_CTAS or "
                                           "EngineOptions::copy_ctas is 0)")
                                  : device.kernels();
  auto scope = device.enter();
  if (!scope.ok()) return scope.status();
  const unsigned slots = kernel.ok() ? kSlotsPerLane : 0;
  auto memory =
      cuda::PinnedBuffer::create(*scope, std::size_t{lanes} * (kLine + slots * slot_bytes()));
  if (!memory.ok()) return memory.status();
  auto abort_words = cuda::DeviceBuffer::create(*scope, kLine * kSlotsPerLane * lanes);
  if (!abort_words.ok()) return abort_words.status();
  auto aborts = cuda::Stream::create(*scope, kFirst);
  if (!aborts.ok()) return aborts.status();
  std::vector<Lane> made;
  made.reserve(lanes);
  for (std::size_t i = 0; i < lanes; ++i) {
    auto stream = cuda::Stream::create(*scope);
    if (!stream.ok()) return stream.status();
    Lane& lane = made.emplace_back(*std::move(stream));
    if (i < bounds.lanes) {
      auto beside = cuda::Stream::create(*scope);
      if (!beside.ok()) return beside.status();
      auto event = cuda::Event::create(*scope);
      if (!event.ok()) return event.status();
      lane.beside.emplace(Beside{*std::move(beside), *std::move(event)});
    }
    lane.word = reinterpret_cast<std::uint64_t*>(memory->data() + i * kLine);
    lane.word_device = memory->device_address() + i * kLine;
    *lane.word = 0;
    for (std::size_t s = 0; s < slots; ++s) {
      const std::size_t index = i * slots + s;
      lane.slots[s] = carve_slot(*memory, lanes * kLine + index * slot_bytes(),
                                 abort_words->address() + index * kLine);
    }
  }
  Status zeroed = aborts->fill(*scope, abort_words->address(), 0, abort_words->bytes());
  if (zeroed.ok()) zeroed = aborts->synchronize(*scope);
  if (!zeroed.ok()) return zeroed;
  return std::unique_ptr<GpuCopier>(new GpuCopier(device, kernel, ctas, clock, *std::move(memory),
                                                  *std::move(abort_words), *std::move(aborts),
                                                  std::move(made)));
}

GpuCopier::GpuCopier(const cuda::Device& device, Status kernel, unsigned ctas,
                     const base::Clock& clock, cuda::PinnedBuffer memory,
                     cuda::DeviceBuffer abort_words, cuda::Stream aborts, std::vector<Lane> lanes)
    : device_(device),
      kernel_(std::move(kernel)),
      ctas_(kernel_.ok() ? ctas : 0),
      clock_(clock),
      memory_(std::move(memory)),
      abort_words_(std::move(abort_words)),
      aborts_(std::move(aborts)),
      lanes_(std::move(lanes)) {}

GpuCopier::~GpuCopier() = default;

void GpuCopier::lend(Result<std::unique_ptr<Relay>> relay) {
  no_relay_ = relay.status();
  if (relay.ok()) relay_ = *std::move(relay);
}

Result<Ticket> GpuCopier::start(const Order& order) {
  const bool kernel = order.method == Method::sm_kernel;
  if (!kernel && order.method != Method::copy_engine)
    return Status(Code::invalid_argument, Scope::request,
                  std::string("a GPU does not copy by ") + name_of(order.method));
  if (!lost_.ok()) return lost_;
  const PageList& pages = order.pages;
  if (!pages.to_index.empty() && !kernel)
    return Status(Code::invalid_argument, Scope::request, "pages are copied by the kernel only");
  if (kernel && !has_kernel())
    return Status(Code::unsupported, Scope::request, "no copy kernel: " + kernel_.what());
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
    if (pages.to_index.size() > kPages || pages.from_index.size() != pages.to_index.size() ||
        pages.page_bytes > kPagedBytes / pages.to_index.size())
      return Status(Code::invalid_argument, Scope::request,
                    "one order of pages takes " + std::to_string(kPages) + " of them and " +
                        std::to_string(kPagedBytes) + " bytes");
    cut = bytes = pages.page_bytes * pages.to_index.size();
  }

  Lane* const chosen = lane_of(order);
  if (chosen == nullptr) return Status::no_resource();
  Lane& lane = *chosen;
  const auto index = static_cast<std::size_t>(chosen - lanes_.data());
  look_at_word(lane);
  if (!lost_.ok()) return lost_;
  const std::uint64_t number = lane.submitted + 1;
  Running& running = lane.of(number);
  if (number - lane.quiet > kOrdersPerLane || running.number != 0) return Status::no_resource();
  const Ticket ticket = number * lanes_.size() + index;
  if (cut == 0) {
    running = {.number = number};
    lane.submitted = number;
    retire(lane, lane.quiet);
    ++untold_;
    return ticket;
  }
  if (may_wait(lane, order, bytes)) {
    if (lane.entries + order.pieces.size() + kBesideCopies > kStreamEntries)
      return Status::no_resource();
    wait(lane, number, order, bytes);
    if (lane.waiting.bytes >= kEnoughBytes || lane.waiting.parts.size() >= kEnoughPieces)
      begin_waiting_if_due(lane);
    return ticket;
  }
  if (!lane.waiting.parts.empty() && !begin_waiting(lane)) return Status::no_resource();
  if (!lost_.ok()) return lost_;
  Relay::Way* way = nullptr;
  if (relay_ != nullptr) {
    const auto found = relay_->way_of(order);
    if (!found.ok()) return found.status();
    way = *found;
  }
  // The word, waits, an event.
  const unsigned beside = 1 + (order.after != nullptr ? 1 : 0) +
                          (order.release != nullptr ? 1 : 0) + (way != nullptr ? 1 : 0);
  if (lane.entries + (kernel ? 1 : cut) + beside > kStreamEntries) return Status::no_resource();
  Slot* slot = kernel ? idle_slot(lane) : nullptr;
  if (kernel && slot == nullptr) return Status::no_resource();

  auto scope = device_.enter();
  if (!scope.ok()) return scope.status();
  std::optional<cuda::PooledEvent> release;
  if (order.release != nullptr) {
    auto taken = device_.events().take();
    if (!taken.ok()) return taken.status();
    release.emplace(*std::move(taken));
  }
  if (order.after != nullptr) {
    const Status waits = lane.stream.wait_for(*scope, *order.after);
    if (waits.scope() == Scope::process) lose(waits);
    if (!waits.ok()) return waits;
    lane.held_by = order.stream;
    if (way != nullptr && !relay_->wait_for(*way, *order.after).ok()) way = nullptr;
  }
  Queued queued = kernel ? queue_kernel(*scope, lane, *slot, order, bytes)
                         : queue_copies(*scope, lane, order, way);
  if (queued.entries == 0) {
    if (queued.status.scope() == Scope::process) lose(queued.status);
    return queued.status;
  }
  const Status written = write_word(*scope, lane, number, bytes);
  if (queued.status.ok()) queued.status = written;
  if (release && (*release)->record(*scope, lane.stream.get()).ok())
    *order.release = std::move(release);

  const base::Time now = clock_.now();
  lane.last_due =
      std::max(now, lane.last_due) +
      earliest_time(order.method, order.link, bytes - queued.relayed, 1, rates(order.link));
  running = {.number = number,
             .entries = queued.entries + beside,
             .slot = slot,
             .first = pages.first,
             .way = way,
             .chunks = queued.chunks,
             .status = queued.status,
             .due = lane.last_due,
             .looked = now};
  lane.submitted = lane.begun = number;
  ++lane.in_stream;
  lane.entries += running.entries;
  if (slot != nullptr) slot->state = Slot::State::busy;
  if (number == lane.quiet + 1) lane.next_query = running.due + kOverdue;
  if (!written.ok()) lane.next_query = now;  // the word will not tell: only the stream can
  if (queued.status.scope() == Scope::process || !queued.joined) lose(queued.status);
  return ticket;
}

/// Behind all that is in the lane's stream (fact: Streams.AWriteValueIsBehindWhatItsEventIsBehind).
/// No word may overtake the one before it.
Status GpuCopier::write_word(const cuda::DeviceScope& scope, Lane& lane, std::uint64_t number,
                             std::uint64_t bytes) {
  const bool own = bytes < kBesideLeast || bytes >= kBesideMost;
  if (lane.in_stream == 0 || !lane.beside || (own && lane.by_beside <= lane.quiet))
    return lane.stream.write_value(scope, lane.word_device, number);
  lane.by_beside = number;
  auto& [stream, event] = *lane.beside;
  Status status = event.record(scope, lane.stream.get());
  if (status.ok()) status = stream.wait_for(scope, event);
  if (status.ok()) status = stream.write_value(scope, lane.word_device, number);
  return status;
}

void GpuCopier::abort(Ticket ticket) {
  Running* order = find(ticket);
  if (order == nullptr || order->entries == 0) return;
  Lane& lane = lanes_[ticket % lanes_.size()];
  if (order->number > lane.begun)
    return end_unbegun(lane, *order, Status(Code::canceled, Scope::request, "canceled"));
  // Of one that is quiet the slot may be another's by now, of a joined one it is others' too.
  if (order->slot != nullptr && order->number > lane.quiet && !order->joined)
    ask_to_stop(*order->slot);
}

std::optional<Status> GpuCopier::poll(Ticket ticket) {
  Running* order = find(ticket);
  if (order == nullptr)
    return Status(Code::internal, Scope::request, "poll of a ticket that is not in flight");
  Lane& lane = lanes_[ticket % lanes_.size()];
  const auto quiet = [&] { return order->entries == 0 || order->number <= lane.quiet; };
  if (!quiet()) advance(lane);
  if (!quiet()) return std::nullopt;
  Status end = std::move(order->status);
  *order = {};
  --untold_;
  return end;
}

base::Time GpuCopier::expected(base::Time now) const {
  if (untold_ > 0) return now;
  base::Time soonest = base::Time::max();
  for (const Lane& lane : lanes_)
    if (lane.quiet < lane.submitted) {
      const Running& oldest = lane.of(lane.quiet + 1);
      soonest = std::min(soonest, poll_hint(oldest.due, oldest.looked));
    }
  return soonest;
}

/// Of a stream of a user's: the lane that waits for it already, or one where nothing is in flight.
GpuCopier::Lane* GpuCopier::lane_of(const Order& order) {
  const std::size_t ours = lanes_.size() - kHeldLanes;
  if (order.after == nullptr) return &lanes_[order.lane % ours];
  Lane* idle = nullptr;
  for (Lane& lane : std::span(lanes_).subspan(ours)) {
    if (lane.quiet != lane.submitted) advance(lane);
    if (lane.quiet == lane.submitted)
      idle = &lane;
    else if (lane.held_by == order.stream)
      return &lane;
  }
  return idle;
}

GpuCopier::Running* GpuCopier::find(Ticket ticket) {
  const std::uint64_t number = ticket / lanes_.size();
  Running& order = lanes_[ticket % lanes_.size()].of(number);
  return number != 0 && order.number == number ? &order : nullptr;
}

void GpuCopier::advance(Lane& lane) {
  look_at_word(lane);
  begin_waiting_if_due(lane);
}

void GpuCopier::look_at_word(Lane& lane) {
  if (lane.quiet == lane.submitted) return;
  retire(lane, std::atomic_ref<std::uint64_t>(*lane.word).load(std::memory_order_acquire));
  if (lane.quiet == lane.submitted) return;
  const base::Time now = clock_.now();
  lane.of(lane.quiet + 1).looked = now;
  if (now >= lane.next_query) ask_stream(lane);
}

void GpuCopier::retire(Lane& lane, std::uint64_t up_to) {
  const std::uint64_t before = lane.quiet;
  while (lane.quiet < lane.submitted) {
    Running& order = lane.of(lane.quiet + 1);
    if (order.entries != 0) {
      if (order.number > up_to) break;
      lane.entries -= order.entries;
      if (order.is_last) --lane.in_stream;
      if (order.slot != nullptr) {
        Status said = retire_slot(*order.slot, order.first);
        if (order.status.ok()) order.status = std::move(said);
      }
      if (order.chunks != 0) {
        Status lent = relay_->end(*order.way, order.chunks);
        if (order.status.ok()) order.status = std::move(lent);
      }
      ++untold_;
    }
    ++lane.quiet;
  }
  if (lane.quiet != before && lane.quiet != lane.submitted)
    lane.next_query = lane.of(lane.quiet + 1).due + kOverdue;
}

void GpuCopier::ask_stream(Lane& lane) {
  lane.next_query = clock_.now() + kAskAgain;
  const auto scope = device_.enter();
  Status answer = scope.ok() ? lane.stream.query(*scope) : scope.status();
  if (answer.ok() && lane.beside) answer = lane.beside->stream.query(*scope);
  if (answer.ok()) {
    retire(lane, lane.begun);
  } else if (answer.scope() == Scope::process) {
    lose(answer);
  }  // pending, or a driver that cannot tell now: what is not known to be quiet is not
}

void GpuCopier::lose(const Status& cause) {
  lost_ = cause;
  for (Lane& lane : lanes_) {
    for (const Waiting::Part& part : lane.waiting.parts)
      if (lane.of(part.number).number == part.number)
        end_unbegun(lane, lane.of(part.number), cause);
    lane.waiting.parts.clear();
    for (std::uint64_t number = lane.quiet + 1; number <= lane.submitted; ++number)
      if (lane.of(number).entries != 0) lane.of(number).status = cause;
    retire(lane, lane.submitted);
  }
}

}  // namespace linkspan::copy
