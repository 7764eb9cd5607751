// vcache/native/tests/lender.hpp - a second process, which exports memory of its GPUs by CUDA
// IPC handles, and calls libnvlink_transfer.so itself on request.
//
// Threads: externally synchronised, but kill(): any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "linkspan/nvlink_transfer.h"
#include "tests/support/pattern.hpp"
#include "tests/support/process.hpp"

namespace linkspan::test {

using IpcBytes = std::vector<unsigned char>;

/// One side of perform_direct_transfer(). Without a handle the pointer is used.
struct Side {
  int gpu = 0;
  std::uint64_t pointer = 0;
  IpcBytes handle = {};
  std::uint64_t offset = 0;
};
struct Request {
  Side from, to;
  std::uint64_t bytes = 0;
  void* stream = nullptr;
};
/// Call perform_direct_transfer() and nvlink_transfer_begin() in this process.
int transfer(const Request& request);
int begin(const Request& request, std::uint64_t* id, std::uint32_t timeout_ms = 0);
nvlink_transfer_stats_t stats();

class Lender {
 public:
  explicit Lender(const std::vector<std::string>& environment = {});

  /// Allocates memory on its GPU, fills it with the pattern of `seed` and guards it like any
  /// Buffer. The handle stands for all of it.
  IpcBytes lend(const std::string& name, int gpu, std::uint64_t bytes, std::uint64_t seed);
  void fill(const std::string& name, std::uint64_t seed);
  void free(const std::string& name);
  std::string difference(const std::string& name, std::uint64_t seed,
                         std::span<const Expected> expected);

  /// The results of its own calls, in order.
  struct Told {
    std::vector<int> codes;
    std::string last_error;
    std::vector<std::string> logged;  ///< by its log callback, "level text"
    std::uint64_t staged;
  };
  Told transfer(const std::vector<Request>& requests);
  /// Begins the request in four parts without waiting. Returns the code of the last part.
  int begin_and_leave(const Request& request);

  bool lives() const noexcept { return lives_; }
  void kill() {
    lives_ = false;
    child_->kill();
  }

 private:
  Json call(const Json& request);

  const std::unique_ptr<Child> child_;
  std::atomic<bool> lives_ = true;
};

}  // namespace linkspan::test
