// Tests what linkspan.h adds to the C++ API.
#include <array>
#include <cstddef>
#include <string>
#include <thread>

#include "linkspan/status.hpp"
#include "tests/unit/c_api_fixture.hpp"

namespace linkspan::test {
namespace c_api_test {

TEST(CApi, CodesHaveTheNamesOfTheOthers) {
  for (int code = 0; code <= LINKSPAN_INTERNAL; ++code)
    EXPECT_STREQ(linkspan_code_name(code), name_of(static_cast<Code>(code)));
  EXPECT_STREQ(linkspan_code_name(LINKSPAN_INTERNAL + 1), "unknown");
  EXPECT_STREQ(linkspan_code_name(-1), "unknown");
  EXPECT_STREQ(linkspan_code_name(LINKSPAN_DISCONNECTED), "disconnected");
  EXPECT_STREQ(linkspan_version(), "0.1.0");
}

TEST(CApi, OptionsOfOtherReleases) {
  EngineC engine;
  struct {
    linkspan_engine_options known = options_of("later");
    std::uint64_t more = 0;
  } later;
  later.known.size = sizeof later;
  EXPECT_OK(linkspan_engine_open(&later.known, &engine)) << "zero says nothing";
  later.more = 1;
  EXPECT_EQ(linkspan_engine_open(&later.known, &engine), LINKSPAN_UNSUPPORTED);
  EXPECT_EQ(engine, nullptr);
  EXPECT_TRUE(says("byte 120 is not zero")) << linkspan_last_error();
  linkspan_engine_options earlier = options_of("earlier");
  earlier.size = offsetof(linkspan_engine_options, calibrate);
  earlier.calibrate = 1000;  // beyond its end
  EXPECT_OK(linkspan_engine_open(&earlier, &engine));
  linkspan_engine_options none{};
  EXPECT_EQ(linkspan_engine_open(&none, &engine), LINKSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(says("INIT")) << linkspan_last_error();
}

TEST(CApi, SetsOtherMembersToZero_WhenAMacroNamesSome) {
  const linkspan_engine_options engine = LINKSPAN_ENGINE_OPTIONS_INIT;
  EXPECT_EQ(engine.size, sizeof engine);
  EXPECT_EQ(engine.use_gpu, 1);
  for (const std::int32_t open :
       {engine.copy_ctas, engine.relay_gpus, engine.calibrate, engine.security})
    EXPECT_EQ(open, -1);
  EXPECT_TRUE(engine.name == nullptr && engine.socket_dir == nullptr && engine.log == nullptr &&
              engine.log_user == nullptr && engine.secret_file == nullptr &&
              engine.secret == nullptr && engine.secret_bytes == 0 && engine.reserved == 0 &&
              engine.transport == nullptr);
  EXPECT_TRUE(engine.transfer_deadline == 0 && engine.cpu_threads == 0 && engine.any_uid == 0 &&
              engine.transport_count == 0);

  const linkspan_connect_options connect = LINKSPAN_CONNECT_OPTIONS_INIT;
  EXPECT_EQ(connect.size, sizeof connect);
  EXPECT_EQ(connect.timeout, 10 * kSecond);
  EXPECT_TRUE(connect.expect == nullptr && connect.secret == nullptr && connect.secret_bytes == 0);

  const linkspan_region_options region = LINKSPAN_REGION_OPTIONS_INIT;
  EXPECT_EQ(region.size, sizeof region);
  EXPECT_TRUE(region.peers_read == 1 && region.peers_write == 1);
  EXPECT_TRUE(region.exclusive == 0 && region.pin == 0);

  const linkspan_transfer_options transfer = LINKSPAN_TRANSFER_OPTIONS_INIT;
  EXPECT_EQ(transfer.size, sizeof transfer);
  EXPECT_EQ(transfer.copy_ctas, -1);
  EXPECT_TRUE(transfer.deadline == 0 && transfer.notification == nullptr &&
              transfer.notification_bytes == 0 && transfer.require == nullptr &&
              transfer.low_latency == 0 && transfer.checksum == 0 && transfer.failover == 1);
  for (const linkspan_stream& stream : {transfer.after, transfer.release})
    EXPECT_TRUE(stream.kind == LINKSPAN_STREAM_NONE && stream.handle == nullptr);

  const linkspan_shape shape = LINKSPAN_SHAPE_INIT;
  EXPECT_EQ(shape.size, sizeof shape);
  EXPECT_TRUE(shape.blocks == nullptr && shape.block_count == 0 && shape.pages == nullptr &&
              shape.strides == nullptr);
  const linkspan_strides strides = LINKSPAN_STRIDES_INIT;
  EXPECT_TRUE(strides.bytes == 0 && strides.local_base == 0 && strides.remote_base == 0);
  for (const auto& level : strides.levels)
    EXPECT_TRUE(level.count == 1 && level.local_step == 0 && level.remote_step == 0);
}

TEST(CApi, WrongValuesAreNamed) {
  EngineC engine;
  linkspan_engine_options options = options_of("wrong");
  options.copy_ctas = -2;
  EXPECT_EQ(linkspan_engine_open(&options, &engine), LINKSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(says("copy_ctas is -2")) << linkspan_last_error();
  for (const std::uint32_t threads : {257u, ~0u}) {
    options = options_of("wrong");
    options.cpu_threads = threads;
    EXPECT_EQ(linkspan_engine_open(&options, &engine), LINKSPAN_INVALID_ARGUMENT);
    EXPECT_TRUE(says("EngineOptions::cpu_threads=\"" + std::to_string(threads) +
                     "\": set a whole number from 1 to 256"))
        << linkspan_last_error();
  }
  options = options_of("wrong");
  options.any_uid = 2;
  EXPECT_EQ(linkspan_engine_open(&options, &engine), LINKSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(says("any_uid is 2; from 0 to 1")) << linkspan_last_error();
  options = options_of("wrong");
  options.security = 4;
  EXPECT_EQ(linkspan_engine_open(&options, &engine), LINKSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(says("security is 4; from -1 to 3")) << linkspan_last_error();
  options.security = LINKSPAN_SECURITY_ENCRYPTED;
  EXPECT_EQ(linkspan_engine_open(&options, &engine), LINKSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(says("security=\"encrypted\": needs a secret")) << linkspan_last_error();
  options.secret_bytes = 15;
  EXPECT_EQ(linkspan_engine_open(&options, &engine), LINKSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(says("a secret of 15 bytes at null")) << linkspan_last_error();
  options.secret_bytes = 0;
  options.secret = "sixteen bytes at";
  EXPECT_EQ(linkspan_engine_open(&options, &engine), LINKSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(says("a secret of 0 bytes: set secret_bytes")) << linkspan_last_error();
  options.secret_bytes = 15;
  options.secret = "fifteen bytes . and what is not of it";
  EXPECT_EQ(linkspan_engine_open(&options, &engine), LINKSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(says("EngineOptions::secret has 15 bytes")) << linkspan_last_error();
  options.secret_bytes = 16;
  EXPECT_OK(linkspan_engine_open(&options, &engine));
  options = options_of("wrong");
  options.reserved = 1;
  EXPECT_EQ(linkspan_engine_open(&options, &engine), LINKSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(says("reserved is 1")) << linkspan_last_error();
  options = options_of("wrong");
  linkspan_transport_option wanted{"nccl_net.plugin", "/nowhere/libnet.so"};
  options.transport = &wanted;
  options.transport_count = 1;
  EXPECT_EQ(linkspan_engine_open(&options, &engine), LINKSPAN_NOT_FOUND);
  EXPECT_TRUE(says("/nowhere/libnet.so")) << linkspan_last_error();
  options = options_of("wrong");
  options.secret_file = "/nowhere/secret";
  EXPECT_EQ(linkspan_engine_open(&options, &engine), LINKSPAN_NOT_FOUND);
  EXPECT_TRUE(says("/nowhere/secret")) << linkspan_last_error();
  options = options_of("wrong");
  wanted = {"tcp.interfaces", "nowhere0"};
  options.transport = &wanted;
  options.transport_count = 1;
  EXPECT_EQ(linkspan_engine_open(&options, &engine), LINKSPAN_NOT_FOUND);
  EXPECT_TRUE(says("\"nowhere0\" is not here")) << linkspan_last_error();
  wanted = {"tcp.interface", "eth1"};
  EXPECT_EQ(linkspan_engine_open(&options, &engine), LINKSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(says("no \"tcp.interface\"; known are")) << linkspan_last_error();
  wanted = {"tcp.connections", "65"};
  EXPECT_EQ(linkspan_engine_open(&options, &engine), LINKSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(says("tcp.connections=\"65\": set a whole number from 0 to 64"))
      << linkspan_last_error();
  wanted = {nullptr, "1"};
  EXPECT_EQ(linkspan_engine_open(&options, &engine), LINKSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(says("transport[0].key is null")) << linkspan_last_error();
  options.transport = nullptr;
  EXPECT_EQ(linkspan_engine_open(&options, &engine), LINKSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(says("1 options of transports at null")) << linkspan_last_error();
  options = options_of("wrong");
  options.transfer_deadline = -1;
  EXPECT_EQ(linkspan_engine_open(&options, &engine), LINKSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(says("transfer_deadline is -1")) << linkspan_last_error();
  EXPECT_EQ(linkspan_last_scope(), LINKSPAN_SCOPE_REQUEST);
}

TEST(CApi, NullIsRefusedOrNothing) {
  PeerC peer;
  RegionC region;
  TransferC transfer;
  char* text = nullptr;
  EXPECT_EQ(linkspan_engine_open(nullptr, nullptr), LINKSPAN_INVALID_ARGUMENT);
  EXPECT_EQ(linkspan_engine_connect(nullptr, "unix:/x", 0, &peer), LINKSPAN_INVALID_ARGUMENT);
  EXPECT_TRUE(says("engine is null")) << linkspan_last_error();
  EXPECT_EQ(linkspan_engine_register_memory(nullptr, &text, 8, nullptr, &region),
            LINKSPAN_INVALID_ARGUMENT);
  EXPECT_EQ(linkspan_engine_dump(nullptr, &text), LINKSPAN_INVALID_ARGUMENT);
  EXPECT_EQ(
      linkspan_peer_submit(nullptr, LINKSPAN_WRITE, nullptr, nullptr, nullptr, nullptr, &transfer),
      LINKSPAN_INVALID_ARGUMENT);
  EXPECT_EQ(linkspan_transfer_wait(nullptr, 0), LINKSPAN_INVALID_ARGUMENT);
  EXPECT_EQ(linkspan_transfer_done(nullptr), 0);
  EXPECT_EQ(linkspan_region_bytes(nullptr), 0u);
  std::array<std::uint8_t, 16> gpu{1, 2, 3};
  linkspan_region_gpu(nullptr, gpu.data());
  EXPECT_EQ(gpu, (std::array<std::uint8_t, 16>{}));
  linkspan_region_gpu(nullptr, nullptr);
  std::size_t count = 9;
  EXPECT_EQ(linkspan_completion_queue_fd(nullptr), -1);
  EXPECT_EQ(linkspan_completion_queue_add(nullptr, nullptr, 0), LINKSPAN_INVALID_ARGUMENT);
  EXPECT_EQ(linkspan_completion_queue_take(nullptr, nullptr, 0, &count), LINKSPAN_INVALID_ARGUMENT);
  EXPECT_EQ(count, 0u);
  EXPECT_EQ(linkspan_peer_state(nullptr), LINKSPAN_PEER_GONE);
  EXPECT_STREQ(linkspan_explanation_path(nullptr), "");
  EXPECT_STREQ(linkspan_explanation_refused_reason(nullptr, 0), "");
  linkspan_engine_free(nullptr);
  linkspan_transfer_free(nullptr);
  linkspan_text_free(nullptr);
}

TEST(CApi, TheTextIsTheThreadsOwn) {
  ASSERT_EQ(linkspan_transfer_wait(nullptr, 0), LINKSPAN_INVALID_ARGUMENT);
  std::string there;
  std::thread([&] { there = linkspan_last_error(); }).join();
  EXPECT_EQ(there, "");
  EXPECT_TRUE(says("transfer is null")) << linkspan_last_error();
}

TEST(CApi, WhatIsLoggedComesToTheCaller) {
  std::string lines;
  linkspan_engine_options options = options_of("logged");
  options.log_user = &lines;
  options.log = [](void* into, int level, const char* line, std::size_t bytes) {
    if (level == LINKSPAN_LOG_INFO) static_cast<std::string*>(into)->append(line, bytes);
  };
  ::setenv("LINKSPAN_LOG_LEVEL", "INFO", 1);
  EngineC engine, other;
  PeerC peer;
  char* address = nullptr;
  ASSERT_OK(linkspan_engine_open(&options, &engine));
  ::unsetenv("LINKSPAN_LOG_LEVEL");
  const linkspan_engine_options quiet = options_of("quiet");
  ASSERT_OK(linkspan_engine_open(&quiet, &other));
  ASSERT_OK(linkspan_engine_listen(other, nullptr));
  ASSERT_OK(linkspan_engine_address(other, &address));
  EXPECT_OK(linkspan_engine_connect(engine, taken(address).c_str(), kLong, &peer));
  EXPECT_OK(linkspan_engine_close(engine, kLong));
  EXPECT_NE(lines.find("quiet"), std::string::npos) << lines;
}

}  // namespace c_api_test
}  // namespace linkspan::test
