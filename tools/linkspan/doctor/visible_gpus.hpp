// tools/linkspan/doctor/visible_gpus.hpp - what CUDA_VISIBLE_DEVICES hides, for `linkspan doctor`.
//
// The driver reads the variable once, so a child without it is asked which GPUs there are.
// Threads: the main thread.
#pragma once

#include <string>
#include <string_view>

#include "linkspan/types.hpp"
#include "tools/linkspan/doctor/diagnosis.hpp"

namespace linkspan::tool {

/// The hidden verb of that child.
inline constexpr std::string_view kListGpus = "--list-gpus";
int run_list_gpus();

/// "GPU-..." as nvidia-smi has it.
std::string uuid_text(const GpuUuid& uuid);
/// Adds a check if the variable names what is no GPU of this machine. True: it hides all GPUs, and
/// the check is the reason why there is none.
bool check_visible_gpus(Diagnosis& out, unsigned visible);

}  // namespace linkspan::tool
