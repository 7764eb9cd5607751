#include "bench/bare/relay_copy.hpp"

#include <algorithm>

namespace linkspan::bare {

Result<RelayCopy::Hop> RelayCopy::Hop::create(const cuda::Device& device) {
  auto scope = device.enter();
  if (!scope.ok()) return scope.status();
  auto stream = cuda::Stream::create(*scope);
  if (!stream.ok()) return stream.status();
  auto first = cuda::Event::create(*scope), second = cuda::Event::create(*scope);
  if (!first.ok()) return first.status();
  if (!second.ok()) return second.status();
  return Hop{&device, *std::move(stream), {*std::move(first), *std::move(second)}};
}

Result<std::unique_ptr<RelayCopy>> RelayCopy::create(const cuda::Device& device,
                                                     const cuda::Device& other) {
  auto fill = Hop::create(other), fetch = Hop::create(device), push = Hop::create(other);
  for (const auto* hop : {&fill, &fetch, &push})
    if (!hop->ok()) return hop->status();
  auto there = other.enter();
  if (!there.ok()) return there.status();
  auto slots = cuda::DeviceBuffer::create(*there, kSlots * kChunk);
  if (!slots.ok()) return slots.status();
  auto scope = device.enter();
  if (!scope.ok()) return scope.status();
  auto own = cuda::Stream::create(*scope);
  if (!own.ok()) return own.status();
  auto word = EndWord::create(*scope);
  if (!word.ok()) return word.status();
  return std::unique_ptr<RelayCopy>(new RelayCopy(device, *std::move(own), *std::move(word),
                                                  *std::move(slots), *std::move(fill),
                                                  *std::move(fetch), *std::move(push)));
}

Status RelayCopy::copy(Hop& hop, std::size_t slot, const cuda::Event& after, cuda::CUdeviceptr to,
                       cuda::CUdeviceptr from, std::size_t bytes) {
  const auto scope = hop.device->enter();
  if (!scope.ok()) return scope.status();
  if (Status s = hop.stream.wait_for(*scope, after); !s.ok()) return s;
  if (Status s = hop.stream.copy(*scope, to, from, bytes); !s.ok()) return s;
  return hop.done[slot].record(*scope, hop.stream.get());
}

Result<Duration> RelayCopy::run(cuda::CUdeviceptr to, cuda::CUdeviceptr to_of_other,
                                cuda::CUdeviceptr from, std::size_t bytes, SecondHop second,
                                Duration limit) {
  Hop& hop = second == SecondHop::fetched ? fetch_ : push_;
  const cuda::CUdeviceptr target = second == SecondHop::fetched ? to : to_of_other;
  auto scope = device_.enter();
  if (!scope.ok()) return scope.status();

  const auto begin = Clock::now();
  std::size_t done = bytes / 2;
  if (Status s = own_.copy(*scope, to, from, done); !s.ok()) return s;
  std::size_t slot = 0;
  for (std::size_t i = 0; done < bytes; ++i) {
    slot = i % kSlots;
    const std::size_t now = std::min(kChunk, bytes - done);
    const cuda::CUdeviceptr memory = slots_.address() + slot * kChunk;
    if (Status s = copy(fill_, slot, hop.done[slot], memory, from + done, now); !s.ok()) return s;
    if (Status s = copy(hop, slot, fill_.done[slot], target + done, memory, now); !s.ok()) return s;
    done += now;
  }
  if (Status s = own_.wait_for(*scope, hop.done[slot]); !s.ok()) return s;
  if (Status s = word_.write(*scope, own_, ++runs_); !s.ok()) return s;
  if (Status s = word_.wait(*scope, own_, runs_, begin + limit); !s.ok()) return s;
  return Duration(Clock::now() - begin);
}

}  // namespace linkspan::bare
