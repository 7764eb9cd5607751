// bench_device: the device API between two GPUs of this process, beside bare kernels of the same
// run and, where nvshmem_put_signal has run before, beside NVSHMEM's put_signal.
//
// Usage: bench_device [--json FILE] [--nvshmem FILE]
// Prints a line for each measurement and writes the rows that have a bar. Every byte is verified.
// Exit codes: 1 a mismatch or a failure, 2 fewer than two GPUs or bad usage.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "bench/device/two_gpus.cuh"
#include "linkspan/engine.hpp"
#include "linkspan/window.hpp"

namespace {

constexpr std::uint64_t kBound = 2'000'000'000;
constexpr std::uint64_t kBareSlot = kLarge / 4;  // of packets, behind the region's first bytes
constexpr std::uint32_t kBareLooks = 1 << 22;    // some seconds

enum class Way { put_signal, packets, bare, bare_packets };

/// Sends bytes there and back `rounds` times, by a block of at most `Most` lanes. The side with
/// `first` begins.
template <Way W, unsigned Most>
__global__ void __launch_bounds__(Most)
    ping_pong(Window w, const unsigned char* source, std::uint64_t bytes, std::uint32_t rounds,
              std::uint64_t before, bool first, std::uint64_t* took, std::uint32_t* failed) {
  // Values in registers, as in a kernel that computes them.
  asm volatile("" : "+l"(source), "+l"(bytes));
  const Bound bound = w.within(kBound);
  MailboxSender<Scope::block> sender(w, 0, bound, before + 1);
  MailboxReceiver<Scope::block> receiver(w, 0, bound, before + 1);
  Outcome end = Outcome::ok;
  const auto give = [&](std::uint64_t number) {
    if constexpr (W == Way::put_signal) end = put_signal<Scope::block>(w, 0, source, bytes, 0);
    if constexpr (W == Way::packets) end = sender.send(0, source, bytes);
    if constexpr (W == Way::bare_packets) {
      auto* to = reinterpret_cast<std::uint64_t*>(w.remote + kBareSlot);
      const auto* from = reinterpret_cast<const std::uint64_t*>(source);
      for (std::uint64_t i = threadIdx.x; i < bytes / 8; i += blockDim.x)
        detail::store_pair(to + 2 * i, number << 32 | (from[i] & ~std::uint32_t{0}),
                           number << 32 | from[i] >> 32);
    }
    if constexpr (W == Way::bare) {
      auto* to = reinterpret_cast<uint4*>(w.remote);
      const auto* from = reinterpret_cast<const uint4*>(source);
      for (std::uint64_t i = threadIdx.x; i < (bytes + 15) / 16; i += blockDim.x) to[i] = from[i];
      __syncthreads();
      if (threadIdx.x == 0)
        asm volatile("red.release.sys.add.u64 [%0], 1;" ::"l"(w.remote_pad) : "memory");
    }
  };
  const auto take = [&](std::uint64_t number) {
    if constexpr (W == Way::put_signal) end = wait_signal<Scope::block>(w, 0, number, bound);
    if constexpr (W == Way::packets) end = receiver.receive(0, bytes);
    if constexpr (W == Way::bare_packets) {
      const auto* from = reinterpret_cast<const std::uint64_t*>(w.local + kBareSlot);
      auto* to = reinterpret_cast<std::uint64_t*>(w.local);
      for (std::uint64_t i = threadIdx.x; i < bytes / 8; i += blockDim.x) {
        std::uint64_t low = 0, high = 0;
        std::uint32_t looks = 0;
        do detail::load_pair(from + 2 * i, low, high);
        while ((low >> 32 != number || high >> 32 != number) && ++looks < kBareLooks);
        to[i] = (low & ~std::uint32_t{0}) | high << 32;
      }
      __syncthreads();
    }
    if constexpr (W == Way::bare) {
      if (threadIdx.x == 0) {
        std::uint64_t value = 0, begin = nanoseconds();
        do asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(w.local_pad) : "memory");
        while (value < number && nanoseconds() - begin < kBound);
      }
      __syncthreads();
    }
  };
  const std::uint64_t began = nanoseconds();
  for (std::uint32_t i = 0; i < rounds && end == Outcome::ok; ++i) {
    const std::uint64_t number = before + i + 1;
    const long long begin = clock64();  // reading %globaltimer would take longer
    first ? give(number) : take(number);
    if (end != Outcome::ok) break;
    first ? take(number) : give(number);
    if (threadIdx.x == 0) took[i] = static_cast<std::uint64_t>(clock64() - begin);
  }
  if (threadIdx.x == 0 && end != Outcome::ok) *failed = 1;
  if (threadIdx.x == 0) took[rounds] = nanoseconds() - began;
}

