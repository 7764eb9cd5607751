// Checks two processes with an Engine each, as the doctor's last step. A path works if bytes have
// taken it.
#include <algorithm>
#include <string_view>

#include "tools/linkspan/doctor/diagnosis.hpp"
#include "tools/linkspan/measure/pair_run.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr const char* kArea = "2 processes";
constexpr Duration kLimit = 60s;

struct Try {
  Place from, to;
  Level if_not;
  const char* remedy;
};

std::vector<Try> tries(const Gpus& gpus, Level gpu_problem) {
  std::vector<Try> out = {
      {kShared, kShared, Level::fail,
       "memory of allocate_shared() must reach every peer: is a file descriptor held back "
       "(seccomp, "
       "an LSM)?"},
      {kHost, kHost, Level::warn,
       "see process_vm_readv above; memory of allocate_shared() needs no such right"}};
  constexpr const char* kIpc =
      "GPU memory of another process needs CUDA IPC: no memory pool or VMM memory, the same GPU "
      "driver in both containers, /dev/nvidia* in both";
  for (unsigned gpu = 0; gpu < std::min(gpus.count(), 2u); ++gpu)
    out.push_back({{.kind = MemoryKind::device},
                   {.kind = MemoryKind::device, .gpu = gpu},
                   gpu_problem,
                   kIpc});
  return out;
}

Status add_memories(TwoProcesses& both, const std::vector<Try>& all) {
  std::vector<Place> near, far;
  const auto once = [](std::vector<Place>& places, Place place) {
    if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
  };
  for (const Try& one : all) {
    once(near, one.from);
    once(far, one.to);
  }
  for (const Place place : near)
    if (Status s = both.add_local(place, kMinRegion); !s.ok()) return s;
  for (const Place place : far)
    if (Status s = both.add_remote(place, kMinRegion); !s.ok()) return s;
  return {};
}

}  // namespace

void check_two_processes(Diagnosis& out, const Gpus& gpus) {
  if (out.fails_in(kSettings)) return;  // no Engine opens
  const std::vector<Try> all = tries(gpus, out.gpu_problem());
  auto both = TwoProcesses::start(gpus);
  Status status = both.ok() ? add_memories(**both, all) : both.status();
  if (!status.ok()) {
    out.add(Level::fail, kArea, "start", status.what(),
            "the checks above say what is missing; LINKSPAN_LOG_LEVEL=DEBUG tells more");
    return;
  }
  PairRun run(**both, base::Deadline::in(kLimit));
  for (const Try& one : all) {
    const Pair pair = (*both)->pair(Op::write, one.from, one.to);
    const std::string name = title(one.from.name(), one.to.name(), Op::write);
    const auto path = run.explain(pair, kMinRegion);
    status = path.ok() ? run.verify_blocks(pair) : path.status();
    if (status.ok())
      out.ok(kArea, name, "verified, by " + path->path);
    else
      out.add(one.if_not, kArea, name, status.what(), one.remedy);
    if (!run.fatal_error().ok()) return;
  }
}

}  // namespace linkspan::tool
