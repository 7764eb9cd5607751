// tools/linkspan/doctor/visible_gpus.hpp - checks which GPUs CUDA_VISIBLE_DEVICES hides.
//
// The driver reads the variable once, so a child process without it lists the GPUs.
// Threads: the main thread.
#pragma once

#include <string>
#include <string_view>

#include "linkspan/types.hpp"
#include "tools/linkspan/doctor/diagnosis.hpp"

namespace linkspan::tool {

/// The hidden verb that the child runs.
inline constexpr std::string_view kListGpus = "--list-gpus";
int run_list_gpus();

/// Formats a UUID as nvidia-smi does: "GPU-...".
std::string uuid_text(const GpuUuid& uuid);
/// Adds a check if the variable names a GPU that this machine does not have. Returns true if it
/// hides all GPUs; the check then has the reason.
bool check_visible_gpus(Diagnosis& out, unsigned visible);

}  // namespace linkspan::tool
