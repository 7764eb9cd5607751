#include "bench/lender.hpp"

#include <sstream>
#include <string>

#include "cuda/stream.hpp"

namespace linkspan::bench {
namespace {

using namespace std::chrono_literals;

/// splitmix64's finaliser: bytes of another place or of another run show.
std::uint64_t word(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t x = (seed << 40 ^ index) + 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

}  // namespace

Result<GpuMemory> GpuMemory::create(const cuda::Device& device, std::uint64_t bytes) {
  auto scope = device.enter();
  if (!scope.ok()) return scope.status();
  auto buffer = cuda::DeviceBuffer::create(*scope, bytes);
  if (!buffer.ok()) return buffer.status();
  return GpuMemory(device, *std::move(buffer));
}

Status GpuMemory::fill(std::uint64_t seed) {
  std::vector<std::uint64_t> words(buffer_.bytes() / 8);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = word(seed, i);
  return move(address(), words);
}

Status GpuMemory::check(std::uint64_t bytes, std::uint64_t seed, std::uint64_t rest) const {
  std::vector<std::uint64_t> words(buffer_.bytes() / 8);
  if (Status s = move(0, words); !s.ok()) return s;
  for (std::size_t i = 0; i < words.size(); ++i)
    if (words[i] != word(i * 8 < bytes ? seed : rest, i))
      return {Code::corrupt, Scope::request, "wrong bytes at offset " + std::to_string(i * 8)};
  return {};
}

Status GpuMemory::move(cuda::CUdeviceptr to, std::vector<std::uint64_t>& words) const {
  auto scope = device_->enter();
  if (!scope.ok()) return scope.status();
  const auto stream = cuda::Stream::create(*scope);
  if (!stream.ok()) return stream.status();
  const auto host = reinterpret_cast<cuda::CUdeviceptr>(words.data());
  const Status s = to != 0 ? stream->copy(*scope, to, host, words.size() * 8)
                           : stream->copy(*scope, host, address(), words.size() * 8);
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
  const auto text = lender.ask(std::to_string(bytes) + ' ' + std::to_string(seed), 60s);
  if (!text.ok()) return text.status();
  cuda::CUipcMemHandle handle{};
  for (std::size_t i = 0; i < sizeof handle.reserved; ++i)
    handle.reserved[i] = static_cast<char>(std::stoi(text->substr(2 * i, 2), nullptr, 16));
  return handle;
}

}  // namespace linkspan::bench
