#include "api/nvlink_transfer/outcome.hpp"

#include "base/mutex.hpp"

namespace linkspan::nvlink {
namespace {

struct Log {
  base::Mutex mutex;  // held during a call: so that set_log() knows when the old one is done
  nvlink_transfer_log callback LINKSPAN_GUARDED_BY(mutex) = nullptr;
  void* user LINKSPAN_GUARDED_BY(mutex) = nullptr;
};

/// Never destroyed: transfers may end while the process does.
Log& the_log() {
  static Log& only = *new Log;
  return only;
}

}  // namespace

Outcome outcome(const cuda::Driver& driver, cuda::CUresult result, const char* call,
                const std::string& what) {
  if (result == cuda::CUDA_SUCCESS) return {};
  return {static_cast<int>(result), what + ": " + cuda::to_status(driver, result, call).what()};
}

void set_log(nvlink_transfer_log callback, void* user) {
  const base::MutexLock lock(the_log().mutex);
  the_log().callback = callback;
  the_log().user = user;
}

void log(Level level, const std::string& text) {
  const base::MutexLock lock(the_log().mutex);
  if (the_log().callback != nullptr)
    the_log().callback(static_cast<int>(level), text.c_str(), the_log().user);
}

}  // namespace linkspan::nvlink
