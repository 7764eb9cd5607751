// cuda/event.hpp - CUevents without timing, which order one stream after another.
//
// Creating and destroying acquire driver locks, so events come from a pool that is filled at set-up
// (docs/cuda_notes.md, "calls that synchronise"). A wait takes an event as it was last recorded at
// that moment: once the wait was submitted the event can be recorded anew.
// Threads: Event, PooledEvent: externally synchronised. EventPool: any thread.
// Invariants: the context that an Event was created in outlives it, a pool its PooledEvents.
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
  ~Event();  // silent while the driver unloads

  CUevent get() const noexcept { return event_; }
  /// Never on a stream that captures: the waiting stream would be pulled into the capture (fact:
  /// Capture.AnEventRecordedInItPullsItsWaiterIn).
  Status record(const DeviceScope& scope, CUstream stream);
  /// True once all work before the last record() is done; false while it runs. An error is that
  /// work's error, with Scope::process when the context is lost.
  Result<bool> done(const DeviceScope& scope) const;

 private:
  Event(const DeviceScope& scope, CUevent event) noexcept
      : driver_(&scope.driver()), context_(scope.context()), event_(event) {}

  const Driver* driver_;
  CUcontext context_;
  CUevent event_;  // null only after a move
};

class EventPool;

/// An Event on loan: it goes back to its pool when this ends.
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

class EventPool {
 public:
  static Result<std::unique_ptr<EventPool>> create(const DeviceScope& scope, std::size_t events);
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;
  ~EventPool() = default;

  /// no_resource: all are out. Calls no driver.
  Result<PooledEvent> acquire() LINKSPAN_EXCLUDES(mutex_);

 private:
  friend class PooledEvent;
  EventPool() = default;
  void release(Event event) noexcept LINKSPAN_EXCLUDES(mutex_);

  base::Mutex mutex_;
  std::vector<Event> idle_ LINKSPAN_GUARDED_BY(mutex_);  // has room for all, so that none allocates
};

}  // namespace linkspan::cuda