__global__ void __launch_bounds__(kThreads)
    wide(Window w, const unsigned char* source, std::uint64_t bytes, int how,
         std::uint32_t* arrived, unsigned stage_bytes) {
  extern __shared__ __align__(128) unsigned char stage[];
  if (how == 0) {
    (void)put_signal_grid(w, 0, source, bytes, 1, arrived);
    return;
  }
  const std::uint64_t each = (bytes / gridDim.x + 127) / 128 * 128, begin = blockIdx.x * each;
  if (begin >= bytes) return;
  const std::uint64_t mine = bytes - begin < each ? bytes - begin : each;
  if (how == 1) {
    (void)put_bulk(w, begin, source + begin, mine, stage, stage_bytes);
  } else {
    auto* to = reinterpret_cast<uint4*>(w.remote + begin);
    const auto* from = reinterpret_cast<const uint4*>(source + begin);
    const std::uint64_t count = mine / 16;
    std::uint64_t i = threadIdx.x;
    for (; i + 7 * kThreads < count; i += 8 * kThreads) {
      uint4 words[8];
#pragma unroll
      for (unsigned k = 0; k < 8; ++k) words[k] = from[i + k * kThreads];
#pragma unroll
      for (unsigned k = 0; k < 8; ++k) to[i + k * kThreads] = words[k];
    }
    for (; i < count; i += kThreads) to[i] = from[i];
  }
  __syncthreads();
  if (threadIdx.x == 0) (void)signal_add(w, 1);
}

/// Writes a fresh pattern and gives it; the other looks at every word when it has the signal.
__global__ void __launch_bounds__(kThreads)
    litmus(Window w, unsigned char* source, bool gives, bool packets, std::uint32_t rounds,
           std::uint64_t acks, std::uint32_t* wrong, std::uint32_t* failed) {
  const Bound bound = w.within(kBound);
  std::uint64_t state = 12345;
  Outcome end = Outcome::ok;
  for (std::uint32_t i = 0; i < rounds && end == Outcome::ok; ++i) {
    const std::uint64_t number = i + 1;
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const std::uint64_t bytes = 4 + (state >> 33) % 16000 / 4 * 4;
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const std::uint64_t offset = (state >> 33) % 4096 / 4 * 4;
    if (gives) {
      const std::uint64_t until = nanoseconds() + (state >> 40) % 3000;
      while (nanoseconds() < until) {
      }
      for (std::uint64_t k = threadIdx.x; k < bytes / 4; k += blockDim.x)
        reinterpret_cast<unsigned*>(source)[k] = expected(number, k);
      end = packets ? send<Scope::block>(w, 1, number, offset, source, bytes, bound)
                    : put_signal<Scope::block>(w, offset, source, bytes, 2);
      if (end == Outcome::ok) end = wait_signal<Scope::block>(w, 3, acks + number, bound);
    } else {
      end = packets ? receive<Scope::block>(w, 1, number, offset, bytes, bound)
                    : wait_signal<Scope::block>(w, 2, number, bound);
      if (end == Outcome::ok)
        for (std::uint64_t k = threadIdx.x; k < bytes / 4; k += blockDim.x)
          if (*reinterpret_cast<volatile unsigned*>(w.local + offset + k * 4) !=
              expected(number, k))
            atomicAdd(wrong, 1);
      __syncthreads();
      if (threadIdx.x == 0) (void)signal_add(w, 3);
    }
  }
  if (threadIdx.x == 0 && end != Outcome::ok) *failed = 1;
}

class Bench : TwoGpus {
 public:
  Bench() : TwoGpus({.signals = 16, .mailboxes = 2, .mailbox_bytes = 65536}) {
    for (const Side& s : sides_) {
      must(cudaSetDevice(s.device), "cudaSetDevice");
      must(cudaFuncSetAttribute(wide, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024),
           "cudaFuncSetAttribute");
    }
  }

