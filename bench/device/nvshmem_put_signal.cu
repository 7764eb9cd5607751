// nvshmem_put_signal: what NVSHMEM's put_signal takes between two GPUs, for bench_device to stand
// beside. Two processes, joined by NVSHMEM's unique id through a pipe.
//
// Prints a line `BYTES HALF_ROUND_TRIP_US` for each size. Exit code 3: NVSHMEM does not come up.
#include <cuda_runtime.h>
#include <nvshmem.h>
#include <nvshmemx.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int kRounds = 2000;

__global__ void ping_pong(unsigned char* to, const unsigned char* from, std::size_t bytes,
                          std::uint64_t* signal, int pe, std::uint64_t before, int rounds,
                          long long* took) {
  for (int i = 0; i < rounds; ++i) {
    const std::uint64_t number = before + i + 1;
    const long long begin = clock64();
    if (pe == 0)
      nvshmemx_putmem_signal_block(to, from, bytes, signal, number, NVSHMEM_SIGNAL_SET, 1 - pe);
    if (threadIdx.x == 0) nvshmem_signal_wait_until(signal, NVSHMEM_CMP_GE, number);
    __syncthreads();
    if (pe == 1)
      nvshmemx_putmem_signal_block(to, from, bytes, signal, number, NVSHMEM_SIGNAL_SET, 1 - pe);
    if (threadIdx.x == 0) took[i] = clock64() - begin;
  }
}

void must(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "nvshmem_put_signal: %s: %s\n", call, cudaGetErrorString(error));
  std::exit(1);
}

int run(int pe, const nvshmemx_uniqueid_t& id) {
  must(cudaSetDevice(pe), "cudaSetDevice");
  nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
  nvshmemx_set_attr_uniqueid_args(pe, 2, &id, &attributes);
  if (nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes) != 0) return 3;
  auto* to = static_cast<unsigned char*>(nvshmem_malloc(1 << 20));
  auto* signal = static_cast<std::uint64_t*>(nvshmem_calloc(1, 64));
  unsigned char* from = nullptr;
  long long* took = nullptr;
  must(cudaMalloc(reinterpret_cast<void**>(&from), 1 << 20), "cudaMalloc");
  must(cudaMemset(from, pe + 1, 1 << 20), "cudaMemset");
  must(cudaMalloc(reinterpret_cast<void**>(&took), 8 * kRounds), "cudaMalloc");
  int khz = 0;
  must(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, pe), "cudaDeviceGetAttribute");
  std::uint64_t before = 0;
  for (const std::size_t bytes : {8u, 1024u, 4096u, 16384u, 65536u}) {
    double best = 0, of_bytes = 0;
    for (const unsigned threads : {32u, 128u, 512u, 1024u}) {
      for (const int rounds : {50, kRounds}) {
        nvshmem_barrier_all();
        cudaEvent_t begin, end;
        must(cudaEventCreate(&begin), "event");
        must(cudaEventCreate(&end), "event");
        must(cudaEventRecord(begin), "record");
        ping_pong<<<1, threads>>>(to, from, bytes, signal, pe, before, rounds, took);
        must(cudaEventRecord(end), "record");
        must(cudaDeviceSynchronize(), "ping_pong");
        float ms = 0;
        must(cudaEventElapsedTime(&ms, begin, end), "elapsed");
        before += static_cast<std::uint64_t>(rounds);
        of_bytes = ms * 1e6;
      }
      std::vector<long long> all(kRounds);
      must(cudaMemcpy(all.data(), took, 8 * kRounds, cudaMemcpyDefault), "cudaMemcpy");
      double clocks = 0;
      for (const long long each : all) clocks += static_cast<double>(each);
      std::sort(all.begin(), all.end());
      const double half_us = static_cast<double>(all[kRounds / 2]) * of_bytes / clocks / 2e3;
      if (best == 0 || half_us < best) best = half_us;
    }
    std::vector<unsigned char> found(bytes);
    must(cudaMemcpy(found.data(), to, bytes, cudaMemcpyDefault), "cudaMemcpy");
    for (const unsigned char each : found)
      if (each != 2 - pe) return 1;
    if (pe == 0) std::printf("%zu %.3f\n", bytes, best);
  }
  std::fflush(stdout);
  nvshmem_free(to);
  nvshmem_free(signal);
  nvshmem_finalize();
  return 0;
}

}  // namespace

int main() {
  // Before any CUDA call: the parent is PE 0 and makes the id.
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) return 1;
  const pid_t child = fork();
  nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
  if (child == 0) {
    close(pipe_ends[1]);
    if (read(pipe_ends[0], &id, sizeof id) != static_cast<ssize_t>(sizeof id)) return 3;
    return run(1, id);
  }
  if (nvshmemx_get_uniqueid(&id) != 0) return 3;
  if (write(pipe_ends[1], &id, sizeof id) != static_cast<ssize_t>(sizeof id)) return 1;
  const int code = run(0, id);
  int status = 0;
  waitpid(child, &status, 0);
  return code != 0 ? code : WEXITSTATUS(status);
}
