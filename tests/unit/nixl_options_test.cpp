// Parameters of the NIXL backend, and the layout of what creates it.
#include "integrations/nixl/src/options.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <string>

#include "integrations/nixl/src/abi.hpp"
#include "integrations/nixl/src/answer.hpp"

namespace linkspan::nixl {
namespace nixl_options_test {

using namespace std::chrono_literals;

TEST(NixlOptions, AreTheDefaults_WithoutParameters) {
  const auto options = BackendOptions::parse({}).value();
  EXPECT_EQ(options.listen, "tcp:0.0.0.0:0");
  EXPECT_EQ(options.deadline, 30s);
  EXPECT_FALSE(options.transfer.low_latency);
  EXPECT_TRUE(options.unknown.empty());
  EXPECT_TRUE(BackendOptions::parse(BackendOptions::defaults()).ok());
}

TEST(NixlOptions, AreTaken_WhenTheyAreSet) {
  const auto options = BackendOptions::parse({{"deadline_s", "0.5"},
                                              {"listen", "none"},
                                              {"cpu_threads", "3"},
                                              {"copy_ctas", "16"},
                                              {"require", "local"},
                                              {"unix_socket", "yes"},
                                              {"low_latency", "yes"},
                                              {"tcp.interfaces", "eth1"}})
                           .value();
  EXPECT_EQ(options.deadline, 500ms);
  EXPECT_EQ(options.listen, "");
  EXPECT_EQ(options.engine.cpu_threads, 3u);
  EXPECT_EQ(options.engine.copy_ctas, 16u);
  EXPECT_EQ(options.transfer.require, "local");
  EXPECT_EQ(options.engine.transport.at("tcp.interfaces"), "eth1");
  EXPECT_TRUE(options.transfer.low_latency);
}

TEST(NixlOptions, LeaveAWayToConnect) {
  EXPECT_FALSE(BackendOptions::parse({{"unix_socket", "no"}}).value().unix_socket);
  const auto none = BackendOptions::parse({{"unix_socket", "no"}, {"listen", "none"}});
  EXPECT_EQ(none.status().code(), Code::invalid_argument);
}

TEST(NixlOptions, AreIgnored_WhenTheyAreOfOtherBackends) {
  const auto options = BackendOptions::parse({{"num_threads", "8"},
                                              {"engine_config", "TLS=^cuda_ipc"},
                                              {"ucx_error_handling_mode", "peer"},
                                              {"colour", "blue"}})
                           .value();
  EXPECT_EQ(options.unknown, std::vector<std::string>{"colour"});
}

TEST(NixlOptions, NameTheParameter_WhenItsValueIsWrong) {
  for (const auto& [name, value] : {std::pair{"deadline_s", "soon"},
                                    {"deadline_s", "0"},
                                    {"deadline_s", "1e-10"},
                                    {"deadline_s", "nan"},
                                    {"deadline_s", "1e9"},
                                    {"listen", "eth0"},
                                    {"unix_socket", "maybe"},
                                    {"low_latency", "1"},
                                    {"cpu_threads", "-1"},
                                    {"copy_ctas", "many"}}) {
    const auto options = BackendOptions::parse({{name, value}});
    EXPECT_EQ(options.status().code(), Code::invalid_argument) << name << value;
    EXPECT_NE(options.status().what().find(std::string(name) + "=\"" + value + "\": "),
              std::string::npos);
  }
}

TEST(NixlAbi, IsKnown_WhenTheArgumentsLieWhereTheyAreDeclared) {
  abi::Parameters parameters;
  abi::StartArguments start{"agent", "LINKSPAN", &parameters, true, 0, 0, false};
  EXPECT_TRUE(abi::is_known(&start, "LINKSPAN"));
  start.agent.assign(300, 'n');
  EXPECT_TRUE(abi::is_known(&start, "LINKSPAN"));
  EXPECT_FALSE(abi::is_known(&start, "UCX"));
  EXPECT_FALSE(abi::is_known(&start, ""));
  EXPECT_FALSE(abi::is_known(nullptr, "LINKSPAN"));
  start.parameters = nullptr;
  EXPECT_FALSE(abi::is_known(&start, "LINKSPAN"));
}

TEST(NixlAbi, IsNotKnown_WhenAFieldCameBeforeTheOthers) {
  struct Moved {
    std::uint64_t version = 2;
    abi::StartArguments start;
    std::uint64_t room[4]{};
  };
  abi::Parameters parameters;
  for (const char* agent : {"agent", "an agent with a name that std::string has on the heap"}) {
    Moved moved{.start = {agent, "LINKSPAN", &parameters, true, 0, 0, false}};
    EXPECT_FALSE(abi::is_known(reinterpret_cast<abi::StartArguments*>(&moved), "LINKSPAN"));
    alignas(8) char shifted[sizeof(abi::StartArguments) + 8];  // as if the first field was removed
    std::memcpy(shifted, reinterpret_cast<const char*>(&moved.start) + 32, 64);
    EXPECT_FALSE(abi::is_known(reinterpret_cast<abi::StartArguments*>(shifted), "LINKSPAN"));
  }
}

TEST(NixlAnswer, SaysThatThePeerIsGone_WhenItIsDisconnected) {
  EXPECT_EQ(answer_of(Code::ok), abi::Answer::success);
  EXPECT_EQ(answer_of(Code::pending), abi::Answer::in_progress);
  EXPECT_EQ(answer_of(Code::disconnected), abi::Answer::remote_disconnect);
  EXPECT_EQ(answer_of(Code::timed_out), abi::Answer::canceled);
  EXPECT_EQ(answer_of(Code::invalid_argument), abi::Answer::invalid_argument);
  EXPECT_EQ(answer_of(Code::unsupported), abi::Answer::unsupported);
  EXPECT_EQ(answer_of(Code::corrupt), abi::Answer::backend_error);
}

}  // namespace nixl_options_test
}  // namespace linkspan::nixl
