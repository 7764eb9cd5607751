// simple_write_unified: what simple_write does, in one process with two Engines. See
// UNIFIED_EXAMPLE.md.
//
// Usage: simple_write_unified [BYTES [INITIATOR'S GPU [TARGET'S GPU]]]
// Exit codes: 0 all is well, 1 a mismatch or a failure, 2 no CUDA device or bad usage.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.h"
#include "linkspan/engine.hpp"
#include "linkspan/window.hpp"

namespace {

using namespace simple_write;  // NOLINT(google-build-using-namespace)
using linkspan::device::Outcome;

constexpr std::uint32_t kRounds = 100;
constexpr auto kPatience = std::chrono::seconds(10);

template <class T>
T must(linkspan::Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().to_string());
  return *std::move(result);
}
void must(const linkspan::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.to_string());
}
void must(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

/// A GPU with its memory, its Engine, and its window onto the other side.
struct Side {
  Side(const char* name, int gpu, std::uint64_t size)
      : device(gpu), bytes(size), engine(must(linkspan::Engine::open({.name = name}))) {
    must(cudaSetDevice(device));
    must(load_kernels());
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (auto [memory, room] : {std::pair{&data, bytes},
                                {&pad, layout.bytes()},
                                {&times, kRounds * 8ul},
                                {&report, sizeof(Report)}}) {
      must(cudaMalloc(memory, room));
      must(cudaMemset(*memory, 0, room));
    }
    region = must(engine.register_memory(data, bytes));
    pad_region = must(engine.register_memory(pad, layout.bytes()));
    must(engine.publish("data", region));
    must(engine.publish("pad", pad_region));
    must(engine.listen());
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;
  ~Side() {
    window = {};
    if (!engine.close(kPatience).ok()) return;  // then the memory has to stay
    for (void* memory : {data, pad, times, report}) (void)cudaFree(memory);
    (void)cudaStreamDestroy(stream);
  }

  void open_window(const linkspan::Peer& peer) {
    window = must(peer.window({.local = region,
                               .remote = must(peer.lookup("data")),
                               .local_pad = pad_region,
                               .remote_pad = must(peer.lookup("pad")),
                               .layout = layout}));
  }
  Rounds rounds() const {
    return {.window = window.device(),
            .data = static_cast<const unsigned char*>(data),
            .bytes = bytes,
            .before = 0,
            .count = kRounds,
            .timeout_ns = 10'000'000'000,
            .took_ns = static_cast<std::uint64_t*>(times),
            .report = static_cast<Report*>(report)};
  }
  void finish() const {
    must(cudaSetDevice(device));
    must(cudaStreamSynchronize(stream));
    Report told{};
    must(cudaMemcpy(&told, report, sizeof told, cudaMemcpyDeviceToHost));
    if (told.outcome != Outcome::ok)
      throw std::runtime_error("a kernel ended with outcome " +
                               std::to_string(static_cast<int>(told.outcome)) + " after " +
                               std::to_string(told.rounds) + " rounds");
  }

  const int device;
  const std::uint64_t bytes;
  const linkspan::device::PadLayout layout{.signals = kSignals};
  cudaStream_t stream = nullptr;
  void *data = nullptr, *pad = nullptr, *times = nullptr, *report = nullptr;
  linkspan::Engine engine;
  linkspan::Region region, pad_region;
  linkspan::Window window;
};

int write_once(std::uint64_t bytes, int from, int to) {
  Side initiator("initiator", from, bytes), target("target", to, bytes);
  const linkspan::Peer to_target = must(initiator.engine.connect(target.engine.address()));
  initiator.open_window(to_target);
  target.open_window(must(target.engine.accept(kPatience)));
  std::printf("GPU %d writes %llu bytes to GPU %d, window: %s\n", from,
              static_cast<unsigned long long>(bytes), to, initiator.window.path().c_str());

  std::vector<unsigned char> wanted(bytes), found(bytes);
  for (std::uint64_t i = 0; i < bytes; ++i)
    wanted[i] = static_cast<unsigned char>(i * 0x9E3779B97F4A7C15u >> 56);
  must(cudaSetDevice(from));
  must(cudaMemcpy(initiator.data, wanted.data(), bytes, cudaMemcpyHostToDevice));

  must(cudaSetDevice(to));
  must(launch_target(target.rounds(), linkspan::device::Scope::block, target.stream));
  must(cudaSetDevice(from));
  must(launch_initiator(initiator.rounds(), linkspan::device::Scope::block, initiator.stream));
  initiator.finish();
  target.finish();

  must(cudaMemcpy(found.data(), target.data, bytes, cudaMemcpyDeviceToHost));
  const auto wrong = std::mismatch(found.begin(), found.end(), wanted.begin()).first;
  if (wrong != found.end()) {
    std::fprintf(stderr, "MISMATCH: byte %td is wrong\n", wrong - found.begin());
    return 1;
  }
  std::vector<std::uint64_t> took(kRounds);
  must(cudaSetDevice(from));
  must(cudaMemcpy(took.data(), initiator.times, kRounds * 8, cudaMemcpyDeviceToHost));
  std::sort(took.begin(), took.end());
  std::printf("verified; %u rounds, put + signal and answer %.2f us (p50)\n", kRounds,
              static_cast<double>(took[kRounds / 2]) / 1e3);
  return 0;
}

/// The n-th argument; `usual` where there are fewer.
long long argument(int argc, char** argv, int n, long long usual, long long least, long long most) {
  if (n >= argc) return usual;
  char* end = nullptr;
  const long long value = std::strtoll(argv[n], &end, 10);
  if (end != argv[n] && *end == '\0' && value >= least && value <= most) return value;
  std::fprintf(stderr,
               "simple_write_unified: \"%s\" is no number from %lld to %lld\n"
               "usage: simple_write_unified [BYTES [INITIATOR'S GPU [TARGET'S GPU]]]\n",
               argv[n], least, most);
  std::exit(2);
}

}  // namespace

int main(int argc, char** argv) try {
  const long long bytes = argument(argc, argv, 1, 1 << 20, 1, 1ll << 36);
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "simple_write_unified: no CUDA device\n");
    return 2;
  }
  const auto from = static_cast<int>(argument(argc, argv, 2, 0, 0, devices - 1));
  const auto to =
      static_cast<int>(argument(argc, argv, 3, std::min(1, devices - 1), 0, devices - 1));
  return write_once(static_cast<std::uint64_t>(bytes), from, to);
} catch (const std::exception& error) {
  std::fprintf(stderr, "simple_write_unified: %s\n", error.what());
  return 1;
}
