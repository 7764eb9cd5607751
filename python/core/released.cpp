// Leaving the interpreter's lock, and coming back before the interpreter ends.
#include <atomic>
#include <condition_variable>
#include <mutex>

#include "python/core/core.hpp"

namespace linkspan::python {
namespace {

std::atomic<bool> ending{false};

struct Outside {
  std::mutex mutex;
  std::condition_variable changed;
  int threads = 0;
};

/// Never destroyed: threads may be out when the process ends.
Outside& outside() {
  static Outside& all = *new Outside;
  return all;
}

void count(int more) {
  const std::lock_guard lock(outside().mutex);
  outside().threads += more;
  outside().changed.notify_all();
}

}  // namespace

Released::Released() {
  if (is_ending()) return;
  count(1);
  out_.emplace();
}

Released::~Released() {
  if (!out_) return;
  out_.reset();  // first the interpreter's lock
  count(-1);
}

void drain() {
  ending = true;
  const nb::gil_scoped_release release;
  std::unique_lock lock(outside().mutex);
  outside().changed.wait_for(lock, std::chrono::seconds(1), [] { return outside().threads == 0; });
}

bool is_ending() { return ending; }

}  // namespace linkspan::python
