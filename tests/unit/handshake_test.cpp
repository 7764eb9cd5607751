// Tests what a hello may contain about addresses and transports: the decoder refuses a hostile one.
#include "control/handshake.hpp"

#include <gtest/gtest.h>

#include "base/schema/control_generated.h"
#include "base/schema/flat.hpp"
#include "net/interfaces.hpp"
#include "tests/support/take.hpp"

namespace linkspan::control {
namespace handshake_test {

/// Encodes a hello without checking any rule.
std::vector<std::byte> hello_with(const std::vector<std::string>& addresses) {
  flatbuffers::FlatBufferBuilder out;
  const std::vector<std::byte> bytes(32);
  const auto engine = out.CreateString("peer");
  const auto boot = schema::vector_of(out, std::span(bytes).first(16));
  const auto share = schema::vector_of(out, bytes);
  const auto list = out.CreateVector(std::vector<flatbuffers::Offset<schema::TransportAddress>>());
  const auto more = out.CreateVectorOfStrings(addresses);
  out.Finish(schema::CreateHello(out, engine, boot, 0, 0, share, list, false, more));
  return schema::finished(out);
}

TEST(Hello, BringsItsAddresses) {
  Hello hello;
  EXPECT_TRUE(test::take(decode_hello(encode(hello))).addresses.empty());
  for (const char* each : {"10.0.1.2", "2001:db8::2"})
    hello.addresses.push_back(net::parse_host(each).value());
  const Hello heard = test::take(decode_hello(encode(hello)));
  ASSERT_EQ(heard.addresses.size(), 2u);
  EXPECT_EQ(heard.addresses[0].to_string(), "10.0.1.2:0");
  EXPECT_EQ(heard.addresses[1].to_string(), "[2001:db8::2]:0");
}

/// Each has one Endpoint, and a Channel that lives as long.
TEST(Hello, ThatNamesATransportTwiceIsCorrupt) {
  Hello hello;
  hello.transports = {{"local", {}}, {"tcp", {}}};
  EXPECT_EQ(test::take(decode_hello(encode(hello))).transports.size(), 2u);
  hello.transports.push_back({"local", {}});
  EXPECT_EQ(decode_hello(encode(hello)).status().code(), Code::corrupt);
}

TEST(Hello, WithAddressesThatLeadElsewhereIsCorrupt) {
  EXPECT_EQ(test::take(decode_hello(hello_with({"10.0.1.2"}))).addresses.size(), 1u);
  for (const char* bad : {"", "db.internal", "10.0.1.2:22", "127.0.0.1", "0.0.0.0", "::1",
                          "::ffff:127.0.0.1", "fe80::1%eth0", "255.255.255.255", "ff02::1"})
    EXPECT_EQ(decode_hello(hello_with({"10.0.1.2", bad})).status().code(), Code::corrupt) << bad;
  EXPECT_EQ(decode_hello(hello_with({std::string(1u << 16, '1')})).status().code(), Code::corrupt);
}

TEST(Hello, HasSixteenAddressesAtMost) {
  std::vector<std::string> addresses(16, "10.0.1.2");
  EXPECT_TRUE(decode_hello(hello_with(addresses)).ok());
  addresses.emplace_back("10.0.1.2");
  EXPECT_EQ(decode_hello(hello_with(addresses)).status().code(), Code::corrupt);
}

}  // namespace handshake_test
}  // namespace linkspan::control
