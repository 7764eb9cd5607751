#include "copy/cma.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <vector>

namespace linkspan::copy {
namespace cma_test {

constexpr std::size_t kPage = 4096, kPages = 8, kBytes = kPages * kPage;

std::uint64_t address(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

/// Pages with an inaccessible page after them.
class Pages {
 public:
  Pages()
      : at_(static_cast<unsigned char*>(
            ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    for (std::size_t i = 0; i < kBytes; ++i)
      at_[i] = static_cast<unsigned char>(i * 131 + (i >> 8));
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { ::munmap(at_, kBytes); }
  unsigned char* at(std::size_t offset) { return at_ + offset; }
  std::uint64_t address_of(std::size_t offset) { return address(at_ + offset); }
  void protect(std::size_t page, int rights) { ::mprotect(at(page * kPage), kPage, rights); }

 private:
  unsigned char* at_;
};

TEST(CopyWithin, MovesOddPiecesAndNothingBesideThem) {
  Pages from, to;
  std::memset(to.at(0), 0xEE, kBytes);
  std::vector<unsigned char> wanted(kBytes, 0xEE);
  std::vector<Piece> pieces;
  for (std::size_t i = 0, at = 1; i < 150; ++i) {
    const std::size_t bytes = i % 7 == 3 ? 0 : 1 + i * 37 % 211;
    pieces.push_back({to.address_of(at), from.address_of(kBytes - 1 - at - bytes), bytes});
    std::memcpy(wanted.data() + at, from.at(kBytes - 1 - at - bytes), bytes);
    at += bytes + i % 3;
  }
  EXPECT_EQ(copy_within(pieces).to_string(), "ok");
  EXPECT_EQ(std::memcmp(to.at(0), wanted.data(), kBytes), 0);
}

TEST(CopyWithin, StoresWordsBetweenOtherPieces) {
  Pages from, to;
  const std::vector<Piece> pieces{{to.address_of(64), from.address_of(3), 8},
                                  {to.address_of(100), from.address_of(200), 50},
                                  {to.address_of(160), from.address_of(1001), 8}};
  EXPECT_EQ(copy_within(pieces).to_string(), "ok");
  for (const Piece& piece : pieces)
    EXPECT_EQ(std::memcmp(to.at(piece.to - to.address_of(0)),
                          from.at(piece.from - from.address_of(0)), piece.bytes),
              0);
}

TEST(CopyWithin, AnswersWhereAPageCannotBeWritten) {
  Pages from, to;
  to.protect(3, PROT_READ);
  const Piece all{to.address_of(0), from.address_of(0), kBytes};
  const Piece word{to.address_of(3 * kPage + 64), from.address_of(0), 8};
  for (const Piece& each : {all, word})
    EXPECT_EQ(copy_within({&each, 1}).code(), Code::unreachable);
  EXPECT_EQ(std::memcmp(to.at(0), from.at(0), 3 * kPage), 0) << "what lies before it";
}

TEST(CopyWithin, AnswersWhereAPageCannotBeRead) {
  Pages from, to;
  from.protect(2, PROT_NONE);
  ::munmap(from.at(5 * kPage), kPage);
  for (const std::size_t page : {2u, 5u})
    for (const std::uint64_t bytes : {std::uint64_t{8}, std::uint64_t{100}}) {
      const Piece each{to.address_of(0), from.address_of(page * kPage), bytes};
      EXPECT_EQ(copy_within({&each, 1}).code(), Code::unreachable);
    }
}

TEST(CopyWithin, AnswersBehindTheEndOfAFile) {
  const int file = ::memfd_create("shrinks", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(file, kBytes), 0);
  void* const mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  Pages other;
  ASSERT_EQ(::ftruncate(file, kPage), 0);
  const Piece in{address(mapped) + kPage, other.address_of(0), 100},
      word{address(mapped) + kPage, other.address_of(0), 8},
      out{other.address_of(0), address(mapped) + kPage, 100};
  for (const Piece& each : {in, word, out})
    EXPECT_EQ(copy_within({&each, 1}).code(), Code::unreachable);
  ::munmap(mapped, kBytes);
  ::close(file);
}

}  // namespace cma_test
}  // namespace linkspan::copy
