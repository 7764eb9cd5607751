#include "linkspan/status.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace linkspan {

TEST(Status, OkSaysNothing) {
  const Status ok;
  EXPECT_TRUE(ok.ok());
  EXPECT_EQ(ok.code(), Code::ok);
  EXPECT_EQ(ok.what(), "");
  EXPECT_EQ(ok.to_string(), "ok");
}

TEST(Status, SaysWhatAndWhere) {
  const Status bad(Code::timed_out, Scope::peer, "no answer");
  const int line = __LINE__ - 1;
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.scope(), Scope::peer);
  EXPECT_EQ(bad.what(), "no answer");
  EXPECT_EQ(bad.to_string(),
            "timed_out: no answer (" + std::string(__FILE__) + ":" + std::to_string(line) + ")");
}

TEST(Status, BackPressureIsOneSharedObject) {
  EXPECT_EQ(Status::no_resource().code(), Code::no_resource);
  EXPECT_EQ(&Status::no_resource(), &Status::no_resource());
}

TEST(Status, CodesHaveTheirNamesAndNumbers) {  // the numbers are ABI
  EXPECT_EQ(static_cast<int>(Code::ok), 0);
  EXPECT_EQ(static_cast<int>(Code::no_resource), 3);
  EXPECT_EQ(static_cast<int>(Code::internal), 16);
  EXPECT_STREQ(name_of(Code::permission_denied), "permission_denied");
  EXPECT_STREQ(name_of(Code::internal), "internal");
  EXPECT_STREQ(name_of(static_cast<Code>(17)), "unknown");
}

TEST(Result, HoldsAValueOrTheReason) {
  Result<std::unique_ptr<int>> good(std::make_unique<int>(7));
  ASSERT_TRUE(good.ok());
  EXPECT_TRUE(good.status().ok());
  const std::unique_ptr<int> moved = *std::move(good);
  EXPECT_EQ(*moved, 7);

  const Result<int> bad(Status(Code::not_found, Scope::request, "gone"));
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().code(), Code::not_found);
}

TEST(Result, ConvertsToBool_AndNamesItsError) {
  const Result<bool> good(false);
  EXPECT_TRUE(static_cast<bool>(good)) << "it has a value, which is false";
  EXPECT_TRUE(good.error().ok());
  const Result<int> bad(Status(Code::busy, Scope::request, "in use"));
  EXPECT_FALSE(static_cast<bool>(bad));
  EXPECT_EQ(bad.error().code(), Code::busy);
}

TEST(Result, ValueReturnsTheValue_OrThrowsTheStatus) {
  Result<std::unique_ptr<int>> good(std::make_unique<int>(7));
  EXPECT_EQ(*good.value(), 7);
  const std::unique_ptr<int> moved = std::move(good).value();
  EXPECT_EQ(*moved, 7);
  const Result<int> bad(Status(Code::not_found, Scope::peer, "no region \"kv\""));
  try {
    (void)bad.value();
    FAIL() << "there is no value";
  } catch (const BadResultAccess& thrown) {
    EXPECT_EQ(thrown.error().code(), Code::not_found);
    EXPECT_EQ(thrown.error().scope(), Scope::peer);
    EXPECT_EQ(std::string(thrown.what()), bad.status().to_string());
  }
}

}  // namespace linkspan
