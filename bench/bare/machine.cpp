#include "bench/bare/machine.hpp"

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
  return out;
}

}  // namespace linkspan::bare
