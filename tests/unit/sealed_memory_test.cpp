#include "base/sealed_memory.hpp"

#include <gtest/gtest.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "base/shared_page.hpp"
#include "tests/support/process.hpp"
#include "tests/support/take.hpp"

namespace linkspan::base {
namespace sealed_memory_test {

using test::take;

Fd memfd(unsigned flags) {
  return take(Fd::from("memfd_create", ::memfd_create("test", MFD_CLOEXEC | flags)));
}

TEST(SealedMemory, IsTmpfsThatCannotShrink) {
  const Fd file = take(make_memfd("test", 8192));
  EXPECT_EQ(sealed_memory(file).status().code(), Code::corrupt) << "not sealed";
  ASSERT_EQ(::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  const SealedMemory facts = take(sealed_memory(file));
  EXPECT_EQ(facts.bytes, 8192u);
  EXPECT_EQ(facts.id, take(sealed_memory(take(file.duplicate()))).id);
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  const Fd in(pipe[0]), out(pipe[1]);
  EXPECT_EQ(sealed_memory(in).status().code(), Code::corrupt);
}

/// The owner can punch out its pages in spite of the seal. Creating the memfd needs no such pages.
TEST(SealedMemory, IsRefusedInWords_WhenItIsHugetlb) {
  const Fd file = memfd(MFD_HUGETLB | MFD_ALLOW_SEALING);
  ASSERT_EQ(::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  const Status refused = sealed_memory(file).status();
  EXPECT_EQ(refused.code(), Code::corrupt);
  EXPECT_NE(refused.what().find("hugetlb"), std::string::npos) << refused.what();
  EXPECT_EQ(SharedPage::open(file, 512, SharedPage::Others::read).status().code(), Code::corrupt);
}

constexpr const char* kHelper = "small_files";

/// Runs with RLIMIT_FSIZE at 64 KiB and the default action of SIGXFSZ.
void small_files_main(test::Line& line) {
  line.serve(
      [&](const test::Json&, const std::vector<Fd>&) -> Result<test::Answer> {
        const rlimit limit{65536, 65536};
        if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return Status(Code::system, Scope::process, "");
        if (auto fits = make_memfd("test", 65536); !fits.ok()) return fits.status();
        return SharedPage::create("test", 65536, SharedPage::Others::read).status();
      },
      [] { return false; });
}
const bool kRegistered = test::add_helper(kHelper, small_files_main);

TEST(SealedMemory, IsAnErrorInWords_WhenFilesMayNotBeSoLarge) {
  const auto child = take(test::Child::spawn(kHelper));
  const Status refused = child->line().call({{"do", "it"}}).status();
  EXPECT_EQ(refused.code(), Code::system) << refused.to_string();
  EXPECT_NE(refused.what().find("RLIMIT_FSIZE"), std::string::npos) << refused.what();
}

}  // namespace sealed_memory_test
}  // namespace linkspan::base
