#include "vcache/native/src/outcome.hpp"

#include <thread>

#include "base/mutex.hpp"

namespace linkspan::nvlink {
namespace {

struct Log {
  base::Mutex mutex;
  base::Condition changed;
  std::thread::id caller LINKSPAN_GUARDED_BY(mutex);  // runs the callback; empty: no thread does
  nvlink_transfer_log callback LINKSPAN_GUARDED_BY(mutex) = nullptr;
  void* user LINKSPAN_GUARDED_BY(mutex) = nullptr;
};

/// Returns the log. It is never destroyed, because transfers may end while the process does.
Log& the_log() {
  static Log& only = *new Log;
  return only;
}

/// Waits until no other thread runs the callback.
void await_others(Log& all) LINKSPAN_REQUIRES(all.mutex) {
  while (all.caller != std::thread::id() && all.caller != std::this_thread::get_id())
    all.changed.wait(all.mutex,
                     base::Deadline::after(base::Clock::steady(), std::chrono::seconds(60)));
}

}  // namespace

Outcome outcome(const cuda::Driver& driver, cuda::CUresult result, const char* call,
                const std::string& what) {
  if (result == cuda::CUDA_SUCCESS) return {};
  return {static_cast<int>(result), what + ": " + cuda::to_status(driver, result, call).what()};
}

void set_log(nvlink_transfer_log callback, void* user) {
  Log& all = the_log();
  const base::MutexLock lock(all.mutex);
  all.callback = callback;
  all.user = user;
  await_others(all);
}

void log(Level level, const char* text) {
  Log& all = the_log();
  const base::MutexLock lock(all.mutex);
  await_others(all);
  // Drops lines that the callback's own calls log, because it is called once at a time.
  if (all.callback == nullptr || all.caller != std::thread::id()) return;
  const auto callback = all.callback;
  void* const user = all.user;
  all.caller = std::this_thread::get_id();
  all.mutex.unlock();
  callback(static_cast<int>(level), text, user);
  all.mutex.lock();
  all.caller = {};
  all.changed.notify_all();
}

}  // namespace linkspan::nvlink
