// Implements ReceiveQueue (work_queue.hpp).
#include <utility>

#include "transport/nccl_net/work_queue.hpp"

namespace linkspan::transport::nccl_net {

bool ReceiveQueue::step() {
  if (comm_ == nullptr && !accept()) return false;
  const bool begun = begin();
  const bool arrived = check_completions();
  return complete_arrivals() || arrived || begun;
}

bool ReceiveQueue::accept() {
  if (attributes_.connect_by.passed()) fail(late("from the peer"));
  if (listener_ == nullptr) {
    auto opened = Listener::open(attributes_.plugin, attributes_.nic);
    if (!opened.ok()) return fail(opened.status()), false;
    listener_ = *std::move(opened);
    set_handle(listener_->handle());
  }
  auto comm = listener_->accept();
  fail(comm.status());
  if (!comm.ok() || *comm == nullptr) return false;
  comm_ = *std::move(comm);
  listener_.reset();
  stage_if_needed(Staged::Direction::to_gpu);
  if (device() == nullptr || staged_ != nullptr || !comm_->unpacks()) return true;
  fail(make_unpacker());
  return good();
}

Status ReceiveQueue::make_unpacker() {
  auto pool = tcpx::find_pool(*attributes_.topology, *device(), comm_->kernels());
  if (!pool.ok()) return pool.status();
  pool_ = *pool;
  const auto create = [&](Unpack method) {
    return tcpx::Unpacker::create(*device(), method, {.ctas = attributes_.staging.ctas});
  };
  auto made = create(attributes_.unpack.value_or(Unpack::kernel));
  if (!made.ok() && made.status().code() == Code::unsupported && !attributes_.unpack)
    made = create(Unpack::d2d);
  if (!made.ok()) return made.status();
  unpacker_ = *std::move(made);
  return {};
}

bool ReceiveQueue::flushes() const noexcept {
  return device() != nullptr && unpacker_ == nullptr && staged_ == nullptr;
}

/// Returns true if flushes must come before new receives: a plugin may need a request for each
/// flush.
bool ReceiveQueue::flushes_first() const {
  return flushes() &&
         comm_->in_flight() + arrivals_.size() >=
             static_cast<std::size_t>(attributes_.plugin->max_requests(attributes_.nic));
}

/// Returns none if no staging buffer is free, or fail() was called.
std::optional<MessagePlace> ReceiveQueue::next_place(WorkRequest& work) {
  if (staged_ != nullptr) {
    if (work.begun == work.staged && !stage_next(work)) return std::nullopt;
    return staged_->next();
  }
  const Comm::CommRegistration* const into = registration(work.memory);
  if (into == nullptr) return std::nullopt;
  return MessagePlace{pointer(work.messages[work.begun].address), into};
}

bool ReceiveQueue::begin() {
  bool moved = false;
  while (next_ < requests_.size() && !flushes_first()) {
    WorkRequest& work = *requests_[next_];
    if (work.begun == work.messages.size()) {
      ++next_;
      continue;
    }
    const WorkRequest::MessageBuffer& message = work.messages[work.begun];
    const auto into = next_place(work);
    if (!into) return moved;
    const Status begun =
        comm_->receive(into->data, message.bytes, kTag, *into->memory, into->cookie);
    if (begun.code() == Code::no_resource) return moved;
    if (!begun.ok()) return fail(begun), moved;
    if (staged_ != nullptr) staged_->begun(false);
    ++work.begun;
    moved = true;
  }
  return moved;
}

bool ReceiveQueue::check_completions() {
  for (bool moved = false;; moved = true) {
    auto done = comm_->test();
    fail(done.status());
    if (!done.ok() || !*done) return moved;
    WorkRequest& work = *requests_[arriving_];
    const WorkRequest::MessageBuffer& message = work.messages[work.arrived];
    arrivals_.push_back({.done = **done, .message = message, .number = received_++});
    if (staged_ != nullptr) {
      fail(comm_->consumed(**done));  // staged: the plugin need not wait for the GPU
      fail(staged_->done((*done)->cookie, (*done)->bytes == message.bytes));
    }
    if (++work.arrived == work.messages.size()) ++arriving_;
  }
}

/// Completes receives in the order in which they arrived, as the plugin requires.
bool ReceiveQueue::complete_arrivals() {
  if (!unpacks_.empty()) poll_unpacks();
  bool moved = staged_ != nullptr && poll_gpu();
  while (good() && !arrivals_.empty() && is_in_place(arrivals_.front())) {
    const ReceiveCompletion arrival = arrivals_.front();
    arrivals_.pop_front();
    if (staged_ == nullptr) fail(comm_->consumed(arrival.done));
    WorkRequest& work = *requests_.front();
    if (arrival.done.bytes != arrival.message.bytes && work.status.ok())
      work.status =
          arrival.done.bytes == 0
              ? Status(Code::canceled, Scope::request, "the sender sent no more of it")
              : Status(Code::corrupt, Scope::peer,
                       "a message of " + std::to_string(arrival.done.bytes) + " bytes came where " +
                           std::to_string(arrival.message.bytes) + " were due");
    count(work, arrival.done.bytes);
    if (++work.done == work.messages.size()) {
      pop_order();
      --arriving_;
    }
    moved = true;
  }
  return moved;
}

bool ReceiveQueue::is_in_place(ReceiveCompletion& arrival) {
  if (device() == nullptr || arrival.done.bytes == 0 || arrival.in_place) return true;
  if (staged_ != nullptr) return !staged_->is_in_flight(arrival.done.cookie);
  if (unpacker_ != nullptr) {
    if (arrival.unpack_id == 0) unpack();
    return false;
  }
  if (!arrival.flushing) {
    const Comm::CommRegistration* const into = registration(requests_.front()->memory);
    if (into == nullptr) return false;
    auto flush = comm_->flush(pointer(arrival.message.address), arrival.done.bytes, *into);
    if (!flush.ok()) return fail(flush.status()), false;
    arrival.flush = *flush;
    arrival.flushing = true;
  }
  const auto flushed = comm_->flushed(arrival.flush);
  fail(flushed.status());
  return flushed.ok() && *flushed;
}

/// Begins an unpack of all completed receives that are in none.
void ReceiveQueue::unpack() {
  std::vector<tcpx::DescriptorBlock> blocks;
  std::vector<tcpx::UnpackRequest> requests;
  std::vector<ReceiveCompletion*> arrivals;
  blocks.reserve(tcpx::kMetaSlots);
  std::uint64_t bytes = 0;
  for (ReceiveCompletion& each : arrivals_) {
    if (each.unpack_id != 0 || each.done.bytes == 0) continue;
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
        {.block = &blocks.back(), .bounce = pool_.bounce, .destination = each.message.address});
    arrivals.push_back(&each);
  }
  auto id = unpacker_->begin(requests);
  if (id.status().code() == Code::no_resource) return;
  if (!id.ok()) return fail(id.status());
  unpacks_.push_back(*id);
  for (ReceiveCompletion* each : arrivals) each->unpack_id = *id;
}

void ReceiveQueue::poll_unpacks() {
  std::erase_if(unpacks_, [this](tcpx::Unpacker::UnpackId id) {
    const auto end = unpacker_->poll(id);
    if (!end) return false;
    fail(*end);
    for (ReceiveCompletion& each : arrivals_)
      if (each.unpack_id == id) each.in_place = true;
    return true;
  });
}

bool ReceiveQueue::may_close() {
  if (!unpacks_.empty()) poll_unpacks();
  return WorkQueue::may_close() && unpacks_.empty();
}

void ReceiveQueue::close() {
  arrivals_.clear();
  if (unpacker_ != nullptr)  // it owns pinned memory, whose release may block
    attributes_.topology->destroyer()->end(std::move(unpacker_));
  comm_.reset();
  listener_.reset();
}

}  // namespace linkspan::transport::nccl_net
