// Checks the GPUs for the doctor: the driver, each GPU with its kernels, each link by a copy.
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/options.hpp"
#include "bench/bare/gpu_copy.hpp"
#include "bench/bare/machine.hpp"
#include "cuda/memory.hpp"
#include "tools/linkspan/command_line/table.hpp"
#include "tools/linkspan/doctor/diagnosis.hpp"
#include "tools/linkspan/doctor/visible_gpus.hpp"
#include "tools/linkspan/measure/report_text.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kProbeBytes = 4096;
constexpr std::size_t kPinBytes = std::size_t{32} << 20;
constexpr Duration kCopyLimit = 5s;
constexpr const char* kDeviceNode = "/dev/nvidiactl";

void check_gpu(Diagnosis& out, const Gpus& gpus, unsigned gpu) {
  const cuda::DeviceInfo& info = gpus.info(gpu);
  const std::string name = "gpu" + std::to_string(gpu);
  const std::string found = info.name + ", " + uuid_text(info.uuid) + ", PCI " + info.bus_id +
                            ", " + std::to_string(info.memory_bytes >> 20) +
                            " MiB, compute capability " + std::to_string(info.sm / 10) + '.' +
                            std::to_string(info.sm % 10);
  const auto device = gpus.device(gpu);
  if (!device.ok()) {
    out.add(out.gpu_problem(), "gpu", name, found + "; does not come up: " + device.status().what(),
            "see nvidia-smi: memory that is full, exclusive compute mode, or a GPU in error; "
            "CUDA_VISIBLE_DEVICES leaves it out");
    return;
  }
  out.ok("gpu", name, found);
  if ((*device)->kernels().ok())
    out.ok("gpu", name + " kernel", "the copy kernel is loaded");
  else
    out.add(out.gpu_problem(), "gpu", name + " kernel", (*device)->kernels().what(),
            "many small blocks go one by one without it: build where `./dev setup` could fetch "
            "NVRTC");
}

/// Copies kProbeBytes from one GPU to the other; fills and verifies them through pinned memory.
Status copy_over(const cuda::Device& from, const cuda::Device& to) {
  const auto here = from.enter();
  if (!here.ok()) return here.status();
  auto source = cuda::DeviceBuffer::create(*here, kProbeBytes);
  if (!source.ok()) return source.status();
  auto staging = cuda::PinnedBuffer::create(*here, 2 * kProbeBytes);
  if (!staging.ok()) return staging.status();
  auto copy = bare::GpuCopy::create(from);
  if (!copy.ok()) return copy.status();
  const auto there = to.enter();
  if (!there.ok()) return there.status();
  auto target = cuda::DeviceBuffer::create(*there, kProbeBytes);
  if (!target.ok()) return target.status();
  auto back = bare::GpuCopy::create(to);
  if (!back.ok()) return back.status();

  std::byte* sent = staging->data();
  std::byte* got = sent + kProbeBytes;
  for (std::size_t i = 0; i < kProbeBytes; ++i) sent[i] = static_cast<std::byte>(i * 7 + i / 256);
  const cuda::CUdeviceptr host = staging->device_address();
  for (const auto& run :
       {(*copy)->run({source->address(), host}, kProbeBytes, kCopyLimit),
        (*copy)->run({target->address(), source->address()}, kProbeBytes, kCopyLimit),
        (*back)->run({host + kProbeBytes, target->address()}, kProbeBytes, kCopyLimit)})
    if (!run.ok()) return run.status();
  if (std::memcmp(sent, got, kProbeBytes) == 0) return {};
  return {Code::corrupt, Scope::transport, "the bytes that arrived are not those that were sent"};
}