  template <Way W>
  double latency(const char* name, std::uint64_t bytes, unsigned threads) {
    for (int warm = 1; warm >= 0; --warm) {
      const std::uint32_t rounds = warm ? 50 : kRounds;
      for (int i : {1, 0}) {
        must(cudaSetDevice(i), "cudaSetDevice");
        fill<<<64, 256, 0, sides_[i].stream>>>(reinterpret_cast<unsigned*>(sides_[i].source),
                                               (bytes + 15) / 16 * 4, i + 7);
        must(cudaStreamSynchronize(sides_[i].stream), "fill");
      }
      std::uint64_t& before = W == Way::packets        ? messages_
                              : W == Way::bare_packets ? bare_messages_
                                                       : signals_;
      for (int i : {1, 0}) {
        Side& s = sides_[i];
        must(cudaSetDevice(i), "cudaSetDevice");
        const auto kernel = threads <= 256 ? ping_pong<W, 256> : ping_pong<W, 1024>;
        kernel<<<1, threads, 0, s.stream>>>(s.window, s.source, bytes, rounds, before, i == 0,
                                            s.took, s.words);
        must(cudaGetLastError(), "launch");
      }
      finish();
      before += rounds;
    }
    std::vector<std::uint64_t> took(kRounds + 1);
    must(cudaMemcpy(took.data(), sides_[0].took, 8 * took.size(), cudaMemcpyDefault), "cudaMemcpy");
    check(bytes / 4, 8, 7);
    const double mean = static_cast<double>(took.back()) / kRounds;
    took.pop_back();
    std::sort(took.begin(), took.end());
    double clocks = 0;
    for (const std::uint64_t each : took) clocks += static_cast<double>(each);
    const double ns = mean * kRounds / clocks;  // of a clock
    const auto half_us = [&](std::size_t at) { return static_cast<double>(took[at]) * ns / 2e3; };
    std::printf(
        "{\"id\": \"device.%s.%lluB.%ut\", \"p50_us\": %.3f, \"p99_us\": %.3f, \"mean_us\": "
        "%.3f}\n",
        name, static_cast<unsigned long long>(bytes), threads, half_us(kRounds / 2),
        half_us(kRounds * 99 / 100), mean / 2e3);
    std::fflush(stdout);
    return half_us(kRounds / 2);
  }

