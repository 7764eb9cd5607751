// vcache/native/src/outcome.hpp - the result of a step: CUDA's code, and the text for last_error().
//
// Not a Status, because callers of the C library compare CUDA's codes.
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

/// Makes the Outcome of the driver call `call`, which was made for `what`.
Outcome outcome(const cuda::Driver& driver, cuda::CUresult result, const char* call,
                const std::string& what);

/// Sets the one log callback; null disables it.
/// Threads: any thread.
void set_log(nvlink_transfer_log callback, void* user);
enum class Level : int { debug, info, warning, error };
void log(Level level, const char* text);

}  // namespace linkspan::nvlink
