// Tests GpuCopier's orders of pages, on the GPU of this machine or over the simulated driver.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "copy/gpu_copier.hpp"
#include "tests/support/take.hpp"

namespace linkspan::copy {
namespace page_copy_test {

using test::take;
using Bytes = std::vector<unsigned char>;
using Indices = std::vector<std::uint32_t>;

constexpr unsigned char kPoison = 0xEE;
constexpr std::size_t kBytes = std::size_t{24} << 20;

struct Case {
  std::uint64_t page_bytes;
  std::size_t pages;
  std::size_t to_base, from_base;
};

class GpuPages : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    auto created = cuda::Topology::create();
    if (!created.ok()) {
      ASSERT_EQ(created.status().code(), Code::unsupported);
      GTEST_SKIP() << "needs a GPU or the simulated driver";
    }
    topology = *std::move(created);
    device = take(topology->activate(topology->devices()[0].uuid));
    copier = take(GpuCopier::create(*device, {}));
    if (!copier->has_kernel()) GTEST_SKIP() << "needs a build with kernels";
    const auto scope = take(device->enter());
    for (int i = 0; i < 2; ++i) gpu.push_back(take(cuda::DeviceBuffer::create(scope, kBytes)));
    staging.push_back(take(cuda::PinnedBuffer::create(scope, kBytes)));
  }

  Status end_of(Ticket ticket) {
    const auto deadline = base::Deadline::after(base::Clock::steady(), std::chrono::seconds(30));
    while (!deadline.passed()) {
      if (auto end = copier->poll(ticket)) return *end;
      std::this_thread::yield();
    }
    return {Code::timed_out, Scope::request, "the order never ended"};
  }
  Status run(const Order& order) {
    auto ticket = copier->start(order);
    return ticket.ok() ? end_of(*ticket) : ticket.status();
  }
  void copy_whole(std::uint64_t to, std::uint64_t from) {
    const Piece all{to, from, kBytes};
    const Status end = run({.method = Method::copy_engine, .pieces = {&all, 1}});
    ASSERT_TRUE(end.ok()) << end.to_string();
  }
  void put(const cuda::DeviceBuffer& buffer, const Bytes& data) {
    std::memcpy(staging[0].data(), data.data(), kBytes);
    copy_whole(buffer.address(), staged());
  }
  Bytes get(const cuda::DeviceBuffer& buffer) {
    copy_whole(staged(), buffer.address());
    const auto* begin = reinterpret_cast<const unsigned char*>(staging[0].data());
    return {begin, begin + kBytes};
  }
  std::uint64_t staged() const { return staging[0].device_address(); }

  std::unique_ptr<cuda::Topology> topology;
  const cuda::Device* device = nullptr;
  std::unique_ptr<GpuCopier> copier;
  std::vector<cuda::DeviceBuffer> gpu;
  std::vector<cuda::PinnedBuffer> staging;
};

Bytes pattern() {
  Bytes data(kBytes);
  for (std::size_t i = 0; i < kBytes; ++i)
    data[i] = static_cast<unsigned char>(i * 131 + (i >> 8) * 7 + (i >> 16));
  return data;
}

/// Returns `count` different indices of pages that fit after `base`.
Indices scattered(std::size_t count, std::size_t base, std::uint64_t page_bytes, unsigned seed) {
  Indices all(std::min<std::size_t>((kBytes - base) / page_bytes, 100'000));
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), std::mt19937(seed));
  all.resize(count);
  return all;
}

TEST_P(GpuPages, ExactlyThePagesAreCopied) {
  const Case& c = GetParam();
  const Bytes data = pattern();
  put(gpu[0], Bytes(kBytes, kPoison));
  put(gpu[1], data);
  const Indices to = scattered(c.pages, c.to_base, c.page_bytes, 1);
  const Indices from = scattered(c.pages, c.from_base, c.page_bytes, 2);
  const Status end = run({.method = Method::sm_kernel,
                          .pages = {.to = gpu[0].address() + c.to_base,
                                    .from = gpu[1].address() + c.from_base,
                                    .page_bytes = c.page_bytes,
                                    .to_index = to,
                                    .from_index = from}});
  ASSERT_TRUE(end.ok()) << end.to_string();
  Bytes want(kBytes, kPoison);
  for (std::size_t i = 0; i < c.pages; ++i)
    std::memcpy(want.data() + c.to_base + to[i] * c.page_bytes,
                data.data() + c.from_base + from[i] * c.page_bytes, c.page_bytes);
  EXPECT_TRUE(get(gpu[0]) == want);
}

INSTANTIATE_TEST_SUITE_P(Every, GpuPages,
                         ::testing::Values(Case{1, 1000, 0, 0}, Case{3, 4001, 1, 2},
                                           Case{16, 1, 16, 0}, Case{257, 24576, 1, 0},
                                           Case{256, 24576, 0, 128}, Case{4096, 2113, 0, 0},
                                           Case{65536, 63, 8, 4}, Case{100001, 200, 16, 16},
                                           Case{std::uint64_t{7} << 20, 3, 5, 5}),
                         [](const auto& c) {
                           return std::to_string(c.param.pages) + "_of_" +
                                  std::to_string(c.param.page_bytes);
                         });

using GpuPageOrders = GpuPages;

