#include "bench/bare/cpu_copy.hpp"

#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <system_error>

namespace linkspan::bare {

CpuCopy::CpuCopy(unsigned threads) {
  for (unsigned i = 1; i < threads; ++i) threads_.emplace_back([this] { serve(); });
}

CpuCopy::~CpuCopy() {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  changed_.notify_all();
}

Result<Duration> CpuCopy::run(void* to, const void* from, std::size_t bytes) {
  return run_chunks(bytes, "memcpy", [=](std::size_t offset, std::size_t count) {
    std::memcpy(static_cast<std::byte*>(to) + offset, static_cast<const std::byte*>(from) + offset,
                count);
    return 0;
  });
}

Result<Duration> CpuCopy::run_across(pid_t pid, bool read, void* ours, std::uint64_t theirs,
                                     std::size_t bytes) {
  const auto call = read ? ::process_vm_readv : ::process_vm_writev;
  const auto chunk = [=](std::size_t offset, std::size_t count) {
    while (count != 0) {
      const iovec here{static_cast<std::byte*>(ours) + offset, count};
      // NOLINTNEXTLINE(performance-no-int-to-ptr)
      const iovec there{reinterpret_cast<void*>(theirs + offset), count};
      const ssize_t moved = call(pid, &here, 1, &there, 1, 0);
      if (moved <= 0) return moved == 0 ? EFAULT : errno;
      offset += static_cast<std::size_t>(moved);
      count -= static_cast<std::size_t>(moved);
    }
    return 0;
  };
  return run_chunks(bytes, read ? "process_vm_readv" : "process_vm_writev", chunk);
}

Result<Duration> CpuCopy::run_chunks(std::size_t bytes, const char* call, const Chunk& chunk) {
  const auto begin = std::chrono::steady_clock::now();
  Job job{.chunk = chunk, .bytes = bytes};
  if (bytes > kChunkBytes && !threads_.empty()) {
    const std::lock_guard lock(mutex_);
    job_ = &job;
    ++jobs_;
    changed_.notify_all();
  }
  work(job);
  {
    std::unique_lock lock(mutex_);
    job_ = nullptr;
    changed_.wait(lock, [&] { return job.working == 0; });
  }
  const Duration took = std::chrono::steady_clock::now() - begin;
  if (job.error == 0) return took;
  return Status(Code::system, Scope::request,
                std::string(call) + ": " + std::generic_category().message(job.error));
}

void CpuCopy::work(Job& job) {
  for (;;) {
    const std::size_t offset = job.next.fetch_add(kChunkBytes);
    if (offset >= job.bytes || job.error != 0) return;
    const int error = job.chunk(offset, std::min(kChunkBytes, job.bytes - offset));
    if (error != 0) job.error = error;
  }
}

void CpuCopy::serve() {
  std::uint64_t served = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || (job_ != nullptr && jobs_ != served); });
    if (stop_) return;
    served = jobs_;
    Job& job = *job_;
    ++job.working;
    lock.unlock();
    work(job);
    lock.lock();
    --job.working;
    changed_.notify_all();
  }
}

}  // namespace linkspan::bare
