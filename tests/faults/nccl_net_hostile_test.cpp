// Tests a peer that sends nccl_net messages by hand and breaks all rules: it is answered or
// dropped, memory without a valid token is neither read nor written, and the others are served.
#include <functional>
#include <random>

#include "base/schema/nccl_net_generated.h"
#include "memory/descriptor.hpp"
#include "tests/conformance/wire_pair.hpp"
#include "tests/faults/raw_peer.hpp"
#include "transport/nccl_net/address.hpp"
#include "transport/nccl_net/message_type.hpp"
#include "transport/wire_region.hpp"

namespace linkspan::test {
namespace nccl_net_hostile_test {

using control::FrameOp;
using transport::WireKey;
using Op = transport::nccl_net::MessageType;
using Bytes = std::vector<std::byte>;

constexpr std::uint64_t kBytes = 1u << 20;

template <class Make>
Bytes table(const Make& make) {
  flatbuffers::FlatBufferBuilder out;
  out.Finish(make(out));
  return schema::finished(out);
}

/// The fields of a write request.
struct Asked {
  std::uint64_t id = 1, serial = 0;
  Bytes token = Bytes(16);
  std::vector<schema::WireSpan> blocks{{0, 16}};
};
Bytes write(const Asked& a, const Bytes& gpu = Bytes(16)) {
  return table([&](auto& out) {
    const auto token = schema::vector_of(out, a.token), device = schema::vector_of(out, gpu);
    return schema::CreateNetWrite(out, a.id, a.serial, token, device,
                                  out.CreateVectorOfStructs(a.blocks));
  });
}
Bytes read(const Asked& a, std::uint32_t flow) {
  return table([&](auto& out) {
    const auto token = schema::vector_of(out, a.token);
    return schema::CreateNetRead(out, a.id, a.serial, token, flow,
                                 out.CreateVectorOfStructs(a.blocks));
  });
}
Bytes open(std::uint32_t flow, const Bytes& gpu = Bytes(16)) {
  return table(
      [&](auto& out) { return schema::CreateNetOpen(out, flow, schema::vector_of(out, gpu)); });
}
Bytes listening(std::uint32_t flow, std::size_t handle) {
  return table([&](auto& out) {
    return schema::CreateNetListening(out, flow, schema::vector_of(out, Bytes(handle)));
  });
}
Bytes broken(std::uint32_t flow, Code code, const std::string& what = "words") {
  return table([&](auto& out) {
    return schema::CreateNetBroken(out, flow, true, static_cast<std::uint8_t>(code),
                                   out.CreateString(what));
  });
}
Bytes ended(std::uint64_t id, Code code) {
  return table([&](auto& out) {
    return schema::CreateNetEnded(out, id, static_cast<std::uint8_t>(code),
                                  out.CreateString("words"));
  });
}
Bytes clear(std::uint64_t id, std::uint32_t flow) {
  return table([&](auto& out) { return schema::CreateNetClear(out, id, flow); });
}
Bytes cancel(std::uint64_t id) {
  return table([&](auto& out) { return schema::CreateNetCancel(out, id); });
}

/// A peer that has connected to the Engine and has the key of a region.
class Hostile {
 public:
  explicit Hostile(const std::string& address) : raw_(address) {
    control::Hello hello = RawPeer::hello();
    hello.transports = {
        {"nccl_net",
         encode(transport::nccl_net::NcclNetAddress{
             .incarnation = RawPeer::kIncarnation, .max_message = 4096, .plugin = "odd"})}};
    if (!raw_.greet(hello)) ADD_FAILURE() << "it is not let in";
  }
  WireKey key(const std::string& name) {
    EXPECT_TRUE(raw_.send(FrameOp::import, control::encode_import(name)));
    const auto frame = raw_.next();
    const auto found = take(memory::decode(take(control::decode_imported(frame.value().payload))));
    for (const auto& each : found.keys)
      if (each.transport == "nccl_net") return take(transport::decode_key(each.bytes));
    throw std::runtime_error("no key of nccl_net");
  }
  bool say(Op op, const Bytes& bytes) { return say(static_cast<std::uint16_t>(op), bytes); }
  bool say(std::uint16_t op, const Bytes& bytes) {
    return raw_.send(FrameOp::for_transport, control::encode_for_transport("nccl_net", op, bytes));
  }
  /// Returns the next message; an `ended` as its Status.
  Status answer(std::uint64_t id) {
    while (true) {
      const auto frame = raw_.next();
      if (!frame) return {Code::disconnected, Scope::peer, "closed"};
      if (static_cast<FrameOp>(frame->header.op) == FrameOp::error)
        return control::decode_error(frame->payload);
      const auto message = take(control::decode_for_transport(frame->payload));
      if (static_cast<Op>(message.op) != Op::ended) continue;
      const auto* wire = schema::verified<schema::NetEnded>(message.bytes);
      if (wire == nullptr || wire->id() != id)
        return {Code::internal, Scope::peer, "the end of another"};
      return {static_cast<Code>(wire->code()), Scope::peer, wire->what()->str()};
    }
  }
  /// Returns the error of the last message.
  Status refusal() {
    while (true) {
      const auto frame = raw_.next();
      if (!frame) return {Code::disconnected, Scope::peer, "closed without a word"};
      if (static_cast<FrameOp>(frame->header.op) == FrameOp::error)
        return control::decode_error(frame->payload);
    }
  }

