#include "copy/completion_flag.hpp"

#include <atomic>

namespace linkspan::copy {
namespace {

// Bounds what FlagStream writes the flag of. Above the maximum, its 10 us until it has seen the
// event exceed the 4 us of the stalled copy engine (1 GiB 0.992 -> 0.996 of bare, H200).
constexpr std::uint64_t kMinFlagStreamBytes = 256u << 10, kMaxFlagStreamBytes = 64u << 20;

}  // namespace

Result<CompletionFlag> CompletionFlag::create(const cuda::DeviceScope& scope,
                                              const cuda::PinnedBuffer& memory, std::size_t offset,
                                              bool beside) {
  CompletionFlag flag(reinterpret_cast<std::uint64_t*>(memory.data() + offset),
                      memory.device_address() + offset);
  *flag.value_ = 0;
  if (!beside) return flag;
  auto stream = cuda::Stream::create(scope);
  if (!stream.ok()) return stream.status();
  auto event = cuda::Event::create(scope);
  if (!event.ok()) return event.status();
  flag.beside_.emplace(FlagStream{*std::move(stream), *std::move(event)});
  return flag;
}

std::uint64_t CompletionFlag::value() const noexcept {
  return std::atomic_ref(*value_).load(std::memory_order_acquire);
}

/// The order of event and write is a fact: Streams.AWriteValueIsBehindWhatItsEventIsBehind.
Status CompletionFlag::write(const cuda::DeviceScope& scope, cuda::Stream& queue,
                             std::uint64_t number, std::uint64_t bytes, bool alone) {
  const bool in_queue = bytes < kMinFlagStreamBytes || bytes >= kMaxFlagStreamBytes;
  if (alone || !beside_ || (in_queue && beside_->last <= value()))
    return queue.write_value(scope, address_, number);
  auto& [stream, event, last] = *beside_;
  last = number;
  Status status = event.record(scope, queue.get());
  if (status.ok()) status = stream.wait_for(scope, event);
  if (status.ok()) status = stream.write_value(scope, address_, number);
  return status;
}

Status CompletionFlag::query(const cuda::DeviceScope& scope) const {
  return beside_ ? beside_->stream.query(scope) : Status();
}

}  // namespace linkspan::copy
