#include "control/process_sessions.hpp"

#include <gtest/gtest.h>

namespace linkspan::control {
namespace process_sessions_test {

TEST(ProcessSessions, RefusesTooManyOfOneProcess) {
  ProcessSessions sessions(2, 2);
  EXPECT_TRUE(sessions.add(1, 100).ok());
  EXPECT_TRUE(sessions.add(2, 100).ok());
  EXPECT_TRUE(sessions.add(3, 101).ok());
  EXPECT_EQ(sessions.add(4, 100).what(),
            "pid 100 has 2 sessions here, which is all that one process may have");
  sessions.remove(1);
  EXPECT_EQ(sessions.add(5, 100).code(), Code::no_resource) << "the refused one counts";
  sessions.remove(4);
  sessions.remove(5);
  EXPECT_TRUE(sessions.add(6, 100).ok());
}

TEST(ProcessSessions, RefusesAProcessThatHasLeftTooMany) {
  ProcessSessions sessions(9, 1);
  EXPECT_TRUE(sessions.add(1, 100).ok());
  sessions.leave(1);
  sessions.leave(1);
  EXPECT_EQ(sessions.add(2, 100).what(),
            "pid 100 has left 1 sessions without a goodbye, which are kept here until it ends: no "
            "more of it");
  EXPECT_TRUE(sessions.add(3, 101).ok());
  sessions.remove(1);
  EXPECT_TRUE(sessions.add(4, 100).ok());
}

TEST(ProcessSessions, IgnoresASessionThatIsNotCounted) {
  ProcessSessions sessions(1, 1);
  sessions.leave(7);
  sessions.remove(7);
  EXPECT_TRUE(sessions.add(7, 100).ok());
}

}  // namespace process_sessions_test
}  // namespace linkspan::control
