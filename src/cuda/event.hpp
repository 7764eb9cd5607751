// cuda/event.hpp - CUevents without timing, which order one stream after another.
//
// Creating and destroying events takes driver locks, so transfers use a pool that is filled at
// set-up (docs/cuda_notes.md, "calls that synchronise"). A wait is for the last record before it:
// once the wait is submitted, the event can be recorded again.
// Threads: Event, PooledEvent: externally synchronised. EventPool: any thread.
// Invariants: the context in which an Event was created outlives it; a pool outlives its
// PooledEvents.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "cuda/device_scope.hpp"

namespace linkspan::cuda {

class Event {
 public:
  static Result<Event> create(const DeviceScope& scope);

  Event(Event&& other) noexcept
      : driver_(other.driver_),
        context_(other.context_),
        event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(context_, other.context_);
    std::swap(event_, other.event_);
    return *this;
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event();  // errors while the driver unloads are ignored

  CUevent get() const noexcept { return event_; }
  /// Records the event in `stream`, which must not be capturing: the waiting stream would join the
  /// capture (fact: Capture.AnEventRecordedInItPullsItsWaiterIn).
  Status record(const DeviceScope& scope, CUstream stream);
  /// Returns true once all work before the last record() is done, false while it runs. An error is
  /// that of the work, with Scope::process if the context is lost.
  Result<bool> done(const DeviceScope& scope) const;

 private:
  Event(const DeviceScope& scope, CUevent event) noexcept
      : driver_(&scope.driver()), context_(scope.context()), event_(event) {}

  const Driver* driver_;
  CUcontext context_;
  CUevent event_;  // null only after a move
};

class EventPool;

/// An Event that its destructor returns to the pool.
class PooledEvent {
 public:
  PooledEvent(PooledEvent&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), event_(std::move(other.event_)) {}
  PooledEvent& operator=(PooledEvent&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(event_, other.event_);
    return *this;
  }
  PooledEvent(const PooledEvent&) = delete;
  PooledEvent& operator=(const PooledEvent&) = delete;
  ~PooledEvent();

  Event& operator*() noexcept { return event_; }
  const Event& operator*() const noexcept { return event_; }
  Event* operator->() noexcept { return &event_; }
  const Event* operator->() const noexcept { return &event_; }

 private:
  friend class EventPool;
  PooledEvent(EventPool& pool, Event event) noexcept : pool_(&pool), event_(std::move(event)) {}

  EventPool* pool_;  // null only after a move
  Event event_;
};

/// A fixed number of events, made at set-up.
class EventPool {
 public:
  static Result<std::unique_ptr<EventPool>> create(const DeviceScope& scope, std::size_t events);

  /// Returns an idle event. no_resource: all are in use. Calls no driver.
  Result<PooledEvent> acquire() LINKSPAN_EXCLUDES(mutex_);

 private:
  friend class PooledEvent;
  EventPool() = default;
  void release(Event event) noexcept LINKSPAN_EXCLUDES(mutex_);

  base::Mutex mutex_;
  std::vector<Event> idle_
      LINKSPAN_GUARDED_BY(mutex_);  // capacity for all, so release() never allocates
};

}  // namespace linkspan::cuda
