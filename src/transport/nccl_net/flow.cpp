#include "transport/nccl_net/flow.hpp"

#include <utility>

namespace linkspan::transport::nccl_net {
namespace {

void finish(Order& order, const Status& status) {
  order.status = status;
  order.ended.store(true, std::memory_order_release);
}

}  // namespace

void* Flow::pointer(std::uint64_t address) noexcept {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

Status Flow::late(const char* whom) {
  return {Code::timed_out, Scope::peer,
          std::string("the network plugin's connection ") + whom + " was not made in time"};
}

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
  for (auto& [memory, kept] : kept_) {
    kept.registration.reset();  // before its user hears that it may go
    --kept.memory->registrations;
  }
  kept_.clear();
  if (staged_ != nullptr) staged_->deregister();
  close();
  staged_.reset();
  const base::MutexLock lock(mutex_);
  for (const auto& order : orders_) finish(*order, failed_);
  for (const auto& order : incoming_) finish(*order, failed_);
  orders_.clear();
  incoming_.clear();
  broken_ = failed_;
  return true;
}

const Comm::Registration* Flow::registration(const std::shared_ptr<WireRegion>& used) {
  const std::shared_ptr<WireRegion>& memory = registered_as(used);
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

void Flow::release() {
  std::optional<cuda::DeviceScope> scope;
  enter(scope);
  for (auto each = kept_.begin(); each != kept_.end();) {
    const std::shared_ptr<WireRegion> memory = each->second.memory;
    if (!memory->retracted || memory->uses != 0) {  // there will be no more of them
      ++each;
      continue;
    }
    each = kept_.erase(each);
    --memory->registrations;
  }
}

void Flow::stage_if_needed(Staged::Way way) {
  if (device_ != nullptr && !comm()->properties().takes(abi::kCuda))
    staged_ = std::make_unique<Staged>(*comm(), *device_, staging_, way);
}

bool Flow::look_at_gpu() {
  const auto moved = staged_->poll();
  fail(moved.status());
  return moved.ok() && *moved;
}

bool Flow::take_slot(Order& order) {
  const auto taken = staged_->take(order, order.staged);
  fail(taken.status());
  if (taken.ok()) order.staged += *taken;
  return taken.ok() && *taken != 0;
}

bool Flow::may_close() {
  if (staged_ != nullptr) (void)look_at_gpu();
  return staged_ == nullptr || staged_->is_quiet();
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
  const bool filled = staged_ != nullptr && fill();
  if (!good()) return filled;
  const bool begun = begin();
  return look() || begun || filled;
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
  if (comm_ == nullptr) return false;
  connector_.reset();
  stage_if_needed(Staged::Way::from_gpu);
  return true;
}

/// As many slots as there are, ahead of what is sent.
bool SendFlow::fill() {
  bool moved = look_at_gpu();
  while (good() && filling_ < orders_.size()) {
    Order& order = *orders_[filling_];
    if (order.hollow || order.memory == nullptr || order.staged == order.pieces.size())
      ++filling_;
    else if (!take_slot(order))
      break;
    moved = true;
  }
  return moved;
}

/// None: a GPU has it still, or fail() was called.
std::optional<Place> SendFlow::next_place(const Order& order, bool empty) {
  std::optional<Place> place;
  if (order.begun < order.staged) {
    place = staged_->next();
    if (!place) return place;
  } else if (!empty && staged_ != nullptr) {
    return place;
  }
  if (empty) {
    if (of_nothing_ == nullptr) {
      auto made = comm_->add_memory(nothing_.data(), nothing_.size(), abi::kHost);
      if (!made.ok()) return fail(made.status()), std::nullopt;
      of_nothing_ = *std::move(made);
    }
    return Place{nothing_.data(), of_nothing_.get()};
  }
  if (place) return place;
  const Comm::Registration* const from = registration(order.memory);
  if (from == nullptr) return std::nullopt;
  return Place{pointer(order.pieces[order.begun].address), from};
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
    const auto from = next_place(order, empty);
    if (!from) return moved;
    const Status sent =
        comm_->send(from->data, empty ? 0 : piece.bytes, kTag, *from->memory, from->cookie);
    if (sent.code() == Code::no_resource) return moved;
    if (!sent.ok()) return fail(sent), moved;
    if (order.begun < order.staged) staged_->begun(empty);
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
    if ((*done)->cookie != 0) (void)staged_->done((*done)->cookie, true);
    Order& order = *orders_.front();
    count(order, order.pieces[order.done].bytes);
    if (++order.done != order.pieces.size()) continue;
    pop_order();
    if (filling_ != 0) --filling_;
  }
}

void SendFlow::close() {
  of_nothing_.reset();
  comm_.reset();
  connector_.reset();
}

}  // namespace linkspan::transport::nccl_net
