#include "base/untrusted_input.hpp"

#include <gtest/gtest.h>

#include "control/exchange.hpp"
#include "control/handshake.hpp"

namespace linkspan::base {
namespace untrusted_input_test {

TEST(PeerWords, ShowWhatIsText) {
  for (const char* text : {"", "engine 7", "K\xc3\xbchler", "\xe6\xa9\x8b", "\xf0\x9f\x8c\x89"})
    EXPECT_EQ(printable(text), text);
}

TEST(PeerWords, ObeyNothing) {
  struct {
    const char *said, *shown;
  } const each[] = {{"a\nb\x1b[2J\x7f", "a?b?[2J?"},           // C0
                    {"a\xc2\x9b\x33\x31m\xc2\x85", "a?31m?"},  // C1
                    {"a\xe2\x80\xae gnp.exe", "a? gnp.exe"},   // right to left
                    {"\xe2\x81\xa6x\xe2\x81\xa9", "?x?"},      // isolates
                    {"a\xe2\x80\xa8"
                     "b\xe2\x80\x8b",
                     "a?b?"},                                          // line separator, no width
                    {"\xef\xbb\xbfx\xf3\xa0\x81\x81", "?x?"},          // mark, tag
                    {"a\xff\xc3", "a??"},                              // no UTF-8, cut off
                    {"\xc0\xaf\xe0\x80\xaf\xed\xa0\x80", "????????"},  // too long, surrogate
                    {"\xf4\x90\x80\x80\x80", "?????"}};
  for (const auto& [said, shown] : each) EXPECT_EQ(printable(said), shown);
  EXPECT_EQ(printable("a\nb\tc", true), "a\nb?c");
}

TEST(PeerWords, OfAHelloAreMadePrintable) {
  const control::Hello hello{
      .engine = "x\xff\xc2\x9b", .process = {}, .key_share = {}, .transports = {}};
  const auto heard = control::decode_hello(encode(hello));
  ASSERT_TRUE(heard.ok());
  EXPECT_EQ(heard->engine, "x??");
}

TEST(PeerWords, AreNoCodeThatIsNoEnd) {
  EXPECT_EQ(final_code(0), Code::ok);
  EXPECT_EQ(final_code(static_cast<std::uint64_t>(Code::internal)), Code::internal);
  for (const std::uint64_t bad :
       {static_cast<std::uint64_t>(Code::pending), static_cast<std::uint64_t>(Code::internal) + 1,
        std::uint64_t{256}, ~std::uint64_t{0}})
    EXPECT_FALSE(final_code(bad).has_value()) << bad;
  EXPECT_EQ(end_of_transfer(static_cast<std::uint64_t>(Code::timed_out)), Code::timed_out);
  for (const Code bad : {Code::pending, Code::no_resource})
    EXPECT_FALSE(end_of_transfer(static_cast<std::uint64_t>(bad)).has_value()) << name_of(bad);
  const Status pending(Code::pending, Scope::peer, "goes on");
  EXPECT_EQ(control::decode_error(control::encode_error(pending)).code(), Code::corrupt);
  EXPECT_EQ(
      control::decode_finished(encode(control::MessageFinished{.status = pending})).status().code(),
      Code::corrupt);
}

}  // namespace untrusted_input_test
}  // namespace linkspan::base
