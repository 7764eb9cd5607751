#include "bench/lender.hpp"

#include <span>
#include <sstream>
#include <string>

#include "cuda/stream.hpp"
#include "tools/linkspan/pair/data.hpp"

namespace linkspan::bench {
namespace {

using namespace std::chrono_literals;

}  // namespace

Result<GpuMemory> GpuMemory::create(const cuda::Device& device, std::uint64_t bytes) {
  auto scope = device.enter();
  if (!scope.ok()) return scope.status();
  auto buffer = cuda::DeviceBuffer::create(*scope, bytes);
  if (!buffer.ok()) return buffer.status();
  return GpuMemory(device, *std::move(buffer));
}

Status GpuMemory::fill(std::uint64_t seed) {
  std::vector<std::byte> data(buffer_.bytes());
  tool::put_data(data, seed, 0);
  return move(address(), data);
}

Status GpuMemory::check(std::uint64_t bytes, std::uint64_t seed, std::uint64_t rest) const {
  std::vector<std::byte> data(buffer_.bytes());
  if (Status s = move(0, data); !s.ok()) return s;
  const auto all = std::span<const std::byte>(data);
  std::uint64_t wrong = tool::first_difference(all.first(bytes), seed, 0);
  if (wrong == 0 && (wrong = tool::first_difference(all.subspan(bytes), rest, bytes)) != 0)
    wrong += bytes;
  if (wrong == 0) return {};
  return {Code::corrupt, Scope::request, "wrong bytes at offset " + std::to_string(wrong - 1)};
}

Status GpuMemory::move(cuda::CUdeviceptr to, std::vector<std::byte>& data) const {
  auto scope = device_->enter();
  if (!scope.ok()) return scope.status();
  const auto stream = cuda::Stream::create(*scope);
  if (!stream.ok()) return stream.status();
  const auto host = reinterpret_cast<cuda::CUdeviceptr>(data.data());
  const Status s = to != 0 ? stream->copy(*scope, to, host, data.size())
                           : stream->copy(*scope, host, address(), data.size());
  return s.ok() ? stream->synchronize(*scope) : s;
}

Result<const cuda::Device*> device_of(cuda::Topology& topology, int gpu) {
  return topology.activate(topology.devices()[static_cast<std::size_t>(gpu)].uuid);
}

/// A request is "BYTES SEED", the answer the handle in hex.
int lend() {
  auto topology = cuda::Topology::create();
  std::vector<GpuMemory> memories;
  tool::serve_parent([&](const std::string& request) -> Result<std::string> {
    if (!topology.ok()) return topology.status();
    std::uint64_t bytes = 0, seed = 0;
    std::istringstream(request) >> bytes >> seed;
    const auto device = device_of(**topology, kSourceGpu);
    if (!device.ok()) return device.status();
    auto made = GpuMemory::create(**device, bytes);
    if (!made.ok()) return made.status();
    if (Status s = made->fill(seed); !s.ok()) return s;
    memories.push_back(*std::move(made));
    const auto handle = memories.back().handle();
    if (!handle.ok()) return handle.status();
    std::string text;
    for (const std::byte each : *handle) {
      constexpr const char* kDigits = "0123456789abcdef";
      text += kDigits[std::to_integer<unsigned>(each) / 16];
      text += kDigits[std::to_integer<unsigned>(each) % 16];
    }
    return text;
  });
  return 0;
}

Result<cuda::CUipcMemHandle> ask_for(tool::ChildProcess& lender, std::uint64_t bytes,
                                     std::uint64_t seed) {
  const auto text = lender.call(std::to_string(bytes) + ' ' + std::to_string(seed), 60s);
  if (!text.ok()) return text.status();
  cuda::CUipcMemHandle handle{};
  for (std::size_t i = 0; i < sizeof handle.reserved; ++i)
    handle.reserved[i] = static_cast<char>(std::stoi(text->substr(2 * i, 2), nullptr, 16));
  return handle;
}

}  // namespace linkspan::bench