 private:
  RawPeer raw_;
};

class NcclNetHostile : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    target_.add("bait", {.kind = "host", .bytes = kBytes});
    target_.add("closed", {.kind = "host", .peers = {.read = true, .write = false}});
    target_.fill("bait", 1);
    target_.fill("closed", 2);
    if (has_gpu()) target_.add("on_gpu", {.kind = "device0", .bytes = kBytes});
  }
  static bool has_gpu() { return kinds_here({kind_of("device0")}).ok(); }
  /// Checks that nothing was written, and that a correct peer is served.
  void TearDown() override {
    EXPECT_EQ(target_.difference("bait", 1), "");
    EXPECT_EQ(target_.difference("closed", 2), "");
    Held here;
    Engine engine = take(Engine::open(wire_options(GetParam())));
    here = Held::make(engine, {.kind = "host", .bytes = kBytes});
    here.fill(3);
    const Peer peer = take(engine.connect(target_.address()));
    const RemoteRegion bait = take(peer.lookup("bait"));
    for (std::uint64_t i = 0; i < 20; ++i)
      EXPECT_EQ(finished(move(peer, linkspan::Op::write, here.region, bait, part_of(kBytes, i, 20),
                              by_wire(12)))
                    .to_string(),
                "ok");
    EXPECT_EQ(target_.difference("bait", 1, {{0, 3, 0, kBytes}}), "");
    target_.process().kill();  // it would wait for the end of the hostile ones, which is ours
  }
  Hostile meet() { return Hostile(target_.address()); }
  static Asked of(const WireKey& key, std::uint64_t id = 1) {
    return {.id = id, .serial = key.id.serial, .token = Bytes(key.token.begin(), key.token.end())};
  }

  FarEngine target_{with_wire(GetParam())};
};

TEST_P(NcclNetHostile, WhatItMayNotHaveIsAnswered) {
  Hostile peer = meet();
  const WireKey bait = peer.key("bait"), closed = peer.key("closed");
  std::uint64_t id = 0;
  const auto answers = [&](Asked asked, Code code, const char* says) {
    asked.id = ++id;
    EXPECT_TRUE(peer.say(Op::write, write(asked)));
    const Status end = peer.answer(id);
    EXPECT_EQ(end.code(), code) << end.to_string();
    EXPECT_NE(end.what().find(says), std::string::npos) << end.to_string();
  };
  Asked asked = of(bait);
  asked.token[15] ^= std::byte{1};
  answers(asked, Code::unreachable, "not registered");
  asked = of(bait);
  asked.serial += 1000;
  answers(asked, Code::unreachable, "not registered");
  asked = of(bait);
  asked.token = of(closed).token;
  answers(asked, Code::unreachable, "not registered");
  answers(of(closed), Code::permission_denied, "not permitted");
  for (const std::uint64_t offset : {kBytes, kBytes - 15, ~std::uint64_t{0}, ~std::uint64_t{7}}) {
    asked = of(bait);
    asked.blocks = {{0, 16}, {offset, 16}};
    answers(asked, Code::invalid_argument, "leaves the region");
  }
  // A refused read is answered after what its flow carries, or when the flow breaks.
  EXPECT_TRUE(peer.say(Op::open, open(1)));
  asked = of(bait, ++id);
  asked.token[0] ^= std::byte{1};
  EXPECT_TRUE(peer.say(Op::read, read(asked, 1)));
  EXPECT_TRUE(peer.say(Op::broken, broken(1, Code::system)));
  EXPECT_EQ(peer.answer(id).code(), Code::unreachable);
  // Messages about what has ended or never existed are not answered, nor are unknown ones.
  EXPECT_TRUE(peer.say(Op::cancel, cancel(77)));
  EXPECT_TRUE(peer.say(Op::broken, broken(77, Code::system)));
  EXPECT_TRUE(peer.say(99, open(1)));
  answers(of(closed), Code::permission_denied, "not permitted");
}

