// Checks what the transports find, and what GPUDirect-TCPX needs: the plugin, the sockets of
// gpumemd, DMA-BUFs, devmem TCP in the kernel, interfaces, the plugin's environment.
#include <net/if.h>
#include <sys/socket.h>

#include <cerrno>
#include <filesystem>
#include <sstream>

#include "base/environment.hpp"
#include "base/fd.hpp"
#include "tools/linkspan/doctor/diagnosis.hpp"
#include "transport/registry.hpp"

namespace linkspan::tool {
namespace {

constexpr const char* kArea = "tcpx";
constexpr int kDontNeedUpstream = 80, kDontNeedTcpx = 97;  // SO_DEVMEM_DONTNEED

std::string variable(const char* name, const char* fallback) {
  const char* const value = base::environment(name);
  return value == nullptr || *value == '\0' ? fallback : value;
}

/// Adds what the transports find. Returns whether there is a plugin like TCPX, for which to look
/// further: that has version 7 alone.
bool check_plugin(Diagnosis& out) {
  const auto options = base::Options::from_environment();
  // The check of settings reports wrong ones.
  if (!options.ok() || !transport::check_options(*options).ok()) return false;
  bool present = false;
  for (const transport::Finding& each : transport::findings(*options)) {
    out.add(each.remedy.empty() ? Level::ok : Level::warn, each.area, each.name, each.found,
            each.remedy);
    present = present || (each.present && each.area == kArea);
  }
  return present;
}

/// One for each GPU, by which the plugin gets its receive pool.
void check_sockets(Diagnosis& out) {
  const std::string folder = variable("NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX", "/run/tcpx");
  std::size_t sockets = 0;
  std::error_code error;
  for (const auto& each : std::filesystem::directory_iterator(folder, error))
    if (each.path().filename().string().starts_with("get_gpu_fd_")) ++sockets;
  if (sockets != 0)
    out.ok(kArea, "gpumemd", std::to_string(sockets) + " GPUs served in " + folder);
  else
    out.add(Level::warn, kArea, "gpumemd", "no get_gpu_fd_* in " + folder,
            "start the service that serves the GPUs' receive pools (the container tcpgpudmarxd), "
            "or set NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX");
}

void check_dma_buf(Diagnosis& out, const Gpus& gpus) {
  if (gpus.count() == 0) return;  // the check of the GPUs reports it
  for (unsigned gpu = 0; gpu < gpus.count(); ++gpu) {
    const std::string name = "DMA-BUF of gpu" + std::to_string(gpu);
    if (gpus.info(gpu).dma_buf)
      out.ok(kArea, name, "can be exported; memory for TCPX begins at a multiple of 4096 bytes");
    else
      out.add(Level::warn, kArea, name, "this GPU's memory cannot be exported",
              "the open kernel modules of NVIDIA's driver export it; see also iommu=pt");
  }
}

/// Asked of the kernel itself: a socket option that it does not know is ENOPROTOOPT.
bool kernel_knows(const base::Fd& socket, int option) {
  const std::uint32_t none[2] = {0, 0};
  return ::setsockopt(socket.get(), SOL_SOCKET, option, none, sizeof none) == 0 ||
         errno != ENOPROTOOPT;
}

void check_kernel(Diagnosis& out) {
  const base::Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool tcpx = kernel_knows(socket, kDontNeedTcpx);
  const bool upstream = kernel_knows(socket, kDontNeedUpstream);
  if (tcpx || upstream)
    out.ok(kArea, "kernel",
           std::string("devmem TCP of ") + (tcpx ? "GPUDirect-TCPX" : "upstream Linux"));
  else
    out.add(Level::warn, kArea, "kernel", "knows no devmem TCP",
            "TCPX needs the kernel of its machine images; upstream receives since 6.12");
}

void check_interfaces(Diagnosis& out) {
  std::istringstream names(variable("NCCL_GPUDIRECTTCPX_SOCKET_IFNAME", ""));
  std::string missing, there;
  for (std::string name; std::getline(names, name, ',');)
    (::if_nametoindex(name.c_str()) == 0 ? missing : there) += " " + name;
  if (!missing.empty())
    out.add(Level::warn, kArea, "interfaces", "there is no" + missing,
            "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME names the data interfaces: `ip link` lists them");
  else if (there.empty())
    out.add(Level::warn, kArea, "interfaces", "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME is not set",
            "p2p/tcpx/run_tcpx_test.sh sets it and the rest of what the plugin needs");
  else
    out.ok(kArea, "interfaces", there.substr(1));
  if (variable("NCCL_DYNAMIC_CHUNK_SIZE", "").empty())
    out.add(Level::warn, kArea, "NCCL_DYNAMIC_CHUNK_SIZE", "is not set, and TCPX needs it",
            "set it to 524288");
}

}  // namespace

void check_tcpx(Diagnosis& out, const Gpus& gpus) {
  if (!check_plugin(out)) return;
  check_sockets(out);
  check_dma_buf(out, gpus);
  check_kernel(out);
  check_interfaces(out);
}

}  // namespace linkspan::tool
