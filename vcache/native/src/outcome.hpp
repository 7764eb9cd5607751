// vcache/native/src/outcome.hpp - how a step ended: CUDA's number and the words for last_error().
//
// Not a Status: callers of the C helper compare CUDA's own numbers.
// Threads: a value.
#pragma once

#include <string>

#include "cuda/driver.hpp"
#include "linkspan/nvlink_transfer.h"

namespace linkspan::nvlink {

struct [[nodiscard]] Outcome {
  int code = NVLINK_TRANSFER_OK;
  std::string text{};
  bool ok() const noexcept { return code == NVLINK_TRANSFER_OK; }
};

/// The driver's answer to `call`, which was made for `what`.
Outcome outcome(const cuda::Driver& driver, cuda::CUresult result, const char* call,
                const std::string& what);

/// The one callback; a null one is not called.
/// Threads: any thread.
void set_log(nvlink_transfer_log callback, void* user);
enum class Level : int { debug, info, warning, error };
void log(Level level, const std::string& text);

}  // namespace linkspan::nvlink
