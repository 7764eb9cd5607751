#include "bench/bare/machine.hpp"

#include <dlfcn.h>
#include <sys/utsname.h>

#include <fstream>
#include <thread>

namespace linkspan::bare {

Machine describe_machine(const cuda::Topology* topology) {
  Machine out;
  out.cpus = std::thread::hardware_concurrency();
  utsname name{};
  if (::uname(&name) == 0) out.kernel = name.release;
  if (topology == nullptr) return out;
  for (const cuda::DeviceInfo& info : topology->devices()) out.gpus.push_back(info.name);
  std::ifstream("/sys/module/nvidia/version") >> out.driver;
  int version = 0;  // 13000 for 13.0
  if (topology->driver().cuDriverGetVersion(&version) == cuda::CUDA_SUCCESS)
    out.cuda = std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  Dl_info loaded{};
  const auto entry = reinterpret_cast<const void*>(topology->driver().cuInit);
  if (::dladdr(entry, &loaded) != 0) out.driver_file = loaded.dli_fname;
  return out;
}

Result<bool> can_access_peer(const cuda::Device& from, const cuda::Device& to) {
  const auto outside = cuda::DeviceScope::without_context(from.driver());
  if (!outside.ok()) return outside.status();
  int can = 0;
  const auto result =
      from.driver().cuDeviceCanAccessPeer(&can, from.info().ordinal, to.info().ordinal);
  if (result != cuda::CUDA_SUCCESS)
    return cuda::to_status(from.driver(), result, "cuDeviceCanAccessPeer");
  return can != 0;
}

}  // namespace linkspan::bare
