// Tests the kernels of KERNEL_GUIDE.md between two GPUs, and put_bulk() of shared memory: each
// pattern a thousand times and more, with random delays before it and other traffic on the link;
// every word is verified.
//
// Usage: device_patterns [TIMES]: fewer, under a sanitizer.
#include "bench/device/two_gpus.cuh"
#include "examples/device/2proc/patterns.cuh"

namespace {

constexpr patterns::u64 kWait = 5'000'000'000;

/// Holds a stream up to 3 us.
__global__ void delay(std::uint64_t seed) {
  seed = seed * 6364136223846793005ull + 1442695040888963407ull;
  const std::uint64_t until = nanoseconds() + (seed >> 40) % 3000;
  while (nanoseconds() < until) {
  }
}

__global__ void compare(const unsigned* sum, std::uint64_t words, unsigned wanted_factor,
                        std::uint32_t* wrong) {
  for (std::uint64_t k = threadIdx.x; k < words; k += blockDim.x)
    if (sum[k] != wanted_factor * static_cast<unsigned>(k + 1)) *wrong = 1;
}
__global__ void count_up(unsigned* values, std::uint64_t words, unsigned factor) {
  for (std::uint64_t k = threadIdx.x; k < words; k += blockDim.x)
    values[k] = factor * static_cast<unsigned>(k + 1);
}

constexpr unsigned kStage = 2048;

/// Puts words that are in shared memory, which the bulk-copy engine would take as a global address.
__global__ void bulk_of_shared(Window window, std::uint64_t words, std::uint64_t round,
                               std::uint32_t* failed) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto* source = reinterpret_cast<unsigned*>(memory + kStage);
  for (std::uint64_t k = threadIdx.x; k < words; k += blockDim.x) source[k] = expected(round, k);
  if (put_bulk(window, 0, source, words * 4, memory, kStage) != Outcome::ok) *failed = 1;
}

class Patterns : TwoGpus {
 public:
  explicit Patterns(patterns::u32 times)
      : TwoGpus({.signals = 16, .mailboxes = 1, .mailbox_bytes = 1024}), times_(times) {}

  void all() {
    run("put and signal", [this](std::uint64_t i) {
      const std::uint64_t words = 1 + i * 37 % 20000;
      on(0, [&](Side& s) {
        fill<<<32, 256, 0, s.stream>>>(words_of(s.source), words, i);
        patterns::give<<<1, 512, 0, s.stream>>>(s.window, s.source, words * 4, s.words);
      });
      on(1, [&](Side& s) {
        patterns::take<<<1, 512, 0, s.stream>>>(s.window, i, kWait, s.words);
        count_wrong<<<32, 256, 0, s.stream>>>(words_of(s.data), words, i, s.words + 1);
        // The next one may come once this one was verified.
        must(cudaEventRecord(looked_, s.stream), "cudaEventRecord");
      });
      on(0,
         [&](Side& s) { must(cudaStreamWaitEvent(s.stream, looked_, 0), "cudaStreamWaitEvent"); });
    });
    run("put_bulk of shared memory", [this](std::uint64_t i) {
      const std::uint64_t words = 1 + i * 37 % 8000;
      on(0, [&](Side& s) {
        bulk_of_shared<<<1, 512, kStage + words * 4, s.stream>>>(s.window, words, i, s.words);
      });
      finish();
      on(1, [&](Side& s) {
        count_wrong<<<32, 256, 0, s.stream>>>(words_of(s.data), words, i, s.words + 1);
      });
      finish();
    });
    run("ping-pong", [this](std::uint64_t i) {
      const auto before = (i - 1) * 10;
      on(1, [&](Side& s) {
        patterns::pong<<<1, 32, 0, s.stream>>>(s.window, 10, before, kWait, s.words);
      });
      on(0, [&](Side& s) {
        patterns::ping<<<1, 32, 0, s.stream>>>(s.window, 10, before, kWait, s.words);
      });
    });
    run("double buffering", [this](std::uint64_t i) {
      const std::uint64_t words = 3001;
      on(1, [&](Side& s) {
        patterns::consume<<<1, 512, 0, s.stream>>>(s.window, words, 5, (i - 1) * 5, kWait,
                                                   s.words + 1, s.words);
      });
      on(0, [&](Side& s) {
        patterns::produce<<<1, 512, 0, s.stream>>>(s.window, words_of(s.source), words, 5,
                                                   (i - 1) * 5, kWait, s.words);
      });
    });
    run("ring", [this](std::uint64_t i) {
      const std::uint64_t words = 1 + i * 13 % 5000;
      for (const unsigned rank : {0u, 1u})
        on(rank, [&](Side& s) {
          count_up<<<1, 512, 0, s.stream>>>(words_of(s.source), words, rank + 1);
          patterns::ring<<<1, 512, 0, s.stream>>>(s.window, s.window, rank, words_of(s.source),
                                                  words, i, kWait, s.words);
        });
      // Rank 0 has the sum of both where its left neighbour puts.
      on(0, [&](Side& s) {
        compare<<<1, 512, 0, s.stream>>>(words_of(s.data), words, 3, s.words + 1);
      });
    });
    run("fan-in", [this](std::uint64_t i) {
      constexpr std::uint64_t kWords = 777, kProducers = 8;
      on(0, [&](Side& s) {
        fill<<<32, 256, 0, s.stream>>>(words_of(s.source), kWords * kProducers, i);
        must(cudaStreamSynchronize(s.stream), "fill");
        for (std::uint64_t p = 0; p < kProducers; ++p)
          patterns::report<<<1, 128, 0, s.stream>>>(s.window, s.source + p * kWords * 4, kWords * 4,
                                                    p, s.words);
      });
      on(1, [&](Side& s) {
        patterns::collect<<<1, 32, 0, s.stream>>>(s.window, i * kProducers, kWait, s.words);
        count_wrong<<<32, 256, 0, s.stream>>>(words_of(s.data), kWords * kProducers, i,
                                              s.words + 1);
      });
      finish();
    });
    all_to_all();
  }

