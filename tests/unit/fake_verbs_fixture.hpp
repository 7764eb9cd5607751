// tests/unit/fake_verbs_fixture.hpp - the simulated network cards, and two connected ends in this
// process.
//
// Threads: externally synchronised.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "tests/support/fake_verbs/controls.hpp"
#include "tests/support/pattern.hpp"
#include "tests/support/process.hpp"
#include "tests/support/verbs_end.hpp"

namespace linkspan::transport::verbs {

inline std::string fake_verbs_file() { return test::file_beside_this_program("libfake_verbs.so"); }

class FakeVerbsFixture : public ::testing::Test {
 protected:
  using End = test::VerbsEnd;
  using Options = test::VerbsEndOptions;

  void SetUp() override {
    const Result<Library> loaded = Library::load(fake_verbs_file().c_str());
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    ibv = *loaded;
    fake = test::FakeVerbs::find(fake_verbs_file().c_str());
    ASSERT_TRUE(fake);
    fake.reset();
  }
  void TearDown() override { fake.reset(); }

  /// Makes two ends; the first has the pattern of seed 1, the other of seed 2.
  void connect(Options near_options = {}, Options far_options = {}) {
    far_options.seed = 2;
    near = End::open(ibv, near_options);
    far = End::open(ibv, far_options);
    ASSERT_TRUE(near != nullptr && far != nullptr);
    ASSERT_EQ(near->connect(far->place()), 0);
    ASSERT_EQ(far->connect(near->place()), 0);
  }
  /// Expects memory to be as it was but for what `expected` says, the guards too.
  static void expect_memory(const End& end, std::initializer_list<test::Expected> expected) {
    EXPECT_EQ(test::first_difference(end.memory, end.options.seed, End::kGuard, expected), "");
  }
  static IbvWcStatus status_of(const std::optional<IbvWc>& wc) {
    return wc ? wc->status : static_cast<IbvWcStatus>(-1);
  }
  /// Writes `bytes` from `offset` of the near end to `to` of the far one.
  IbvWcStatus write(std::uint64_t offset, std::uint32_t bytes, std::uint64_t to) {
    if (near->post(near->request(kWrRdmaWrite, offset, bytes, to)) != 0)
      return static_cast<IbvWcStatus>(-2);
    return status_of(near->sent());
  }

  Library ibv;
  test::FakeVerbs fake;
  std::unique_ptr<End> near, far;
};

}  // namespace linkspan::transport::verbs