void check_link(Diagnosis& out, const Gpus& gpus, unsigned from, unsigned to) {
  const std::string name = "gpu" + std::to_string(from) + " -> gpu" + std::to_string(to);
  const auto source = gpus.device(from), target = gpus.device(to);
  if (!source.ok() || !target.ok()) return;  // check_gpu has reported it
  const auto peer = bare::can_access_peer(**source, **target);
  const Status copied = copy_over(**source, **target);
  const std::string access = !peer.ok() ? "peer access unknown (" + peer.status().what() + ")"
                             : *peer    ? "peer access"
                                        : "no peer access";
  if (!copied.ok())
    out.add(out.gpu_problem(), "link", name, access + "; a copy of 4 KiB: " + copied.what(),
            "see `nvidia-smi topo -p2p rw` and the kernel's log for Xid");
  else if (peer.ok() && *peer)
    out.ok("link", name, access + "; 4 KiB arrived");
  else
    out.add(
        Level::warn, "link", name, access + "; 4 KiB arrived by host memory",
        "see `nvidia-smi topo -p2p rw`: NVLink, or PCIe without ACS between them, gives access");
}

void check_pinning(Diagnosis& out, const cuda::Device& device) {
  const auto scope = device.enter();
  if (!scope.ok()) return;  // check_gpu has reported it
  std::vector<std::byte> memory(kPinBytes);
  const auto pinned = cuda::HostRegistration::create(*scope, memory.data(), memory.size());
  if (!pinned.ok()) {
    out.add(out.gpu_problem(), "gpu", "pinning", "32 MiB: " + pinned.status().what(),
            "raise RLIMIT_MEMLOCK (`ulimit -l unlimited`), or free host memory");
    return;
  }
  rlimit locked{};
  ::getrlimit(RLIMIT_MEMLOCK, &locked);
  out.ok("gpu", "pinning",
         std::string("the driver pins 32 MiB of host memory") +
             (locked.rlim_cur < kPinBytes ? ", above RLIMIT_MEMLOCK" : ""));
}

void check_mps(Diagnosis& out, unsigned gpus) {
  const char* set = base::environment("CUDA_MPS_PIPE_DIRECTORY");
  const std::string pipe =
      std::string(set != nullptr && *set != '\0' ? set : "/tmp/nvidia-mps") + "/control";
  struct stat facts {};
  if (::stat(pipe.c_str(), &facts) == 0)
    out.ok("gpu", "MPS", "its control pipe " + pipe + " is there");
  else if (gpus > 1)
    out.ok("gpu", "MPS", "not running: only processes that share a GPU would need it");
  else
    out.add(Level::warn, "gpu", "MPS",
            "not running: kernels of two processes on this one GPU take turns of milliseconds",
            "start `nvidia-cuda-mps-control -d` before them");
}

}  // namespace

void check_gpus(Diagnosis& out, const Gpus& gpus) {
  const bool hidden = check_visible_gpus(out, gpus.count());
  if (gpus.count() == 0) {
    if (hidden) return;
    struct stat node {};
    const bool module = ::stat(kDeviceNode, &node) == 0;
    out.add(out.gpu_problem(), "driver", "CUDA",
            gpus.why().what() + (module ? "; its kernel module is loaded" : ""),
            module ? std::string("the module's own libcuda.so.1 must be found: in a container "
                                 "NVIDIA_DRIVER_CAPABILITIES=compute,utility passes it in, else "
                                 "LINKSPAN_CUDA_LIBRARY names it")
                   : gpu_remedy());
    return;
  }
  const bare::Machine machine = bare::describe_machine(gpus.topology());
  out.ok("driver", "CUDA",
         machine.driver_file + ", driver " + (machine.driver.empty() ? "unknown" : machine.driver) +
             ", CUDA " + machine.cuda);
  for (unsigned gpu = 0; gpu < gpus.count(); ++gpu) check_gpu(out, gpus, gpu);
  for (unsigned from = 0; from < gpus.count(); ++from)
    for (unsigned to = 0; to < gpus.count(); ++to)
      if (from != to) check_link(out, gpus, from, to);
  if (const auto device = gpus.device(0); device.ok()) check_pinning(out, **device);
  check_mps(out, gpus.count());
}

}  // namespace linkspan::tool
