// Tests Engines of other releases: additions are ignored, unknown messages are answered as such,
// and an incompatible peer gets the reason.
#include <sys/socket.h>

#include <thread>

#include "base/schema/control_generated.h"
#include "base/schema/flat.hpp"
#include "control/socket_address.hpp"
#include "memory/descriptor.hpp"
#include "tests/conformance/engine_fixture.hpp"
#include "tests/faults/raw_peer.hpp"
#include "transport/local/key.hpp"
#include "transport/local/region_liveness.hpp"

namespace linkspan::test {
namespace versions_test {

using control::FrameOp;

EngineOptions without_gpu(const char* name) {
  EngineOptions options = engine_options(name);
  options.use_gpu = false;
  return options;
}

/// Returns a hello with fields that this release does not know, after those that it knows.
std::vector<std::byte> newer_hello() {
  using schema::Hello;
  const control::Hello known = RawPeer::hello();
  flatbuffers::FlatBufferBuilder out;
  const auto name = out.CreateString("quantum");
  const std::vector<std::byte> address(64);
  const std::vector transports{
      schema::CreateTransportAddress(out, name, schema::vector_of(out, address))};
  const auto list = out.CreateVector(transports);
  const auto engine = out.CreateString("newer");
  const auto boot = schema::vector_of(out, known.process.boot_id);
  const auto share = schema::vector_of(out, known.key_share);
  const auto unknown = out.CreateString("what nobody here has heard of");
  const auto table = out.StartTable();
  out.AddOffset(Hello::VT_ENGINE, engine);
  out.AddOffset(Hello::VT_BOOT_ID, boot);
  out.AddElement<std::uint64_t>(Hello::VT_START_TIME, known.process.start_time, 0);
  out.AddElement<std::uint64_t>(Hello::VT_PROCESS_NONCE, known.process.nonce, 0);
  out.AddOffset(Hello::VT_KEY_SHARE, share);
  out.AddOffset(Hello::VT_TRANSPORTS, list);
  out.AddOffset(Hello::VT_ADDRESSES + 2, unknown);
  out.AddElement<std::uint64_t>(Hello::VT_ADDRESSES + 4, 7, 0);
  out.Finish(flatbuffers::Offset<Hello>(out.EndTable(table)));
  return schema::finished(out);
}

std::vector<std::byte> newer_import(const char* region) {
  using schema::Import;
  flatbuffers::FlatBufferBuilder out;
  const auto name = out.CreateString(region);
  const auto table = out.StartTable();
  out.AddOffset(Import::VT_NAME, name);
  out.AddElement<std::uint64_t>(Import::VT_SERIAL + 2, 99, 0);
  out.Finish(flatbuffers::Offset<Import>(out.EndTable(table)));
  return schema::finished(out);
}

class Versions : public ::testing::Test {
 protected:
  void SetUp() override {
    must(server_.listen());
    must(server_.publish("kv", take(server_.allocate_shared(4096))));
  }
  /// Checks that a correct peer is served as before.
  void TearDown() override {
    Engine other = take(Engine::open(without_gpu("other")));
    const Peer peer = take(other.connect(server_.address()));
    EXPECT_TRUE(peer.lookup("kv").ok());
  }
  Engine server_ = take(Engine::open(without_gpu("server")));
};

TEST_F(Versions, ANewerOneIsMetAndWhatItSaysMoreIsPassedOver) {
  RawPeer newer(server_.address());
  newer.version = base::kProtocolVersion + 1;
  ASSERT_TRUE(newer.greet(newer_hello()));
  const Peer peer = take(server_.accept(5s));
  EXPECT_EQ(peer.name(), "newer");
  ASSERT_TRUE(newer.send(999, {}));
  EXPECT_EQ(newer.refusal().code(), Code::unsupported);
  // Sends messages of transports that only one side has, and ops that one side does not know.
  for (const char* transport : {"quantum", "local"})
    ASSERT_TRUE(
        newer.send(FrameOp::for_transport, control::encode_for_transport(transport, 77, {})));
  ASSERT_TRUE(newer.send(FrameOp::import, newer_import("kv"), 8));
  const auto answer = newer.next();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(static_cast<FrameOp>(answer->header.op), FrameOp::imported);
  EXPECT_EQ(answer->header.id, 8u);
  EXPECT_EQ(peer.state(), PeerState::up);
}

TEST_F(Versions, AnOlderOneIsToldThatItCannotBeTalkedTo) {
  RawPeer older(server_.address());
  older.version = 0;
  older.greet(RawPeer::hello());  // it may be refused before it has sent all
  const Status why = older.refusal();
  EXPECT_EQ(why.code(), Code::unsupported);
  EXPECT_NE(why.what().find("version 0"), std::string::npos) << why.to_string();
  EXPECT_FALSE(older.next().has_value());
  EXPECT_EQ(server_.accept(20ms).status().code(), Code::timed_out);
}

/// Connects to a listener that answers the first frame with `answer`.
template <class Server>
Status connect_to(const char* name, Server answer) {
  const EngineOptions options = without_gpu("client");
  const std::string path = options.socket_dir + "/" + name;
  const base::Fd listening = take(control::listen_at(path));
  Engine client = take(Engine::open(options));
  Status met;
  std::jthread connecting([&] { met = client.connect(name, 5s).status(); });
  const auto limit = base::Deadline::after(base::Clock::steady(), 5s);
  int socket = -1;
  while (socket < 0 && !limit.passed())
    socket = ::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  RawPeer server{base::Fd(socket)};
  answer(server);
  connecting.join();
  return met;
}

TEST_F(Versions, ConnectSaysWhyItWasRefused) {
  const Status refused = connect_to("refuses", [](RawPeer& server) {
    const Status why(Code::unsupported, Scope::peer, "version 1 is no longer spoken");
    server.send(FrameOp::error, control::encode_error(why));
  });
  EXPECT_EQ(refused.code(), Code::unsupported) << refused.to_string();
  EXPECT_NE(refused.what().find("no longer spoken"), std::string::npos) << refused.to_string();
  const Status older = connect_to("older", [](RawPeer& server) {
    server.version = 0;
    server.greet(RawPeer::hello());
    EXPECT_EQ(server.refusal().code(), Code::unsupported);
  });
  EXPECT_EQ(older.code(), Code::unsupported) << older.to_string();
}

TEST_F(Versions, AKeyOfATransportThatThePeerDidNotOffer) {
  namespace local = transport::local;
  RawPeer odd(server_.address());
  ASSERT_TRUE(odd.greet(RawPeer::hello()));
  const Peer peer = take(server_.accept(5s));
  const auto leases = take(local::RegionLivenessTable::create());
  const memory::RegionId id{.incarnation = RawPeer::kIncarnation, .buffer = 0, .serial = 3};
  std::vector<std::byte> memory(4096);
  local::LocalKey key;
  key.id = id;
  key.process = base::this_process();
  key.process.nonce += 1;  // of another process
  key.liveness_index = take(leases->grant(id.serial));
  key.peers = {.read = true, .write = true};
  key.bytes = memory.size();
  key.address = reinterpret_cast<std::uintptr_t>(memory.data());
  const memory::Descriptor descriptor{
      .name = "odd",
      .id = id,
      .kind = MemoryKind::host,
      .peers = key.peers,
      .bytes = memory.size(),
      .keys = {{.transport = "local", .bytes = local::encode(key), .fd_count = 1}}};
  std::jthread answering([&] {
    const auto asked = odd.next();
    ASSERT_TRUE(asked.has_value());
    base::Fd fds[] = {take(leases->fd()->duplicate())};
    odd.send(FrameOp::imported, control::encode_imported(memory::encode(descriptor)),
             asked->header.id, fds);
  });
  const auto remote = peer.lookup("odd", 5s);
  ASSERT_TRUE(remote.ok()) << remote.status().to_string();
  const Region here = take(server_.allocate_shared(4096));
  const Block block{0, 0, 64};
  EXPECT_EQ(finished(peer.write(here, *remote, std::span(&block, 1))).code(), Code::unreachable);
  EXPECT_EQ(peer.explain(Op::write, here, *remote, 1, 64).status().code(), Code::unreachable);
}

}  // namespace versions_test
}  // namespace linkspan::test
