#include "bench/bare/end_word.hpp"

namespace linkspan::bare {
namespace {

constexpr unsigned kLooksPerQuery = 1u << 14;  // some 10 us: the clock and the driver are asked

}  // namespace

Status spin(const std::uint64_t* word, std::uint64_t value, const cuda::DeviceScope& scope,
            const cuda::Stream& stream, Clock::time_point limit) {
  for (unsigned looks = 1; __atomic_load_n(word, __ATOMIC_ACQUIRE) < value; ++looks) {
    if (looks % kLooksPerQuery != 0) continue;
    Status state = stream.query(scope);
    if (!state.ok() && state.code() != Code::pending) return state;
    if (Clock::now() > limit)
      return {Code::timed_out, Scope::request, "the bare copy did not end in time"};
  }
  return {};
}

Result<EndWord> EndWord::create(const cuda::DeviceScope& scope) {
  auto memory = cuda::PinnedBuffer::create(scope, sizeof(std::uint64_t));
  if (!memory.ok()) return memory.status();
  *reinterpret_cast<std::uint64_t*>(memory->data()) = 0;
  return EndWord(*std::move(memory));
}

}  // namespace linkspan::bare
