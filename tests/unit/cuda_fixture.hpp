// tests/unit/cuda_fixture.hpp - the first GPU, in use, for the tests of the cuda room.
//
// Suites are called ...OnDevice: tests/allowed_skips.txt lists them by that.
// Threads: externally synchronised.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "cuda/topology.hpp"

namespace linkspan::cuda {

class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Topology>> created = Topology::create();
    if (created.status().code() == Code::unsupported)
      GTEST_SKIP() << "needs a GPU or the simulated driver: " << created.status().to_string();
    ASSERT_TRUE(created.ok()) << created.status().to_string();
    topology = *std::move(created);
    const Result<const Device*> activated = topology->activate(topology->devices()[0].uuid);
    ASSERT_TRUE(activated.ok()) << activated.status().to_string();
    device = *activated;
    scope = entered(*device);
    ASSERT_TRUE(scope);
  }

  static std::unique_ptr<DeviceScope> entered(const Device& on) {
    Result<DeviceScope> result = on.enter();
    return result.ok() ? std::make_unique<DeviceScope>(*std::move(result)) : nullptr;
  }

  /// Waits until `stream` is idle. Fails the test if its work failed.
  void finish(const Stream& stream) const {
    EXPECT_EQ(device->driver().cuStreamSynchronize(stream.get()), CUDA_SUCCESS);
    EXPECT_TRUE(stream.query(*scope).ok());
  }

  std::unique_ptr<Topology> topology;
  const Device* device = nullptr;
  std::unique_ptr<DeviceScope> scope;  // of `device`; ends before the topology
};

/// Differs at each offset and for each seed.
inline std::byte pattern(std::size_t offset, unsigned seed) {
  return static_cast<std::byte>((offset * 2654435761u + seed * 40503u) >> 7);
}

}  // namespace linkspan::cuda
