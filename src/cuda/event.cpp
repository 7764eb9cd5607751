#include "cuda/event.hpp"

namespace linkspan::cuda {

Result<Event> Event::create(const DeviceScope& scope) {
  CUevent event = nullptr;
  const CUresult r = scope.driver().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  if (r != CUDA_SUCCESS) return to_status(scope.driver(), r, "cuEventCreate");
  return Event(scope, event);
}

Event::~Event() {
  if (event_ == nullptr) return;
  const Result<DeviceScope> scope = DeviceScope::enter(*driver_, context_);
  if (scope.ok()) driver_->cuEventDestroy(event_);
}

Status Event::record(const DeviceScope& scope, CUstream stream) {
  return to_status(scope.driver(), scope.driver().cuEventRecord(event_, stream), "cuEventRecord");
}

Result<bool> Event::done(const DeviceScope& scope) const {
  const CUresult r = scope.driver().cuEventQuery(event_);
  if (r == CUDA_ERROR_NOT_READY) return false;
  if (r != CUDA_SUCCESS) return to_status(scope.driver(), r, "cuEventQuery");
  return true;
}

PooledEvent::~PooledEvent() {
  if (pool_ != nullptr) pool_->release(std::move(event_));
}

Result<std::unique_ptr<EventPool>> EventPool::create(const DeviceScope& scope, std::size_t events) {
  std::unique_ptr<EventPool> pool(new EventPool);
  const base::MutexLock lock(pool->mutex_);
  pool->idle_.reserve(events);
  while (pool->idle_.size() < events) {
    auto event = Event::create(scope);
    if (!event.ok()) return event.status();
    pool->idle_.push_back(*std::move(event));
  }
  return pool;
}

Result<PooledEvent> EventPool::acquire() {
  const base::MutexLock lock(mutex_);
  if (idle_.empty()) return Status::no_resource();
  Event event = std::move(idle_.back());
  idle_.pop_back();
  return PooledEvent(*this, std::move(event));
}

void EventPool::release(Event event) noexcept {
  const base::MutexLock lock(mutex_);
  idle_.push_back(std::move(event));
}

}  // namespace linkspan::cuda
