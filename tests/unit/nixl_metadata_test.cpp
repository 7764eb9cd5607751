// Texts that agents exchange through NIXL: parsing accepts its own and refuses all else.
#include "integrations/nixl/src/metadata.hpp"

#include <gtest/gtest.h>

#include <string>

namespace linkspan::nixl {
namespace nixl_metadata_test {

constexpr std::size_t kVersionAt = 5;

const AgentAddress kAgent{.addresses = "unix:/a#1,tcp:10.0.0.1:7#1",
                          .engine = "prefill/1234",
                          .secret = std::string(64, 's'),
                          .host = std::string("\0\1\2", 3)};

TEST(NixlMetadata, IsReadAsItWasWritten) {
  const auto agent = AgentAddress::parse(kAgent.serialize()).value();
  EXPECT_EQ(agent.addresses, kAgent.addresses);
  EXPECT_EQ(agent.engine, kAgent.engine);
  EXPECT_EQ(agent.secret, kAgent.secret);
  EXPECT_EQ(agent.host, kAgent.host);
  const auto memory =
      MemoryAddress::parse(MemoryAddress{"nixl/7", 0xfedcba9876543210, 1ull << 40}.serialize())
          .value();
  EXPECT_EQ(memory.published, "nixl/7");
  EXPECT_EQ(memory.address, 0xfedcba9876543210);
  EXPECT_EQ(memory.bytes, 1ull << 40);
  const std::string name(300, 'n');
  const auto message =
      AgentMessage::parse(AgentMessage::serialize(name, std::string("a\0b", 3)).value()).value();
  EXPECT_EQ(message.agent, name);
  EXPECT_EQ(message.text, std::string("a\0b", 3));
}

TEST(NixlMetadata, IsCorrupt_WhenItWasCutOrIsOfAnotherKind) {
  const std::string text = kAgent.serialize();
  for (std::size_t size = 0; size < text.size(); ++size)
    EXPECT_EQ(AgentAddress::parse(text.substr(0, size)).status().code(), Code::corrupt) << size;
  EXPECT_EQ(AgentAddress::parse(text + "x").status().code(), Code::corrupt);
  EXPECT_EQ(MemoryAddress::parse(text).status().code(), Code::corrupt);
  EXPECT_EQ(AgentAddress::parse("ucx: 0x1234").status().code(), Code::corrupt);
  std::string huge = text;
  huge[9] = '\xff';  // the high byte of the first length
  EXPECT_EQ(AgentAddress::parse(huge).status().code(), Code::corrupt);
  EXPECT_NE(AgentAddress::parse("").status().what().find("both agents need the backend LINKSPAN"),
            std::string::npos);
}

TEST(NixlMetadata, IsRefusedInWords_WhenItsVersionIsAnother) {
  std::string text = kAgent.serialize();
  text[kVersionAt] = 2;
  const auto agent = AgentAddress::parse(text);
  EXPECT_EQ(agent.status().code(), Code::unsupported);
  EXPECT_NE(agent.status().what().find("has version 2 of its format and this plugin reads version "
                                       "1: use one release of linkspan on both sides"),
            std::string::npos);
}

TEST(NixlMetadata, IsRefused_WhenANotificationIsTooLong) {
  EXPECT_TRUE(AgentMessage::serialize("a", std::string(65000, 'm')).ok());
  const auto message = AgentMessage::serialize("a", std::string(65536, 'm'));
  EXPECT_EQ(message.status().code(), Code::invalid_argument);
  EXPECT_NE(message.status().what().find("a notification of 65536 bytes"), std::string::npos);
}

}  // namespace nixl_metadata_test
}  // namespace linkspan::nixl
