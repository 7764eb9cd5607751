// Flows from a peer: flow.hpp.
#include <utility>

#include "transport/nccl_net/flow.hpp"

namespace linkspan::transport::nccl_net {

std::optional<Handle> ReceiveFlow::handle() const {
  const base::MutexLock lock(mutex_);
  return handle_;
}

bool ReceiveFlow::step() {
  if (comm_ == nullptr && !accept()) return false;
  const bool begun = begin();
  const bool arrived = look();
  return land() || arrived || begun;
}

bool ReceiveFlow::accept() {
  if (connect_by_.passed()) fail(late("from the peer"));
  if (listener_ == nullptr) {
    auto opened = Listener::open(plugin_, nic_);
    if (!opened.ok()) return fail(opened.status()), false;
    listener_ = *std::move(opened);
    const base::MutexLock lock(mutex_);
    handle_ = listener_->handle();
  }
  auto comm = listener_->accept();
  fail(comm.status());
  if (!comm.ok() || *comm == nullptr) return false;
  comm_ = *std::move(comm);
  listener_.reset();
  stage_if_needed(Staged::Way::to_gpu);
  if (device_ == nullptr || staged_ != nullptr || !comm_->unpacks()) return true;
  fail(make_unpacker());
  return good();
}

Status ReceiveFlow::make_unpacker() {
  auto pool = tcpx::find_pool(*unpacking_.topology, *device_, comm_->kernels());
  if (!pool.ok()) return pool.status();
  pool_ = *pool;
  const auto create = [&](base::Unpack way) {
    return tcpx::Unpacker::create(*device_, way, {.ctas = unpacking_.ctas});
  };
  auto made = create(unpacking_.way.value_or(base::Unpack::kernel));
  if (!made.ok() && made.status().code() == Code::unsupported && !unpacking_.way)
    made = create(base::Unpack::d2d);
  if (!made.ok()) return made.status();
  unpacker_ = *std::move(made);
  return {};
}

bool ReceiveFlow::flushes() const noexcept {
  return device_ != nullptr && unpacker_ == nullptr && staged_ == nullptr;
}

/// A plugin keeps what a flush needs with the receive's request, and may take another for it.
bool ReceiveFlow::flushes_first() const {
  return flushes() && comm_->in_flight() + arrivals_.size() >=
                          static_cast<std::size_t>(plugin_->max_requests(nic_));
}

/// None: there is no slot now, or fail() was called.
std::optional<Place> ReceiveFlow::next_place(Order& order) {
  if (staged_ != nullptr) {
    if (order.begun == order.staged && !take_slot(order)) return std::nullopt;
    return staged_->next();
  }
  const Comm::Registration* const into = registration(order.memory);
  if (into == nullptr) return std::nullopt;
  return Place{pointer(order.pieces[order.begun].address), into};
}

bool ReceiveFlow::begin() {
  bool moved = false;
  while (next_ < orders_.size() && !flushes_first()) {
    Order& order = *orders_[next_];
    if (order.begun == order.pieces.size()) {
      ++next_;
      continue;
    }
    const Order::Piece& piece = order.pieces[order.begun];
    const auto into = next_place(order);
    if (!into) return moved;
    const Status begun = comm_->receive(into->data, piece.bytes, kTag, *into->memory, into->cookie);
    if (begun.code() == Code::no_resource) return moved;
    if (!begun.ok()) return fail(begun), moved;
    if (staged_ != nullptr) staged_->begun(false);
    ++order.begun;
    moved = true;
  }
  return moved;
}

bool ReceiveFlow::look() {
  for (bool moved = false;; moved = true) {
    auto done = comm_->test();
    fail(done.status());
    if (!done.ok() || !*done) return moved;
    Order& order = *orders_[arriving_];
    const Order::Piece& piece = order.pieces[order.arrived];
    arrivals_.push_back({.done = **done, .piece = piece, .number = received_++});
    if (staged_ != nullptr) {
      fail(comm_->consumed(**done));  // it is in a slot: the plugin need not wait for the GPU
      fail(staged_->done((*done)->cookie, (*done)->bytes == piece.bytes));
    }
    if (++order.arrived == order.pieces.size()) ++arriving_;
  }
}

/// In the order in which they came: so the plugin wants to hear of it.
bool ReceiveFlow::land() {
  if (!tickets_.empty()) poll();
  bool moved = staged_ != nullptr && look_at_gpu();
  while (good() && !arrivals_.empty() && put_in_place(arrivals_.front())) {
    const Arrival arrival = arrivals_.front();
    arrivals_.pop_front();
    if (staged_ == nullptr) fail(comm_->consumed(arrival.done));
    Order& order = *orders_.front();
    if (arrival.done.bytes != arrival.piece.bytes && order.status.ok())
      order.status =
          arrival.done.bytes == 0
              ? Status(Code::canceled, Scope::request, "the sender sent no more of it")
              : Status(Code::corrupt, Scope::peer,
                       "a message of " + std::to_string(arrival.done.bytes) + " bytes came where " +
                           std::to_string(arrival.piece.bytes) + " were due");
    count(order, arrival.done.bytes);
    if (++order.done == order.pieces.size()) {
      pop_order();
      --arriving_;
    }
    moved = true;
  }
  return moved;
}

bool ReceiveFlow::put_in_place(Arrival& arrival) {
  if (device_ == nullptr || arrival.done.bytes == 0 || arrival.in_place) return true;
  if (staged_ != nullptr) return !staged_->holds(arrival.done.cookie);
  if (unpacker_ != nullptr) {
    if (arrival.ticket == 0) unpack();
    return false;
  }
  if (!arrival.flushing) {
    const Comm::Registration* const into = registration(orders_.front()->memory);
    if (into == nullptr) return false;
    auto flush = comm_->flush(pointer(arrival.piece.address), arrival.done.bytes, *into);
    if (!flush.ok()) return fail(flush.status()), false;
    arrival.flush = *flush;
    arrival.flushing = true;
  }
  const auto flushed = comm_->flushed(arrival.flush);
  fail(flushed.status());
  return flushed.ok() && *flushed;
}

/// All that has come and is in no unpack yet.
void ReceiveFlow::unpack() {
  std::vector<tcpx::DescriptorBlock> blocks;
  std::vector<tcpx::UnpackRequest> requests;
  std::vector<Arrival*> arrivals;
  blocks.reserve(tcpx::kMetaSlots);
  std::uint64_t bytes = 0;
  for (Arrival& each : arrivals_) {
    if (each.ticket != 0 || each.done.bytes == 0) continue;
    bytes += each.done.bytes;
    if (blocks.size() == tcpx::kMetaSlots ||
        (!blocks.empty() && bytes > tcpx::Unpacker::kHostBytes))
      break;
    auto block = tcpx::DescriptorBlock::of_slot(
        *pool_.meta, each.number % tcpx::kMetaSlots,
        {.pool_bytes = pool_.bytes, .receive_bytes = each.done.bytes});
    if (!block.ok()) return fail(block.status());
    blocks.push_back(*std::move(block));
    requests.push_back(
        {.block = &blocks.back(), .bounce = pool_.bounce, .destination = each.piece.address});
    arrivals.push_back(&each);
  }
  auto ticket = unpacker_->begin(requests);
  if (ticket.status().code() == Code::no_resource) return;
  if (!ticket.ok()) return fail(ticket.status());
  tickets_.push_back(*ticket);
  for (Arrival* each : arrivals) each->ticket = *ticket;
}

void ReceiveFlow::poll() {
  std::erase_if(tickets_, [this](tcpx::Unpacker::Ticket ticket) {
    const auto end = unpacker_->poll(ticket);
    if (!end) return false;
    fail(*end);
    for (Arrival& each : arrivals_)
      if (each.ticket == ticket) each.in_place = true;
    return true;
  });
}

bool ReceiveFlow::may_close() {
  if (!tickets_.empty()) poll();
  return Flow::may_close() && tickets_.empty();
}

void ReceiveFlow::close() {
  arrivals_.clear();
  if (unpacker_ != nullptr)  // pinned memory of its goes with it
    unpacking_.topology->destroyer()->end(std::move(unpacker_));
  comm_.reset();
  listener_.reset();
}

}  // namespace linkspan::transport::nccl_net
