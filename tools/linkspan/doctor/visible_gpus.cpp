#include "tools/linkspan/doctor/visible_gpus.hpp"

#include <algorithm>
#include <string_view>

#include "base/environment.hpp"
#include "tools/linkspan/command_line/verb.hpp"
#include "tools/linkspan/pair/child_process.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr const char* kVariable = "CUDA_VISIBLE_DEVICES";
constexpr Duration kListIn = 30s;  // cuInit of eight GPUs takes seconds

std::string list_of(const Gpus& gpus) {
  std::string out;
  for (unsigned gpu = 0; gpu < gpus.count(); ++gpu)
    out += (gpu == 0 ? "" : ", ") + std::to_string(gpu) + " (" + gpus.info(gpu).name + ", " +
           uuid_text(gpus.info(gpu).uuid) + ")";
  return out;
}

/// Returns the list of a process without the variable. Empty: no GPU, or the child failed.
std::string gpus_there_are() {
  const auto child = ChildProcess::spawn(kListGpus, kListIn, {kVariable});
  if (!child.ok()) return {};
  auto list = (*child)->call("list", kListIn);
  return list.ok() ? *std::move(list) : std::string();
}

}  // namespace

std::string uuid_text(const GpuUuid& uuid) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out = "GPU-";
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    const auto byte = std::to_integer<unsigned>(uuid[i]);
    out += kHex[byte >> 4];
    out += kHex[byte & 15];
  }
  return out;
}

int run_list_gpus() {
  serve_parent([](const std::string&) -> Result<std::string> { return list_of(Gpus::find()); });
  return kSuccess;
}

bool check_visible_gpus(Diagnosis& out, unsigned visible) {
  const char* const value = base::environment(kVariable);
  if (value == nullptr) return false;
  const std::string_view text(value);
  const auto named =
      static_cast<std::size_t>(std::count(text.begin(), text.end(), ',')) + (text.empty() ? 0 : 1);
  if (visible != 0 && visible >= named) return false;
  const std::string there = gpus_there_are();
  if (there.empty()) return false;
  out.add(out.gpu_problem(), "gpu", kVariable,
          std::string(kVariable) + "=\"" + value + "\" shows " +
              (visible == 0 ? "no GPU" : std::to_string(visible) + " of the GPUs that it names") +
              "; there are " + there,
          std::string("unset ") + kVariable +
              ", or set indices or UUIDs of these by comma: what "
              "follows one that is none is hidden too");
  return visible == 0;
}

}  // namespace linkspan::tool