 private:
  static unsigned* words_of(unsigned char* memory) { return reinterpret_cast<unsigned*>(memory); }

  template <class Act>
  void on(unsigned side, Act act) {
    must(cudaSetDevice(static_cast<int>(side)), "cudaSetDevice");
    delay<<<1, 1, 0, sides_[side].stream>>>(++seed_);
    act(sides_[side]);
    must(cudaGetLastError(), "launch");
  }

  template <class Once>
  void run(const char* name, Once once) {
    must(cudaSetDevice(1), "cudaSetDevice");
    if (looked_ == nullptr) must(cudaEventCreate(&looked_), "cudaEventCreate");
    for (patterns::u32 i = 1; i <= times_; ++i) {
      if (i % 50 == 1) make_noise(20);
      once(i);
      if (i % 100 == 0) finish();
    }
    finish();
    std::printf("%s: %u times, nothing wrong\n", name, times_);
    std::fflush(stdout);
  }

  void all_to_all() {
    constexpr std::uint64_t kRow = 512, kPart = 1 << 20;
    struct Tables {
      Window* windows = nullptr;
      patterns::Rows* rows = nullptr;
      unsigned* counts = nullptr;
    } tables[2];
    for (unsigned rank : {0u, 1u}) {
      must(cudaSetDevice(static_cast<int>(rank)), "cudaSetDevice");
      Tables& t = tables[rank];
      must(cudaMalloc(reinterpret_cast<void**>(&t.windows), 2 * sizeof(Window)), "cudaMalloc");
      must(cudaMalloc(reinterpret_cast<void**>(&t.rows), 2 * sizeof(patterns::Rows)), "cudaMalloc");
      must(cudaMalloc(reinterpret_cast<void**>(&t.counts), 8), "cudaMalloc");
      for (int k : {0, 1})
        must(cudaMemcpy(t.windows + k, &sides_[rank].window, sizeof(Window), cudaMemcpyDefault),
             "cudaMemcpy");
    }
    run("all-to-all", [&](std::uint64_t i) {
      unsigned counts[2];
      for (unsigned rank : {0u, 1u})
        counts[rank] = static_cast<unsigned>((i * 7 + rank * 31) % 100);
      for (unsigned rank : {0u, 1u}) {
        const patterns::Rows rows{sides_[rank].source, counts[rank]};
        must(cudaMemcpy(tables[rank].rows + (1 - rank), &rows, sizeof rows, cudaMemcpyDefault),
             "cudaMemcpy");
        on(rank, [&](Side& s) {
          fill<<<32, 256, 0, s.stream>>>(words_of(s.source), counts[rank] * kRow / 4, i + rank);
          patterns::dispatch<<<1, 512, 0, s.stream>>>(tables[rank].windows, tables[rank].rows, 2,
                                                      rank, kRow, kPart, s.words);
        });
      }
      for (unsigned rank : {0u, 1u}) {
        const unsigned peer = 1 - rank;
        on(rank, [&](Side& s) {
          patterns::combine<<<1, 512, 0, s.stream>>>(tables[rank].windows, 2, rank, i, kPart, kWait,
                                                     tables[rank].counts, s.words);
          count_wrong<<<32, 256, 0, s.stream>>>(words_of(s.data + peer * kPart + 16),
                                                counts[peer] * kRow / 4, i + peer, s.words + 1);
        });
      }
      finish();
      for (unsigned rank : {0u, 1u}) {
        unsigned found[2];
        must(cudaMemcpy(found, tables[rank].counts, sizeof found, cudaMemcpyDefault), "cudaMemcpy");
        if (found[1 - rank] == counts[1 - rank]) continue;
        std::printf("all-to-all: %u rows instead of %u\n", found[1 - rank], counts[1 - rank]);
        std::exit(1);
      }
    });
  }

  const patterns::u32 times_;
  cudaEvent_t looked_ = nullptr;
  std::uint64_t seed_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const int times = argc > 1 ? std::atoi(argv[1]) : 1000;
  if (times <= 0 || argc > 2) {
    std::fprintf(stderr, "usage: device_patterns [TIMES]\n");
    return 2;
  }
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) {
    std::fprintf(stderr, "device_patterns: needs two GPUs\n");
    return 2;
  }
  Patterns(static_cast<patterns::u32>(times)).all();
  return 0;
}
