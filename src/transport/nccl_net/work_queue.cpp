#include "transport/nccl_net/work_queue.hpp"

#include <utility>

namespace linkspan::transport::nccl_net {
namespace {

void finish(WorkRequest& work, const Status& status) {
  work.status = status;
  work.ended.store(true, std::memory_order_release);
}

}  // namespace

void* WorkQueue::pointer(std::uint64_t address) noexcept {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

Status WorkQueue::late(const char* whom) {
  return {Code::timed_out, Scope::peer,
          std::string("the network plugin's connection ") + whom + " was not made in time"};
}

void WorkQueue::add(std::shared_ptr<WorkRequest> work) {
  const base::MutexLock lock(mutex_);
  if (broken_)
    finish(*work, *broken_);
  else
    posted_.push_back(std::move(work));
}

void WorkQueue::end(const Status& why) {
  const base::MutexLock lock(mutex_);
  if (ending_.ok()) ending_ = why;
}

std::optional<Status> WorkQueue::broken() const {
  const base::MutexLock lock(mutex_);
  return broken_;
}

void WorkQueue::set_handle(const Handle& handle) {
  const base::MutexLock lock(mutex_);
  handle_ = handle;
}

std::optional<Handle> WorkQueue::handle() const {
  const base::MutexLock lock(mutex_);
  return handle_;
}

bool WorkQueue::accept_requests() {
  const base::MutexLock lock(mutex_);
  fail(ending_);
  const bool any = !posted_.empty();
  // If memory is exhausted, the rest stays posted, and no request is in both lists.
  for (auto next = posted_.begin(); next != posted_.end(); next = posted_.erase(next))
    requests_.push_back(*next);
  return any;
}

/// Makes the GPU current that the plugin expects.
void WorkQueue::enter(std::optional<cuda::DeviceScope>& scope) {
  if (device() == nullptr) return;
  auto entered = device()->enter();
  fail(entered.status());
  if (entered.ok()) scope.emplace(*std::move(entered));
}

bool WorkQueue::poll() {
  bool moved = accept_requests();
  std::optional<cuda::DeviceScope> scope;
  enter(scope);
  if (failed_.ok()) moved |= step();
  if (!failed_.ok()) moved |= shut_down();
  return moved;
}

bool WorkQueue::shut_down() {
  if (!may_close()) return false;
  for (auto& [memory, kept] : registrations_) {
    kept.registration.reset();  // before its user learns that it is free
    --kept.memory->registrations;
  }
  registrations_.clear();
  if (staged_ != nullptr) staged_->deregister();
  close();
  staged_.reset();
  const base::MutexLock lock(mutex_);
  for (const auto& work : requests_) finish(*work, failed_);
  for (const auto& work : posted_) finish(*work, failed_);
  requests_.clear();
  posted_.clear();
  broken_ = failed_;
  return true;
}

const Comm::CommRegistration* WorkQueue::registration(const std::shared_ptr<WireRegion>& used) {
  const std::shared_ptr<WireRegion>& memory = registered_as(used);
  const auto known = registrations_.find(memory.get());
  if (known != registrations_.end()) return known->second.registration.get();
  auto made = comm()->add_memory(pointer(memory->address), memory->key.bytes,
                                 memory->device != nullptr ? abi::kCuda : abi::kHost);
  if (!made.ok()) {
    fail(made.status());
    return nullptr;
  }
  KeptRegistration& kept = registrations_[memory.get()];
  kept = {memory, *std::move(made)};
  ++memory->registrations;
  return kept.registration.get();
}

void WorkQueue::release() {
  std::optional<cuda::DeviceScope> scope;
  enter(scope);
  for (auto each = registrations_.begin(); each != registrations_.end();) {
    const std::shared_ptr<WireRegion> memory = each->second.memory;
    if (!memory->retracted || memory->uses != 0) {  // a retracted region gets no new uses
      ++each;
      continue;
    }
    each = registrations_.erase(each);
    --memory->registrations;
  }
}

void WorkQueue::stage_if_needed(Staged::Direction direction) {
  if (device() != nullptr && !comm()->properties().supports(abi::kCuda))
    staged_ = std::make_unique<Staged>(*comm(), *device(), attributes_.staging, direction);
}

bool WorkQueue::poll_gpu() {
  const auto moved = staged_->poll();
  fail(moved.status());
  return moved.ok() && *moved;
}

bool WorkQueue::stage_next(WorkRequest& work) {
  const auto taken = staged_->stage(work, work.staged);
  fail(taken.status());
  if (taken.ok()) work.staged += *taken;
  return taken.ok() && *taken != 0;
}

bool WorkQueue::may_close() {
  if (staged_ != nullptr) (void)poll_gpu();
  return staged_ == nullptr || staged_->is_quiet();
}

void WorkQueue::pop_order() {
  const std::shared_ptr<WorkRequest> work = std::move(requests_.front());
  requests_.pop_front();
  if (next_ != 0) --next_;
  const Status status = work->status;
  finish(*work, status);
}

// ---- SendQueue ----------------------------------------------------------------------------------

bool SendQueue::step() {
  if (comm_ == nullptr && !connect()) return false;
  const bool filled = staged_ != nullptr && fill();
  if (!good()) return filled;
  const bool begun = begin();
  return check_completions() || begun || filled;
}

bool SendQueue::connect() {
  if (attributes_.connect_by.passed()) fail(late("to the peer"));
  if (pending_connect_ == nullptr) {
    const auto listener = handle();
    if (!listener) return false;
    auto opened = PendingConnect::open(attributes_.plugin, attributes_.nic, *listener);
    if (!opened.ok()) return fail(opened.status()), false;
    pending_connect_ = *std::move(opened);
  }
  auto comm = pending_connect_->connect();
  fail(comm.status());
  if (comm.ok()) comm_ = *std::move(comm);
  if (comm_ == nullptr) return false;
  pending_connect_.reset();
  stage_if_needed(Staged::Direction::from_gpu);
  return true;
}

/// Fills all free staging buffers ahead of the sends.
bool SendQueue::fill() {
  bool moved = poll_gpu();
  while (good() && filling_ < requests_.size()) {
    WorkRequest& work = *requests_[filling_];
    if (work.send_empty || work.memory == nullptr || work.staged == work.messages.size())
      ++filling_;
    else if (!stage_next(work))
      break;
    moved = true;
  }
  return moved;
}

/// Returns none if a GPU still fills the buffer, or fail() was called.
std::optional<MessagePlace> SendQueue::next_place(const WorkRequest& work, bool empty) {
  std::optional<MessagePlace> place;
  if (work.begun < work.staged) {
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
    return MessagePlace{nothing_.data(), of_nothing_.get()};
  }
  if (place) return place;
  const Comm::CommRegistration* const from = registration(work.memory);
  if (from == nullptr) return std::nullopt;
  return MessagePlace{pointer(work.messages[work.begun].address), from};
}

bool SendQueue::begin() {
  bool moved = false;
  while (next_ < requests_.size()) {
    WorkRequest& work = *requests_[next_];
    if (work.begun == work.messages.size()) {
      ++next_;
      continue;
    }
    const WorkRequest::MessageBuffer& message = work.messages[work.begun];
    const bool empty = work.send_empty || work.memory == nullptr;
    const auto from = next_place(work, empty);
    if (!from) return moved;
    const Status sent =
        comm_->send(from->data, empty ? 0 : message.bytes, kTag, *from->memory, from->cookie);
    if (sent.code() == Code::no_resource) return moved;
    if (!sent.ok()) return fail(sent), moved;
    if (work.begun < work.staged) staged_->begun(empty);
    if (empty) work.status = Status(Code::canceled, Scope::request, "some of it was not sent");
    ++work.begun;
    moved = true;
  }
  return moved;
}

bool SendQueue::check_completions() {
  for (bool moved = false;; moved = true) {
    auto done = comm_->test();
    fail(done.status());
    if (!done.ok() || !*done) return moved;
    if ((*done)->cookie != 0) (void)staged_->done((*done)->cookie, true);
    WorkRequest& work = *requests_.front();
    count(work, work.messages[work.done].bytes);
    if (++work.done != work.messages.size()) continue;
    pop_order();
    if (filling_ != 0) --filling_;
  }
}

void SendQueue::close() {
  of_nothing_.reset();
  comm_.reset();
  pending_connect_.reset();
}

}  // namespace linkspan::transport::nccl_net