  double bandwidth(const char* name, int how, unsigned ctas, unsigned stage) {
    Side& s = sides_[0];
    must(cudaSetDevice(0), "cudaSetDevice");
    fill<<<1024, 256, 0, s.stream>>>(reinterpret_cast<unsigned*>(s.source), kLarge / 4, ++seed_);
    cudaEvent_t begin, end;
    must(cudaEventCreate(&begin), "event");
    must(cudaEventCreate(&end), "event");
    std::vector<float> times;
    for (int run = 0; run < 8; ++run) {
      must(cudaEventRecord(begin, s.stream), "record");
      wide<<<ctas, how == 1 ? 128 : kThreads, stage, s.stream>>>(s.window, s.source, kLarge, how,
                                                                 s.words + 8, stage);
      must(cudaEventRecord(end, s.stream), "record");
      must(cudaStreamSynchronize(s.stream), "wide");
      float ms = 0;
      must(cudaEventElapsedTime(&ms, begin, end), "elapsed");
      if (run != 0) times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    must(cudaSetDevice(1), "cudaSetDevice");
    count_wrong<<<1024, 256, 0, sides_[1].stream>>>(reinterpret_cast<unsigned*>(sides_[1].data),
                                                    kLarge / 4, seed_, sides_[1].words + 1);
    must(cudaStreamSynchronize(sides_[1].stream), "check");
    finish();
    const double rate = static_cast<double>(kLarge) / times[times.size() / 2] / 1e6;
    std::printf("{\"id\": \"device.%s.1GiB.%uctas\", \"GB/s\": %.1f}\n", name, ctas, rate);
    std::fflush(stdout);
    return rate;
  }

  void litmus_test(bool packets, std::uint32_t rounds) {
    make_noise(200);
    for (int i : {1, 0}) {
      Side& s = sides_[i];
      must(cudaSetDevice(i), "cudaSetDevice");
      litmus<<<1, 256, 0, s.stream>>>(s.window, s.source, i == 0, packets, rounds, acks_,
                                      s.words + 1, s.words);
      must(cudaGetLastError(), "launch");
    }
    finish();
    acks_ += rounds;
    std::printf("{\"id\": \"device.litmus.%s\", \"rounds\": %u, \"wrong\": 0}\n",
                packets ? "packets" : "put_signal", rounds);
    std::fflush(stdout);
  }

  /// Through two Engines, whose windows go by the proxy although the memory is mapped.
  double proxy(std::uint64_t bytes) {
    constexpr std::uint32_t kProxyRounds = 300;
    const auto give = [](auto result) {
      if (result.ok()) return *std::move(result);
      std::fprintf(stderr, "%s\n", result.status().to_string().c_str());
      std::exit(1);
    };
    const auto patience = std::chrono::seconds(10);
    linkspan::Engine engines[2] = {give(linkspan::Engine::open({.name = "left"})),
                                   give(linkspan::Engine::open({.name = "right"}))};
    linkspan::Region data[2], pads[2];
    for (int i : {0, 1}) {
      const Side& s = sides_[i];
      must(cudaSetDevice(i), "cudaSetDevice");
      must(cudaMemset(s.pad, 0, layout_.bytes()), "cudaMemset");
      // The proxy sends from the local region.
      fill<<<64, 256, 0, s.stream>>>(reinterpret_cast<unsigned*>(s.data + kLarge / 2), bytes / 4,
                                     static_cast<std::uint64_t>(i + 7));
      must(cudaStreamSynchronize(s.stream), "fill");
      data[i] = give(engines[i].register_memory(s.data, kLarge));
      pads[i] = give(engines[i].register_memory(s.pad, layout_.bytes()));
      if (!engines[i].publish("data", data[i]).ok() || !engines[i].publish("pad", pads[i]).ok() ||
          !engines[i].listen().ok())
        std::exit(1);
    }
    linkspan::Peer peers[2] = {give(engines[0].connect(engines[1].address(), patience)),
                               give(engines[1].accept(patience))};
    linkspan::Window windows[2];
    for (int i : {0, 1})
      windows[i] = give(peers[i].window({.local = data[i],
                                         .remote = give(peers[i].lookup("data")),
                                         .local_pad = pads[i],
                                         .remote_pad = give(peers[i].lookup("pad")),
                                         .layout = layout_,
                                         .force_proxy = true}));
    for (int i : {1, 0}) {
      Side& s = sides_[i];
      must(cudaSetDevice(i), "cudaSetDevice");
      ping_pong<Way::put_signal, 256>
          <<<1, 128, 0, s.stream>>>(windows[i].device(), s.data + kLarge / 2, bytes, kProxyRounds,
                                    0, i == 0, s.took, s.words);
      must(cudaGetLastError(), "launch");
    }
    finish();
    check(bytes / 4, 8, 7);
    std::uint64_t whole = 0;
    must(cudaMemcpy(&whole, sides_[0].took + kProxyRounds, 8, cudaMemcpyDefault), "cudaMemcpy");
    for (linkspan::Window& each : windows) each = {};
    for (linkspan::Engine& each : engines)
      if (!each.close(patience).ok()) std::exit(1);
    return static_cast<double>(whole) / kProxyRounds / 2e3;
  }

 private:
  void check(std::uint64_t words, int at0, int at1) {
    for (int i : {0, 1}) {
      must(cudaSetDevice(i), "cudaSetDevice");
      count_wrong<<<64, 256, 0, sides_[i].stream>>>(reinterpret_cast<unsigned*>(sides_[i].data),
                                                    words, i == 0 ? at0 : at1, sides_[i].words + 1);
    }
    finish();
  }

  std::uint64_t signals_ = 0, messages_ = 0, bare_messages_ = 0, acks_ = 0;
  unsigned seed_ = 100;
};

/// Those that have a bar, as evidence/device.json has them.
class Rows {
 public:
  /// With a bar of the ratio, for a time. A rate that misses its own bar may state `pass`.
  void add(const std::string& id, double value, const char* unit, double ceiling,
           const std::string& how, double bar) {
    add(id, value, unit, ceiling, how, bar, value / ceiling <= bar);
  }
  void add(const std::string& id, double value, const char* unit, double ceiling,
           const std::string& how, double bar, bool pass) {
    char text[512];
    std::snprintf(text, sizeof text,
                  "{\"id\": \"%s\", \"value\": %.3f, \"unit\": \"%s\", \"ceiling\": %.3f, "
                  "\"ceiling_how\": \"%s\", \"ratio\": %.3f, \"runs\": 1, \"verified\": true, "
                  "\"bar\": %.3f, \"pass\": %s}",
                  id.c_str(), value, unit, ceiling, how.c_str(), value / ceiling, bar,
                  pass ? "true" : "false");
    text_ += (text_.empty() ? "" : ",\n  ") + std::string(text);
  }
  /// Without a ceiling or a bar.
  void state(const std::string& id, double value, const char* unit) {
    char text[256];
    std::snprintf(
        text, sizeof text,
        "{\"id\": \"%s\", \"value\": %.3f, \"unit\": \"%s\", \"runs\": 1, \"verified\": true}",
        id.c_str(), value, unit);
    text_ += ",\n  " + std::string(text);
  }
  bool write(const std::string& file, const std::string& command) const {
    std::ofstream out(file);
    out << "{\n \"command\": \"" << command << "\",\n \"rows\": [\n  " << text_ << "\n ]\n}\n";
    return out.good();
  }

