#include "tests/faults/usage.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "tests/support/driver_entries.hpp"
#include "tests/support/kinds.hpp"
#include "tests/support/take.hpp"

namespace linkspan::test {
namespace {

constexpr std::uint64_t kGranule = 2u << 20;

std::uint64_t entries(const char* folder) {
  const auto found = std::filesystem::directory_iterator(folder);
  return static_cast<std::uint64_t>(std::distance(begin(found), end(found)));
}

/// Threads that an Engine starts when it first needs one, and keeps: which kill, copy or line of
/// the log is the first to need it is left to chance. Their own tests count them.
constexpr const char* kStartedLate[] = {"ls-closer", "ls-destroyer", "ls-copy",
                                        "ls-log",    "ls-opener",    "ls-verbs"};

std::vector<std::string> threads() {
  std::vector<std::string> all;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (!std::ranges::count(kStartedLate, name)) all.push_back(name);
  }
  return all;
}

std::uint64_t granules() {
  if (topology() == nullptr) return 0;
  using MemGetInfo = cuda::CUresult (*)(std::size_t * free, std::size_t * total);
  static const auto ask = reinterpret_cast<MemGetInfo>(cuda::driver_entry("cuMemGetInfo", 3020));
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
  const std::vector<std::string> running = test::threads();
  Usage usage{.fds = entries("/proc/self/fd"),
              .threads = running.size(),
              .mappings = 0,
              .granules = test::granules(),
              .balance = {},
              .names = {}};
  for (const std::string& name : running) usage.names += name + " ";
  if (const DriverShim shim = DriverShim::find()) usage.balance = shim.balance();
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
    Usage next = now();
    for (auto& [name, count] : next.balance) count = std::min(count, least.balance[name]);
    least = {.fds = std::min(least.fds, next.fds),
             .threads = std::min(least.threads, next.threads),
             .mappings = std::min(least.mappings, next.mappings),
             .granules = std::min(least.granules, next.granules),
             .balance = std::move(next.balance),
             .names = next.threads <= least.threads ? next.names : least.names};
  }
  return least;
}

void Usage::allow_staging(std::uint64_t lanes, std::uint64_t slots) {
  fds += lanes;
  threads += lanes;
  mappings += 2 * lanes + slots;
  granules += lanes;
  for (auto& [name, count] : balance) {
    if (name == "streams" || name == "device allocations") count += static_cast<long long>(lanes);
    if (name == "host allocations") count += static_cast<long long>(slots);
  }
}

std::uint64_t Usage::above(const Usage& before) const {
  const auto more = [](std::uint64_t mine, std::uint64_t other) {
    return mine > other ? mine - other : 0;
  };
  const std::uint64_t slack = balance.empty() ? 0 : kGranulesOfTheDriver;
  std::uint64_t all = more(fds, before.fds) + more(threads, before.threads) +
                      more(mappings, before.mappings) + more(granules, before.granules + slack);
  for (const auto& [name, count] : balance) {
    const auto found = before.balance.find(name);
    const long long held = found != before.balance.end() ? found->second : 0;
    all += static_cast<std::uint64_t>(std::max(count - held, 0ll));
  }
  return all;
}

std::string Usage::to_string() const {
  std::string text = std::to_string(fds) + " fds, " + std::to_string(threads) + " threads ( " +
                     names + "), " + std::to_string(mappings) + " shared mappings, " +
                     std::to_string(granules) + " granules of 2 MiB on GPUs";
  for (const auto& [name, count] : balance)
    if (count != 0) text += ", " + std::to_string(count) + " " + name;
  return text;
}

}  // namespace linkspan::test
