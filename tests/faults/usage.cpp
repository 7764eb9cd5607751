#include "tests/faults/usage.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/kinds.hpp"
#include "tests/support/take.hpp"

namespace linkspan::test {
namespace {

constexpr std::uint64_t kGranule = 2u << 20;

std::uint64_t entries(const char* folder) {
  const auto found = std::filesystem::directory_iterator(folder);
  return static_cast<std::uint64_t>(std::distance(begin(found), end(found)));
}

/// The driver's cuMemGetInfo, which the library does not call.
using MemGetInfo = cuda::CUresult (*)(std::size_t* free, std::size_t* total);
MemGetInfo mem_get_info() {
  const char* file = std::getenv("LINKSPAN_CUDA_LIBRARY");
  void* library = dlopen(file != nullptr ? file : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  const auto get = reinterpret_cast<cuda::GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
  void* entry = nullptr;
  cuda::CUdriverProcAddressQueryResult status{};
  constexpr int kVersion = 3020;
  if (get == nullptr || get("cuMemGetInfo", &entry, kVersion, 0, &status) != cuda::CUDA_SUCCESS)
    return nullptr;
  return reinterpret_cast<MemGetInfo>(entry);
}

std::uint64_t granules() {
  if (topology() == nullptr) return 0;
  static const MemGetInfo ask = mem_get_info();
  if (ask == nullptr) throw std::runtime_error("the driver has no cuMemGetInfo");
  std::uint64_t used = 0;
  for (const cuda::Device* device : topology()->all_active()) {
    const cuda::DeviceScope scope = take(device->enter());
    std::size_t free = 0, total = 0;
    if (ask(&free, &total) != cuda::CUDA_SUCCESS) throw std::runtime_error("cuMemGetInfo failed");
    used += (total - free) / kGranule;
  }
  return used;
}

}  // namespace

Usage Usage::now() {
  Usage usage{.fds = entries("/proc/self/fd"),
              .threads = entries("/proc/self/task"),
              .mappings = 0,
              .granules = test::granules()};
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const auto rights = line.find(' ') + 1;  // "7f00-7f01 rw-s ..."
    usage.mappings += line.compare(rights + 3, 1, "s") == 0 ? 1 : 0;
  }
  return usage;
}

Usage Usage::lowest(Duration time, const Usage& enough) {
  const auto limit = base::Deadline::after(base::Clock::steady(), time);
  Usage least = now();
  while (!limit.passed() && least.above(enough) != 0) {
    std::this_thread::yield();
    const Usage next = now();
    least = {.fds = std::min(least.fds, next.fds),
             .threads = std::min(least.threads, next.threads),
             .mappings = std::min(least.mappings, next.mappings),
             .granules = std::min(least.granules, next.granules)};
  }
  return least;
}

std::uint64_t Usage::above(const Usage& before) const {
  const auto more = [](std::uint64_t mine, std::uint64_t other) {
    return mine > other ? mine - other : 0;
  };
  return more(fds, before.fds) + more(threads, before.threads) + more(mappings, before.mappings) +
         more(granules, before.granules);
}

std::string Usage::to_string() const {
  return std::to_string(fds) + " fds, " + std::to_string(threads) + " threads, " +
         std::to_string(mappings) + " shared mappings, " + std::to_string(granules) +
         " granules of 2 MiB on GPUs";
}

}  // namespace linkspan::test
