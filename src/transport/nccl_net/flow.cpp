#include "transport/nccl_net/flow.hpp"

#include <algorithm>
#include <utility>

namespace linkspan::transport::nccl_net {
namespace {

void* pointer(std::uint64_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

void finish(Order& order, const Status& status) {
  order.status = status;
  order.ended.store(true, std::memory_order_release);
}

Status late(const char* whom) {
  return {Code::timed_out, Scope::peer,
          std::string("the network plugin's connection ") + whom + " was not made in time"};
}

}  // namespace

void Flow::add(std::shared_ptr<Order> order) {
  const base::MutexLock lock(mutex_);
  if (broken_)
    finish(*order, *broken_);
  else
    incoming_.push_back(std::move(order));
}

void Flow::end(const Status& why) {
  const base::MutexLock lock(mutex_);
  if (ending_.ok()) ending_ = why;
}

std::optional<Status> Flow::broken() const {
  const base::MutexLock lock(mutex_);
  return broken_;
}

bool Flow::take_orders() {
  const base::MutexLock lock(mutex_);
  fail(ending_);
  const bool any = !incoming_.empty();
  for (auto& order : incoming_) orders_.push_back(std::move(order));
  incoming_.clear();
  return any;
}

/// What the plugin finds current.
void Flow::enter(std::optional<cuda::DeviceScope>& scope) {
  if (device_ == nullptr) return;
  auto entered = device_->enter();
  fail(entered.status());
  if (entered.ok()) scope.emplace(*std::move(entered));
}

bool Flow::turn() {
  bool moved = take_orders();
  std::optional<cuda::DeviceScope> scope;
  enter(scope);
  if (failed_.ok()) moved |= step();
  if (!failed_.ok()) moved |= wind_up();
  return moved;
}

bool Flow::wind_up() {
  if (!may_close()) return false;
  for (const auto& [memory, kept] : kept_) --kept.memory->registrations;
  kept_.clear();
  close();
  const base::MutexLock lock(mutex_);
  for (const auto& order : orders_) finish(*order, failed_);
  for (const auto& order : incoming_) finish(*order, failed_);
  orders_.clear();
  incoming_.clear();
  broken_ = failed_;
  return true;
}

const Comm::Registration* Flow::registration(const std::shared_ptr<Published>& memory) {
  Kept& kept = kept_[memory.get()];
  if (kept.registration == nullptr) {
    auto made = comm()->add_memory(pointer(memory->address), memory->key.bytes,
                                   memory->device != nullptr ? abi::kCuda : abi::kHost);
    if (!made.ok()) {
      kept_.erase(memory.get());
      fail(made.status());
      return nullptr;
    }
    ++memory->registrations;
    kept = {memory, *std::move(made)};
  }
  return kept.registration.get();
}

void Flow::give_back() {
  std::optional<cuda::DeviceScope> scope;
  enter(scope);
  for (auto each = kept_.begin(); each != kept_.end();) {
    const std::shared_ptr<Published> memory = each->second.memory;
    if (!memory->retracted) {
      ++each;
      continue;
    }
    each = kept_.erase(each);
    --memory->registrations;
  }
}

void Flow::pop_order() {
  const std::shared_ptr<Order> order = std::move(orders_.front());
  orders_.pop_front();
  if (next_ != 0) --next_;
  const Status status = order->status;
  finish(*order, status);
}

// ---- to the peer --------------------------------------------------------------------------------

void SendFlow::set_handle(const Handle& handle) {
  const base::MutexLock lock(mutex_);
  handle_ = handle;
}

bool SendFlow::step() {
  if (comm_ == nullptr && !connect()) return false;
  const bool begun = begin();
  return look() || begun;
}

bool SendFlow::connect() {
  if (connect_by_.passed()) fail(late("to the peer"));
  if (connector_ == nullptr) {
    std::optional<Handle> handle;
    {
      const base::MutexLock lock(mutex_);
      handle = handle_;
    }
    if (!handle) return false;
    auto opened = Connector::open(plugin_, nic_, *handle);
    if (!opened.ok()) return fail(opened.status()), false;
    connector_ = *std::move(opened);
  }
  auto comm = connector_->connect();
  fail(comm.status());
  if (comm.ok()) comm_ = *std::move(comm);
  if (comm_ != nullptr) connector_.reset();
  return comm_ != nullptr;
}

bool SendFlow::begin() {
  bool moved = false;
  while (next_ < orders_.size()) {
    Order& order = *orders_[next_];
    if (order.begun == order.pieces.size()) {
      ++next_;
      continue;
    }
    const Order::Piece& piece = order.pieces[order.begun];
    const bool empty = order.hollow || order.memory == nullptr;
    if (empty && of_nothing_ == nullptr) {
      auto made = comm_->add_memory(nothing_.data(), nothing_.size(), abi::kHost);
      if (!made.ok()) return fail(made.status()), moved;
      of_nothing_ = *std::move(made);
    }
    const Comm::Registration* const from = empty ? of_nothing_.get() : registration(order.memory);
    if (from == nullptr) return moved;
    const Status sent = comm_->send(empty ? nothing_.data() : pointer(piece.address),
                                    empty ? 0 : piece.bytes, kTag, *from, 0);
    if (sent.code() == Code::no_resource) return moved;
    if (!sent.ok()) return fail(sent), moved;
    if (empty) order.status = Status(Code::canceled, Scope::request, "some of it was not sent");
    ++order.begun;
    moved = true;
  }
  return moved;
}

bool SendFlow::look() {
  for (bool moved = false;; moved = true) {
    auto done = comm_->test();
    fail(done.status());
    if (!done.ok() || !*done) return moved;
    Order& order = *orders_.front();
    if (++order.done == order.pieces.size()) pop_order();
  }
}

void SendFlow::close() {
  of_nothing_.reset();
  comm_.reset();
  connector_.reset();
}

// ---- from the peer ------------------------------------------------------------------------------

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
  if (device_ == nullptr || !comm_->unpacks()) return true;
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

/// A plugin keeps what a flush needs with the receive's request, and may take another for it.
bool ReceiveFlow::flushes_first() const {
  return device_ != nullptr && unpacker_ == nullptr &&
         comm_->in_flight() + arrivals_.size() >=
             static_cast<std::size_t>(plugin_->max_requests(nic_));
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
    const Comm::Registration* const into = registration(order.memory);
    if (into == nullptr) return moved;
    const Status begun = comm_->receive(pointer(piece.address), piece.bytes, kTag, *into, 0);
    if (begun.code() == Code::no_resource) return moved;
    if (!begun.ok()) return fail(begun), moved;
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
    arrivals_.push_back(
        {.done = **done, .piece = order.pieces[order.arrived], .number = received_++});
    if (++order.arrived == order.pieces.size()) ++arriving_;
  }
}

/// In the order in which they came: so the plugin wants to hear of it.
bool ReceiveFlow::land() {
  if (!tickets_.empty()) poll();
  bool moved = false;
  while (good() && !arrivals_.empty() && put_in_place(arrivals_.front())) {
    const Arrival arrival = arrivals_.front();
    arrivals_.pop_front();
    fail(comm_->consumed(arrival.done));
    Order& order = *orders_.front();
    if (arrival.done.bytes != arrival.piece.bytes && order.status.ok())
      order.status =
          arrival.done.bytes == 0
              ? Status(Code::canceled, Scope::request, "the sender sent no more of it")
              : Status(Code::corrupt, Scope::peer,
                       "a message of " + std::to_string(arrival.done.bytes) + " bytes came where " +
                           std::to_string(arrival.piece.bytes) + " were due");
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
  return tickets_.empty();
}

void ReceiveFlow::close() {
  arrivals_.clear();
  unpacker_.reset();
  comm_.reset();
  listener_.reset();
}

}  // namespace linkspan::transport::nccl_net