 private:
  std::string text_;
};

std::string name_of(std::uint64_t bytes) {
  return bytes < 1024 ? std::to_string(bytes) + "B" : std::to_string(bytes / 1024) + "KiB";
}

}  // namespace

int main(int argc, char** argv) {
  std::string json, nvshmem, command = "bench_device";
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i];
    if (i + 1 == argc || (option != "--json" && option != "--nvshmem")) {
      std::fprintf(stderr, "usage: bench_device [--json FILE] [--nvshmem FILE]\n");
      return 2;
    }
    (option == "--json" ? json : nvshmem) = argv[i + 1];
    command += " " + option;
  }
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) {
    std::fprintf(stderr, "bench_device: needs two GPUs\n");
    return 2;
  }
  std::map<std::uint64_t, double> theirs;
  std::ifstream said(nvshmem);
  for (std::uint64_t bytes = 0; said >> bytes;) said >> theirs[bytes];

  Bench bench;
  Rows rows;
  // Bars are ratios: of NVSHMEM's time, and of the bare loop's.
  struct Size {
    std::uint64_t bytes;
    double of_nvshmem, of_bare;
  };
  for (const auto& [bytes, of_nvshmem, of_bare] : {Size{8, 1 / 2.3, 1.10},
                                                   {1024, 1 / 2.1, 1.10},
                                                   {4096, 1 / 1.8, 1.10},
                                                   {16384, 1 / 1.3, 1.10},
                                                   {65536, 1.0, 1.05}}) {
    double put = 0, message = 0, bare_put = 0, bare_message = 0;
    const auto least = [](double& to, double value) { to = to == 0 ? value : std::min(to, value); };
    for (const unsigned threads : {32u, 128u, 256u, 512u, 1024u}) {
      least(bare_put, bench.latency<Way::bare>("bare", bytes, threads));
      least(put, bench.latency<Way::put_signal>("put_signal", bytes, threads));
      least(bare_message, bench.latency<Way::bare_packets>("bare_packets", bytes, threads));
      least(message, bench.latency<Way::packets>("packets", bytes, threads));
    }
    const std::string name = name_of(bytes) + ".half_rtt";
    if (const auto other = theirs.find(bytes); other != theirs.end())
      rows.add("put_signal." + name, std::min(put, message), "us", other->second,
               "NVSHMEM put_signal", of_nvshmem);
    if (bytes <= 4096)
      rows.add("message." + name, message, "us", bare_message, "a bare loop of packets", of_bare);
    else
      rows.add("put_signal_alone." + name, put, "us", bare_put, "bare kernel: put and release",
               of_bare);
  }
  bench.litmus_test(false, 5000);
  bench.litmus_test(true, 5000);
  for (const unsigned ctas : {8u, 16u, 32u, 132u}) {
    const double bare = bench.bandwidth("bare", 2, ctas, 0);
    const double put = bench.bandwidth("put", 0, ctas, 0);
    bench.bandwidth("bulk", 1, ctas, 64 * 1024);
    if (ctas == 16)
      rows.add("put.1GiB.16cta", put, "GB/s", bare, "bare kernel of 16 CTAs", 350,
               put >= 350 || put >= 0.98 * bare);
  }
  rows.state("proxy_put_signal.4KiB.half_rtt", bench.proxy(4096), "us");
  return json.empty() || rows.write(json, command) ? 0 : 1;
}
