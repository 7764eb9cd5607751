// Tests kernels/unpack.cu itself, compiled for the host: lane by lane, twice. The first time each
// lane records what it has for its neighbours and gets zeros, which copy nothing; the second time
// it gets what they had. That works because the number of shuffles does not depend on their values.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "tests/support/pattern.hpp"

namespace linkspan::copy {
namespace unpack_kernel_test {

struct [[gnu::may_alias]] alignas(16) uint4 {  // NOLINT(readability-identifier-naming): CUDA's
  unsigned x, y, z, w;
};
uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

struct Index {
  unsigned x;
};
Index threadIdx, blockIdx, gridDim;  // NOLINT(readability-identifier-naming): CUDA's

/// Records the arguments of the lanes of a warp, call by call.
std::vector<unsigned> given[32];
std::size_t calls = 0;
bool first_time = true;

unsigned __shfl_sync(unsigned, unsigned value, unsigned lane) {  // NOLINT: CUDA's
  if (first_time) {
    given[threadIdx.x % 32].push_back(value);
    return 0;
  }
  return given[lane].at(calls++);
}
unsigned __funnelshift_r(unsigned low, unsigned high, unsigned bits) {  // NOLINT: CUDA's
  return static_cast<unsigned>(((std::uint64_t{high} << 32) | low) >> (bits & 31));
}

#define __device__
#define __global__
#define __grid_constant__
#define __launch_bounds__(threads, ctas)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "copy/kernels/unpack.cu"
#pragma GCC diagnostic pop

void run(const LinkspanUnpack& parameter, unsigned ctas) {
  gridDim.x = ctas;
  for (blockIdx.x = 0; blockIdx.x < ctas; ++blockIdx.x)
    for (unsigned warp = 0; warp < kThreads / kWarp; ++warp) {
      for (auto& of_lane : given) of_lane.clear();
      for (const bool first : {true, false})
        for (unsigned lane = 0; lane < kWarp; ++lane) {
          first_time = first;
          calls = 0;
          threadIdx.x = warp * kWarp + lane;
          linkspan_unpack(parameter);
        }
    }
}

class TcpxUnpackKernel : public ::testing::Test {
 protected:
  static constexpr std::size_t kBytes = 1u << 20, kWords = kBytes / sizeof(uint4);

  std::span<std::byte> bytes_of(std::vector<uint4>& words) {
    return std::as_writable_bytes(std::span(words));
  }
  void add(std::uint64_t to, unsigned pool, std::uint32_t from, std::uint32_t bytes) {
    const auto address = reinterpret_cast<std::uint64_t>(target.data()) + to;
    list.push_back({from, bytes | pool << 24, static_cast<unsigned>(address),
                    static_cast<unsigned>(address >> 32)});
    expected.push_back({to, 1 + pool, from, bytes});
  }
  void expect_unpacked(unsigned ctas) {
    test::put_pattern(bytes_of(target), 9, 0);
    LinkspanUnpack parameter{};
    parameter.list = list.data();
    parameter.count = static_cast<unsigned>(list.size());
    for (unsigned i = 0; i < 2; ++i) {
      test::put_pattern(bytes_of(pools[i]), 1 + i, 0);
      parameter.pools[i * 31] = reinterpret_cast<std::uint64_t>(pools[i].data());
    }
    for (uint4& entry : list)
      if (entry.y >> 24 == 1) entry.y |= 31u << 24;
    run(parameter, ctas);
    EXPECT_EQ(test::first_difference(bytes_of(target), 9, 0, expected), "") << ctas << " CTAs";
  }

  std::vector<uint4> pools[2] = {std::vector<uint4>(kWords), std::vector<uint4>(kWords)};
  std::vector<uint4> target = std::vector<uint4>(kWords), list;
  std::vector<test::Expected> expected;
};

TEST_F(TcpxUnpackKernel, EveryAlignmentOfBothSides) {
  std::uint64_t at = 0, from = 0;
  for (const std::uint32_t bytes : {0u, 1u, 15u, 16u, 17u, 30u, 47u, 512u, 527u, 2100u}) {
    for (std::uint32_t to_odd = 0; to_odd < 16; ++to_odd)
      for (std::uint32_t from_odd = 0; from_odd < 16; ++from_odd) {
        const unsigned room = (bytes + 47) / 16 * 16;
        if (at + room + 16 > kBytes || from + room + 16 > kBytes) from = at = kBytes;
        if (at == kBytes) break;
        add(at + to_odd, bytes % 2, static_cast<std::uint32_t>(from + from_odd), bytes);
        at += room;
        from += room;
      }
    for (const unsigned ctas : {1u, 3u}) expect_unpacked(ctas);
    list.clear();
    expected.clear();
    at = from = 0;
  }
}

TEST_F(TcpxUnpackKernel, ListsOfAnyLength) {
  std::mt19937 random(1);
  for (const std::size_t count : {0u, 1u, 31u, 33u, 511u, 513u, 2000u}) {
    list.clear();
    expected.clear();
    for (std::uint64_t i = 0; i < count; ++i)
      add(i * 401 + random() % 100, random() % 2, static_cast<std::uint32_t>(random() % 1'000'000),
          static_cast<std::uint32_t>(random() % 300));
    std::shuffle(list.begin(), list.end(), random);
    for (const unsigned ctas : {1u, 2u, 40u}) expect_unpacked(ctas);
  }
}

}  // namespace unpack_kernel_test
}  // namespace linkspan::copy