TEST_P(NcclNetHostile, WhoBreaksTheRulesIsDropped) {
  struct Case {
    const char* name;
    std::function<void(Hostile&, const Asked&)> play;
  };
  const auto says = [](Op op, const Bytes& bytes) {
    return [op, bytes](Hostile& peer, const Asked&) { (void)peer.say(op, bytes); };
  };
  const auto asks = [](auto change) {
    return [change](Hostile& peer, Asked asked) {
      change(asked);
      (void)peer.say(Op::write, write(asked));
    };
  };
  std::vector<Case> cases{
      {"no blocks", asks([](Asked& a) { a.blocks.clear(); })},
      {"too many", asks([](Asked& a) {
         a.blocks.assign(4097, {0, 1});
       })},
      {"an empty one", asks([](Asked& a) {
         a.blocks = {{0, 0}};
       })},
      {"too many bytes", asks([](Asked& a) {
         a.blocks.assign(65, {0, kBytes});
       })},
      {"a sum that wraps", asks([](Asked& a) {
         a.blocks.assign(3, {0, ~std::uint64_t{0}});
       })},
      {"a short token", asks([](Asked& a) { a.token.resize(15); })},
      {"one number twice",
       [](Hostile& peer, const Asked& asked) {
         (void)peer.say(Op::write, write(asked));
         (void)peer.say(Op::write, write(asked));
       }},
      {"more than may be in flight",
       [](Hostile& peer, Asked asked) {
         for (; asked.id <= 65; ++asked.id) (void)peer.say(Op::write, write(asked));
       }},
      {"a GPU of 15 bytes",
       [](Hostile& peer, const Asked& a) { (void)peer.say(Op::write, write(a, Bytes(15))); }},
      {"a read through nothing",
       [](Hostile& peer, const Asked& a) { (void)peer.say(Op::read, read(a, 1)); }},
      {"clear for nothing", says(Op::clear, clear(1, 1))},
      {"ended of nothing", says(Op::ended, ended(1, Code::ok))},
      {"ended as pending", says(Op::ended, ended(1, Code::pending))},
      {"listening for nothing", says(Op::listening, listening(1, 128))},
      {"broken by nothing", says(Op::broken, broken(1, Code::ok))},
      {"an unknown code", says(Op::broken, broken(1, static_cast<Code>(200)))},
      {"an unknown GPU", says(Op::open, open(1, Bytes(16, std::byte{9})))},
      {"opened twice",
       [](Hostile& peer, const Asked&) {
         (void)peer.say(Op::open, open(1));
         (void)peer.say(Op::open, open(1));
       }},
      {"a short handle",
       [](Hostile& peer, const Asked&) {
         (void)peer.say(Op::open, open(1));
         (void)peer.say(Op::listening, listening(1, 127));
       }},
      {"10000 flows",
       [](Hostile& peer, const Asked&) {
         for (std::uint32_t i = 1; i <= 10000 && peer.say(Op::open, open(i)); ++i) {
         }
       }},
  };
  if (has_gpu())
    cases.push_back(
        {"a read of host memory through a GPU's flow", [](Hostile& peer, const Asked& asked) {
           const WireKey key = peer.key("on_gpu");
           (void)peer.say(Op::open, open(1, Bytes(key.gpu.begin(), key.gpu.end())));
           (void)peer.say(Op::read, read(asked, 1));
         }});
  for (std::uint16_t op = 1; op <= 8; ++op)
    for (const std::size_t bytes : {0u, 3u, 64u})
      cases.push_back({"nonsense", [=](Hostile& peer, const Asked&) {
                         (void)peer.say(op, Bytes(bytes, std::byte{0xA7}));
                       }});
  for (const Case& each : cases) {
    SCOPED_TRACE(each.name);
    Hostile peer = meet();
    each.play(peer, of(peer.key("bait")));
    const Status why = peer.refusal();
    // A peer that keeps sending to a closed socket may miss the last message.
    EXPECT_TRUE(why.code() == Code::corrupt || why.code() == Code::disconnected) << why.to_string();
    if (std::string(each.name) != "10000 flows") {
      EXPECT_EQ(why.code(), Code::corrupt) << why.to_string();
    }
  }
}

/// Real messages with some of their bytes changed.
TEST_P(NcclNetHostile, NoNonsenseEndsTheEngine) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 60; ++round) {
    Hostile peer = meet();
    Asked asked = of(peer.key("closed"));
    for (bool up = true; up && asked.id < 30; ++asked.id) {
      const std::pair<Op, Bytes> all[] = {
          {Op::open, open(static_cast<std::uint32_t>(asked.id))},
          {Op::listening, listening(1, 128)},
          {Op::broken, broken(static_cast<std::uint32_t>(random() % asked.id), Code::system)},
          {Op::write, write(asked)},
          {Op::clear, clear(1, 1)},
          {Op::read, read(asked, 1)},
          {Op::cancel, cancel(random() % asked.id)},
          {Op::ended, ended(1, Code::ok)}};
      auto [op, bytes] = all[random() % std::size(all)];
      for (std::uint64_t changes = random() % 3; changes != 0; --changes)
        bytes[random() % bytes.size()] = static_cast<std::byte>(random());
      if (random() % 8 == 0) bytes.resize(random() % bytes.size());
      up = peer.say(op, bytes);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, NcclNetHostile, ::testing::ValuesIn(kPluginVersions),
                         [](const auto& param) { return "v" + std::to_string(param.param); });

}  // namespace nccl_net_hostile_test
}  // namespace linkspan::test
