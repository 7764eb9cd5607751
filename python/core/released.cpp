// Leaving the interpreter's lock, and coming back before the interpreter ends.
#include <atomic>
#include <condition_variable>
#include <mutex>

#include "python/core/core.hpp"

namespace linkspan::python {
namespace {

std::atomic<bool> ending{false};
std::atomic<int> outside{0};  // threads without the interpreter's lock

/// Used by drain() alone, so that no fork finds it locked. Never destroyed.
struct Back {
  std::mutex mutex;
  std::condition_variable changed;
};
Back& back() {
  static Back& one = *new Back;
  return one;
}

}  // namespace

Released::Released() {
  if (ending) return;
  ++outside;
  out_.emplace();
}

Released::~Released() {
  if (!out_) return;
  out_.reset();  // first the interpreter's lock
  --outside;
  if (!ending) return;
  const std::lock_guard lock(back().mutex);
  back().changed.notify_all();
}

void drain() {
  ending = true;
  const nb::gil_scoped_release release;
  std::unique_lock lock(back().mutex);
  back().changed.wait_for(lock, std::chrono::seconds(1), [] { return outside <= 0; });
}

void forget_threads() { outside = 0; }

bool is_ending() { return ending; }

bool handle_signals() {
  if (ending) return true;
  const nb::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

}  // namespace linkspan::python
