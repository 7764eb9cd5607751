// Tests what a list of 8192 pages of 4 KiB costs the thread that moves it by RDMA: calls of the
// device, heap allocations, locks, and time beyond that of the device's calls.
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/support/no_memory.hpp"
#include "tests/support/sanitizers.hpp"
#include "tests/unit/verbs_fixture.hpp"

namespace linkspan::transport::verbs {
namespace verbs_cost_test {

thread_local std::uint64_t* counted_locks = nullptr;

/// Counts and times the calls of the near side's devices.
struct DeviceCalls {
  /// Returns the time that this thread has had a core.
  static std::chrono::nanoseconds now() {
    timespec at{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    return std::chrono::seconds(at.tv_sec) + std::chrono::nanoseconds(at.tv_nsec);
  }
  /// Puts this in the place of the calls of a device.
  static void intercept(IbvContext& context) {
    real_post = std::exchange(context.ops.post_send, post_send);
    real_poll = std::exchange(context.ops.poll_cq, poll_cq);
  }
  static int post_send(IbvQp* queue_pair, IbvSendWr* request, IbvSendWr** refused) {
    const auto begin = now();
    const int error = real_post(queue_pair, request, refused);
    ++posts;
    for (; request != nullptr; request = request->next) ++requests;
    time += now() - begin;
    return error;
  }
  static int poll_cq(IbvCq* queue, int most, IbvWc* completions) {
    const auto begin = now();
    const int count = real_poll(queue, most, completions);
    time += now() - begin;
    return count;
  }
  static void reset() {
    time = {};
    posts = requests = 0;
  }

  static inline decltype(IbvContextOps::post_send) real_post = nullptr;
  static inline decltype(IbvContextOps::poll_cq) real_poll = nullptr;
  static inline std::chrono::nanoseconds time{};
  static inline std::uint64_t posts = 0, requests = 0;
};

class VerbsCost : public VerbsPair {
 protected:
  static constexpr std::uint64_t kPages = 8192, kPageBytes = 4096;
  static constexpr double kMostNs = 30;  // a page, on an idle core

  struct Cost {
    std::uint64_t posts = 0, requests = 0, locks = 0, allocations = 0;
    double ns_each = 0;  ///< A page, beyond the device's calls.
  };

  /// Moves the pages by calls of the near Endpoint alone, as seldom as the device needs. Each
  /// `fail_each`-th allocation fails.
  Cost move(std::uint64_t cookie, const Pages& pages, unsigned fail_each = 1) {
    Cost cost;
    DeviceCalls::reset();
    std::jthread([&] {
      ::pthread_setname_np(::pthread_self(), "ls-test");
      const test::NoMemory none("ls-test", fail_each);
      hold(true);
      counted_locks = &cost.locks;
      const auto begin = DeviceCalls::now();
      EXPECT_TRUE(near->endpoint
                      ->post({.op = Op::write,
                              .local = &near->region(),
                              .remote = near->remote.get(),
                              .shape = pages,
                              .cookie = cookie})
                      .ok());
      auto time = DeviceCalls::now() - begin;
      const auto limit = base::Deadline::in(20s);
      while (ended.cookie != cookie && !limit.passed()) {
        hold(false);
        std::this_thread::sleep_for(3ms);
        hold(true);  // so that the cards' threads do not take this one's caches
        const auto again = DeviceCalls::now();
        near->endpoint->progress(ended);
        time += DeviceCalls::now() - again;
      }
      counted_locks = nullptr;
      hold(false);
      const std::chrono::duration<double, std::nano> own = time - DeviceCalls::time;
      cost.ns_each = own.count() / kPages;
      cost.allocations = test::NoMemory::failed();
    }).join();
    EXPECT_TRUE(ended.status.ok()) << ended.status.to_string();
    EXPECT_EQ(std::exchange(ended.cookie, 0), cookie);
    cost.posts = DeviceCalls::posts;
    cost.requests = DeviceCalls::requests;
    return cost;
  }

 private:
  struct : CompletionSink {
    void complete(Completion&& end) override {
      cookie = end.cookie;
      status = std::move(end.status);
    }
    std::uint64_t cookie = 0;
    Status status;
  } ended;
};

TEST_F(VerbsCost, OfAListOfPagesIsItsRequestsAndLittleBeside) {
  connect({}, kPages * kPageBytes);
  for (const Rail& rail : near->transport->options().rails)
    DeviceCalls::intercept(*rail.device->context());
  std::vector<std::uint32_t> here, there;
  std::vector<test::Expected> expected;
  for (std::uint32_t i = 0; i < kPages; ++i) {
    here.push_back(i * 37 % kPages);
    there.push_back(i * 101 % kPages);
  }
  const Pages pages{.page_bytes = kPageBytes, .local_index = here, .remote_index = there};
  warm_up();
  (void)move(2, pages, ~0u);  // allocates what is kept
  fill(3);
  double best = 1e9;
  for (std::uint64_t round = 3; round < 6 || (round < 100 && best > kMostNs); ++round) {
    const Cost cost = move(round, pages);
    EXPECT_EQ(cost.requests, kPages);
    EXPECT_LE(cost.posts, kPages / SendLimits{}.chain + 2);
    EXPECT_EQ(cost.allocations, 0u);
    EXPECT_LE(cost.locks, 3u);
    best = std::min(best, cost.ns_each);
  }
  for (std::uint32_t i = 0; i < kPages; ++i)
    expected.push_back({there[i] * kPageBytes, near_seed(), here[i] * kPageBytes, kPageBytes});
  expect_memory(*far, expected);
  RecordProperty("ns_each_page", std::to_string(best));
#if !defined(LINKSPAN_SANITIZER)
  EXPECT_LE(best, 2 * kMostNs) << "beside other suites it takes longer";
#endif
}

}  // namespace verbs_cost_test
}  // namespace linkspan::transport::verbs

// The linker leads the program's calls to this (cmake/tests.cmake), and none of a library's.
extern "C" {
int __real_pthread_mutex_lock(pthread_mutex_t* mutex);  // NOLINT

int __wrap_pthread_mutex_lock(pthread_mutex_t* mutex) {  // NOLINT
  if (auto* const locks = linkspan::transport::verbs::verbs_cost_test::counted_locks) ++*locks;
  return __real_pthread_mutex_lock(mutex);
}
}
