// bench/bare/cpu_copy.hpp - the least that a copy by CPU threads can cost: the ceiling.
//
// Each thread takes a chunk, copies it, takes the next; the caller is one of them. A copy of one
// chunk or less is the caller's alone.
// Threads: externally synchronised. Its threads live as long as it does.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "linkspan/status.hpp"
#include "linkspan/types.hpp"

namespace linkspan::bare {

class CpuCopy {
 public:
  static constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

  explicit CpuCopy(unsigned threads);
  ~CpuCopy();
  CpuCopy(const CpuCopy&) = delete;
  CpuCopy& operator=(const CpuCopy&) = delete;

  /// memcpy. From the call to the return.
  Result<Duration> run(void* to, const void* from, std::size_t bytes);
  /// process_vm_readv from the address `theirs` of process `pid`, or process_vm_writev to it.
  Result<Duration> run_across(pid_t pid, bool read, void* ours, std::uint64_t theirs,
                              std::size_t bytes);

 private:
  /// Copies `bytes` bytes at `offset`; zero or an errno.
  using Chunk = std::function<int(std::size_t offset, std::size_t bytes)>;
  struct Job {
    const Chunk& chunk;
    const std::size_t bytes;
    std::atomic<std::size_t> next{0};
    std::atomic<int> error{0};
    unsigned working = 0;  // under mutex_
  };

  Result<Duration> run_chunks(std::size_t bytes, const char* call, const Chunk& chunk);
  static void work(Job& job);
  void serve();

  std::mutex mutex_;
  std::condition_variable changed_;
  // Under mutex_:
  Job* job_ = nullptr;  // null: no work, or all chunks are taken
  std::uint64_t jobs_ = 0;
  bool stop_ = false;
  std::vector<std::jthread> threads_;  // last: they use all of the above
};

}  // namespace linkspan::bare