TEST_F(GpuPageOrders, ListsThatLieReadyAreReadWhereTheyLie) {
  constexpr std::uint64_t kPage = 48;
  constexpr std::size_t kCount = 5000;
  const Bytes data = pattern();
  put(gpu[0], Bytes(kBytes, kPoison));
  put(gpu[1], data);
  const Indices to = scattered(kCount, 0, kPage, 3), from = scattered(kCount, 0, kPage, 4);
  const auto scope = take(device->enter());
  const auto lists = take(cuda::PinnedBuffer::create(scope, 2 * kCount * sizeof to[0]));
  auto* const index = reinterpret_cast<std::uint32_t*>(lists.data());
  std::ranges::copy(from, std::ranges::copy(to, index).out);
  const Indices wrong(kCount, 7);  // what is not to be read
  const std::uint64_t at = lists.device_address(), behind = at + kCount * sizeof to[0];
  for (const std::size_t first : {std::size_t{0}, std::size_t{3}}) {
    const std::size_t skipped = first * sizeof to[0];
    const Status end = run({.method = Method::sm_kernel,
                            .pages = {.to = gpu[0].address(),
                                      .from = gpu[1].address(),
                                      .page_bytes = kPage,
                                      .to_index = std::span(wrong).subspan(first),
                                      .from_index = std::span(wrong).subspan(first),
                                      .to_list = at + skipped,
                                      .from_list = behind + skipped}});
    ASSERT_TRUE(end.ok()) << end.to_string();
    Bytes want(kBytes, kPoison);
    for (std::size_t i = first; i < kCount; ++i)
      std::memcpy(want.data() + to[i] * kPage, data.data() + from[i] * kPage, kPage);
    EXPECT_TRUE(get(gpu[0]) == want);
    put(gpu[0], Bytes(kBytes, kPoison));
  }
}

TEST_F(GpuPageOrders, APageAboveTheLastIsNotCopied) {
  constexpr std::uint64_t kPage = 48;
  constexpr std::size_t kCount = 5000, kWrong = 4711;
  const Bytes data = pattern();
  put(gpu[1], data);
  const Indices good_to = scattered(kCount, 0, kPage, 3),
                good_from = scattered(kCount, 0, kPage, 4);
  const auto last = static_cast<std::uint32_t>(kBytes / kPage - 1);
  for (const bool of_target : {true, false})
    for (const std::uint32_t wrong : {last + 1, ~0u}) {
      Indices to = good_to, from = good_from;
      (of_target ? to : from)[kWrong] = wrong;
      put(gpu[0], Bytes(kBytes, kPoison));
      const Status end = run({.method = Method::sm_kernel,
                              .pages = {.to = gpu[0].address(),
                                        .from = gpu[1].address(),
                                        .page_bytes = kPage,
                                        .to_index = to,
                                        .from_index = from,
                                        .to_last = last,
                                        .from_last = last,
                                        .first = 100}});
      EXPECT_EQ(end.code(), Code::invalid_argument);
      EXPECT_NE(end.what().find("page 4811 leaves its region: " + std::to_string(wrong) +
                                " in the list of the " + (of_target ? "target" : "source")),
                std::string::npos)
          << end.to_string();
      Bytes want(kBytes, kPoison);
      for (std::size_t i = 0; i < kCount; ++i)
        if (i != kWrong)
          std::memcpy(want.data() + to[i] * kPage, data.data() + from[i] * kPage, kPage);
      EXPECT_TRUE(get(gpu[0]) == want);
      EXPECT_TRUE(run({.method = Method::sm_kernel,  // whose slot says nothing of the one before
                       .pages = {.to = gpu[0].address(),
                                 .from = gpu[1].address(),
                                 .page_bytes = kPage,
                                 .to_index = good_to,
                                 .from_index = good_from,
                                 .to_last = last,
                                 .from_last = last}})
                      .ok());
    }
}

TEST_F(GpuPageOrders, WhatIsTooMuchForOneOrderIsRefused) {
  const Indices many(GpuCopier::kPages + 1);
  const PageList pages{.to = gpu[0].address(),
                       .from = gpu[1].address(),
                       .page_bytes = 1,
                       .to_index = many,
                       .from_index = many};
  EXPECT_EQ(run({.method = Method::sm_kernel, .pages = pages}).code(), Code::invalid_argument);
  PageList shorter = pages;
  shorter.to_index = std::span(many).first(2);
  EXPECT_EQ(run({.method = Method::sm_kernel, .pages = shorter}).code(), Code::invalid_argument);
  shorter.from_index = shorter.to_index;
  EXPECT_EQ(run({.method = Method::copy_engine, .pages = shorter}).code(), Code::invalid_argument);
  shorter.page_bytes = ~std::uint64_t{0};
  EXPECT_EQ(run({.method = Method::sm_kernel, .pages = shorter}).code(), Code::invalid_argument);
}

TEST_F(GpuPageOrders, AnAbortedOneIsQuietAndLeavesTheNextAlone) {
  const Bytes data = pattern();
  put(gpu[1], data);
  constexpr std::uint64_t kPage = 4096;
  Indices all(kBytes / kPage);
  std::iota(all.begin(), all.end(), 0);
  const Order order{.method = Method::sm_kernel,
                    .pages = {.to = gpu[0].address(),
                              .from = gpu[1].address(),
                              .page_bytes = kPage,
                              .to_index = all,
                              .from_index = all}};
  for (int i = 0; i < 4; ++i) {
    const Ticket ticket = take(copier->start(order));
    copier->abort(ticket);
    const Status end = end_of(ticket);
    EXPECT_TRUE(end.ok() || end.code() == Code::canceled) << end.to_string();
    put(gpu[0], Bytes(kBytes, kPoison));
    EXPECT_TRUE(get(gpu[0]) == Bytes(kBytes, kPoison));  // no late bytes
    ASSERT_TRUE(run(order).ok());
    ASSERT_TRUE(get(gpu[0]) == data);
  }
}

}  // namespace page_copy_test
}  // namespace linkspan::copy
