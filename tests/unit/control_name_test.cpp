// Tests names of Engines in a handshake, and the report of a refusal.
#include "tests/unit/control_fixture.hpp"

namespace linkspan::control {
namespace control_name_test {

using namespace std::chrono_literals;

class ControlNames : public test::ControlFixture,
                     public ::testing::WithParamInterface<const char*> {
 protected:
  void serve_by() { serve(GetParam() == std::string_view("tcp")); }
  Result<std::shared_ptr<Session>> connect_as(const Identity& us, const std::string& expect) {
    client_ = test::take(ControlPlane::open(us, theirs_, log_));
    return client_->connect(at_, soon(), expect);
  }
};

TEST_P(ControlNames, ThatIsExpectedIsMet) {
  serve_by();
  EXPECT_TRUE(connect_as(other_, "server").ok());
}

TEST_P(ControlNames, ThatIsAnotherEndsTheConnectionAndIsNamed) {
  us_.secret = other_.secret = "a secret of both sides";
  serve_by();
  const base::Time begin = base::Clock::steady().now();
  const Status why = connect_as(other_, "weights-7").status();
  EXPECT_EQ(why.code(), Code::permission_denied) << why.to_string();
  for (const char* word : {"\"server\"", "\"weights-7\"", "expect"})
    EXPECT_NE(why.what().find(word), std::string::npos) << why.what();
  EXPECT_LT(base::Clock::steady().now() - begin, 5s);
}

TEST_P(ControlNames, ThatAreRefusedAreToldWhy) {
  serve_by();
  other_.engine = std::string(kMaxEngineName + 1, 'x');  // as of a release that has no bound
  const base::Time begin = base::Clock::steady().now();
  const Status why = connect_as(other_, {}).status();
  EXPECT_EQ(why.code(), Code::corrupt) << why.to_string();
  EXPECT_NE(why.what().find("the peer: hello beyond a limit"), std::string::npos) << why.what();
  EXPECT_LT(base::Clock::steady().now() - begin, 5s);
}

INSTANTIATE_TEST_SUITE_P(By, ControlNames, ::testing::Values("unix", "tcp"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace control_name_test
}  // namespace linkspan::control
