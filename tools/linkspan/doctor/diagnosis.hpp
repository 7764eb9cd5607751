// tools/linkspan/doctor/diagnosis.hpp - the results of `linkspan doctor`: checks, each with its
// remedy.
//
// Separate functions check the host, its network, its GPUs, and two processes that move bytes.
// Threads: externally synchronised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/linkspan/pair/memories.hpp"

namespace linkspan::tool {

/// fail: linkspan does not work here, or not as requested. warn: some of its paths do not work.
enum class Level : std::uint8_t { ok, warn, fail };
const char* name_of(Level level) noexcept;  ///< "ok", "warn", "FAIL"

struct Check {
  Level level;
  std::string area, name, found;
  std::string remedy;  ///< Empty: none is needed.
};

inline constexpr const char* kSettings = "settings";  ///< The area of check_settings().

class Diagnosis {
 public:
  /// With `gpu_required`, problems of GPUs are failures, else warnings.
  explicit Diagnosis(bool gpu_required) : gpu_problem_(gpu_required ? Level::fail : Level::warn) {}

  void ok(std::string area, std::string name, std::string found) {
    add(Level::ok, std::move(area), std::move(name), std::move(found), {});
  }
  void add(Level level, std::string area, std::string name, std::string found, std::string remedy) {
    checks_.push_back(
        {level, std::move(area), std::move(name), std::move(found), std::move(remedy)});
  }
  Level gpu_problem() const noexcept { return gpu_problem_; }

  const std::vector<Check>& checks() const noexcept { return checks_; }
  std::size_t count(Level level) const;
  bool fails_in(const std::string& area) const;
  std::string text() const;
  std::string json(const std::string& command) const;

 private:
  const Level gpu_problem_;
  std::vector<Check> checks_;
};

void check_host(Diagnosis& out);
void check_settings(Diagnosis& out);
/// Checks what fast TCP to other hosts needs.
void check_network(Diagnosis& out);
void check_gpus(Diagnosis& out, const Gpus& gpus);
/// Checks what network plugins of NCCL, GPUDirect-TCPX and RDMA need. Having none is not a problem.
void check_tcpx(Diagnosis& out, const Gpus& gpus);
/// Starts a second process with an Engine, and verifies bytes on each path once.
void check_two_processes(Diagnosis& out, const Gpus& gpus);

}  // namespace linkspan::tool
