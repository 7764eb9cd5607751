// Tests the functions of src/old_glibc in a program that is linked as shipped programs are.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <stdexcept>
#include <string>

#include "old_glibc/steady_wait.hpp"

namespace linkspan::old_glibc {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
constexpr milliseconds kShort{50};
constexpr milliseconds kLong{10'000};  // only a failure waits so long

int constructed = 0;
const struct Counted {
  Counted() noexcept { ++constructed; }
} counted;

TEST(Start, RunsEachConstructorOnce) { EXPECT_EQ(constructed, 1); }

template <class Function>
const void* address_of(Function* function) {
  return reinterpret_cast<const void*>(function);
}

TEST(Replacements, AreThisProgramsOwn) {
  EXPECT_NE(address_of(&::pthread_cond_clockwait), ::dlsym(RTLD_DEFAULT, "pthread_cond_clockwait"));
  EXPECT_NE(address_of(&::_dl_find_object), ::dlsym(RTLD_DEFAULT, "_dl_find_object"));
  EXPECT_NE(address_of(&::arc4random), ::dlsym(RTLD_DEFAULT, "arc4random"));
}

timespec at(Clock::time_point time) {
  const auto ns = time.time_since_epoch() / std::chrono::nanoseconds(1);
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

class SteadyWait : public testing::Test {
 protected:
  int wait(milliseconds time) {
    const timespec until = at(Clock::now() + time);
    return steady_wait(&condition_, &mutex_, &until);
  }
  void SetUp() override { ::pthread_mutex_lock(&mutex_); }
  void TearDown() override {
    ::pthread_mutex_unlock(&mutex_);
    EXPECT_EQ(::pthread_cond_destroy(&condition_), 0);
  }

  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t condition_ = PTHREAD_COND_INITIALIZER;
};

TEST_F(SteadyWait, EndsAtItsTime_WhenNoSignalComes) {
  for (int turn = 0; turn < 2; ++turn) {
    const auto start = Clock::now();
    EXPECT_EQ(wait(kShort), ETIMEDOUT);
    EXPECT_GE(Clock::now() - start, kShort);
    EXPECT_LT(Clock::now() - start, kLong);
  }
}

TEST_F(SteadyWait, EndsAtOnce_WhenItsTimeHasPassed) { EXPECT_EQ(wait(-kShort), ETIMEDOUT); }

TEST_F(SteadyWait, Wakes_WhenASignalComes) {
  bool is_sent = false;
  auto sender = std::async(std::launch::async, [&] {
    ::pthread_mutex_lock(&mutex_);
    is_sent = true;
    ::pthread_cond_signal(&condition_);
    ::pthread_mutex_unlock(&mutex_);
  });
  int result = 0;
  while (!is_sent && result == 0) result = wait(kLong);
  EXPECT_EQ(result, 0);
  ::pthread_mutex_unlock(&mutex_);
  sender.wait();
  ::pthread_mutex_lock(&mutex_);
}

TEST(ConditionVariable, WaitsAsLongAsItIsTold) {
  std::mutex mutex;
  std::condition_variable_any condition;
  std::unique_lock lock(mutex);
  const auto start = Clock::now();
  EXPECT_EQ(condition.wait_for(lock, kShort), std::cv_status::timeout);
  EXPECT_GE(Clock::now() - start, kShort);
}

TEST(TimedMutex, GivesUpAtItsTime_WhenAnotherThreadHasIt) {
  std::timed_mutex mutex;
  const std::unique_lock lock(mutex);
  const auto start = Clock::now();
  EXPECT_FALSE(std::async(std::launch::async, [&] { return mutex.try_lock_for(kShort); }).get());
  EXPECT_GE(Clock::now() - start, kShort - milliseconds(10));  // the time of day may be slewed
  EXPECT_LT(Clock::now() - start, kLong);
}

TEST(TimedMutex, IsLocked_WhenItIsFree) {
  std::timed_mutex mutex;
  EXPECT_TRUE(mutex.try_lock_for(std::chrono::seconds(1)));
  mutex.unlock();
}

TEST(Stat, TellsFilesFromLinks) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("linkspan-old-glibc-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const std::string file = folder / "file";
  const std::string link = folder / "link";
  std::ofstream(file) << "seven b";
  ASSERT_EQ(::symlink("file", link.c_str()), 0);
  struct stat found {};
  ASSERT_EQ(::stat(link.c_str(), &found), 0);
  EXPECT_EQ(found.st_size, 7);
  EXPECT_TRUE(S_ISREG(found.st_mode));
  ASSERT_EQ(::lstat(link.c_str(), &found), 0);
  EXPECT_TRUE(S_ISLNK(found.st_mode));

  const int opened = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_GE(opened, 0);
  ASSERT_EQ(::fstat(opened, &found), 0);
  EXPECT_TRUE(S_ISDIR(found.st_mode));
  struct stat64 found64 {};
  ASSERT_EQ(::fstat64(opened, &found64), 0);
  EXPECT_EQ(found64.st_ino, found.st_ino);
  ASSERT_EQ(::fstatat(opened, "link", &found, AT_SYMLINK_NOFOLLOW), 0);
  EXPECT_TRUE(S_ISLNK(found.st_mode));
  ::close(opened);

  EXPECT_EQ(std::filesystem::file_size(link), 7U);
  std::filesystem::remove_all(folder);
  EXPECT_EQ(::stat(file.c_str(), &found), -1);
  EXPECT_EQ(errno, ENOENT);
}

TEST(Unwinder, FindsItsTablesAsGlibcDoes) {
  using Find = decltype(&::_dl_find_object);
  const auto of_glibc = reinterpret_cast<Find>(::dlsym(RTLD_DEFAULT, "_dl_find_object"));
  const int on_the_stack = 0;
  for (const void* address :
       {address_of(&at), address_of(&::strlen), static_cast<const void*>(&on_the_stack)}) {
    dl_find_object ours{};
    dl_find_object theirs{};
    const int found = ::_dl_find_object(const_cast<void*>(address), &ours);
    EXPECT_EQ(found, address == &on_the_stack ? -1 : 0);
    if (of_glibc == nullptr) continue;  // before 2.35
    EXPECT_EQ(of_glibc(const_cast<void*>(address), &theirs), found);
    EXPECT_EQ(ours.dlfo_eh_frame, theirs.dlfo_eh_frame);
  }
  EXPECT_THROW(throw std::runtime_error("caught by this library's unwinder"), std::runtime_error);
}

TEST(Random, Differs) {
  EXPECT_FALSE(::arc4random() == ::arc4random() && ::arc4random() == ::arc4random());
}

TEST(Signals, HaveATextOrNone) {
  EXPECT_STREQ(::sigdescr_np(SIGKILL), "Killed");
  EXPECT_EQ(::sigdescr_np(0), nullptr);
  EXPECT_EQ(::sigdescr_np(-1), nullptr);
  EXPECT_EQ(::sigdescr_np(SIGSYS + 1), nullptr);
}

}  // namespace
}  // namespace linkspan::old_glibc
