#include "base/fork.hpp"

#if !defined(_WIN32)
#include <pthread.h>
#endif

#include <atomic>

namespace linkspan::base {
namespace {

std::atomic<unsigned> generation{0};  // forks between the first process and this one

unsigned now() noexcept {
#if !defined(_WIN32)
  static const int watched = ::pthread_atfork(
      nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(watched);
#endif
  return generation.load(std::memory_order_relaxed);
}

}  // namespace

ForkWatch::ForkWatch() noexcept : generation_(now()) {}

bool ForkWatch::forked() const noexcept {
  return generation.load(std::memory_order_relaxed) != generation_;
}

}  // namespace linkspan::base
