// Sends a victim that has RDMA devices what a peer may ask for, endlessly, and reads no answer.
#include <algorithm>
#include <string>
#include <vector>

#include "base/schema/verbs_generated.h"
#include "tests/hostile/attack.hpp"
#include "tests/hostile/raw_attacker.hpp"
#include "transport/verbs/address.hpp"
#include "transport/verbs/message_type.hpp"

namespace linkspan::test {
namespace verbs_attacks {

namespace verbs = transport::verbs;
using verbs::VerbsMessage;
using Done = std::atomic<std::uint64_t>;

const std::vector<std::uint8_t> kGid{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};

/// Returns whether the victim's hello says that it has RDMA devices.
bool has_verbs(RawAttacker& attacker) {
  const auto frame = attacker.hear();
  if (!frame || frame->header.op != static_cast<std::uint16_t>(control::FrameOp::hello))
    return false;
  const auto hello = control::decode_hello(frame->payload);
  return hello.ok() && std::ranges::any_of(hello->transports,
                                           [](const auto& each) { return each.name == "verbs"; });
}

/// Says what `make` makes of a number, to one connection after the other.
template <class Make>
void ask(const Target& target, const std::stop_token& stop, Done& done, VerbsMessage type,
         const Make& make) {
  verbs::RailAddress rail{.link = verbs::kLinkEthernet, .name = "hostile"};
  std::ranges::copy(kGid, std::begin(rail.gid.raw));
  const verbs::VerbsAddress address{.incarnation = kRawIncarnation, .rails = {rail}};
  while (!stop.stop_requested()) {
    RawAttacker attacker(target.tcp_address, stop);
    if (!attacker.greet({{"verbs", verbs::encode(address)}}) || !has_verbs(attacker)) continue;
    for (std::uint64_t i = 1; !stop.stop_requested(); ++i) {
      flatbuffers::FlatBufferBuilder out;
      make(out, i);
      if (!attacker.to_transport(static_cast<std::uint16_t>(type), verbs::finished(out), {},
                                 "verbs"))
        break;
      ++done;
    }
  }
}

/// For access to regions that there never were.
void access(const Target& target, const std::stop_token& stop, Done& done) {
  ask(target, stop, done, VerbsMessage::access, [](auto& out, std::uint64_t i) {
    const auto token = out.CreateVector(std::vector<std::uint8_t>(16));
    out.Finish(schema::CreateVerbsAccess(out, i, token));
  });
}

/// For queue pairs to a card that there is not, each in the place of the one before.
void open(const Target& target, const std::stop_token& stop, Done& done) {
  ask(target, stop, done, VerbsMessage::open, [](auto& out, std::uint64_t i) {
    const auto gid = out.CreateVector(kGid);
    out.Finish(schema::CreateVerbsOpen(out, i, 0, 0, static_cast<std::uint32_t>(i % 1000 + 1), 1,
                                       gid, 0, 1));
  });
}

/// For flushes of GPUs.
void flush(const Target& target, const std::stop_token& stop, Done& done) {
  ask(target, stop, done, VerbsMessage::flush,
      [](auto& out, std::uint64_t i) { out.Finish(schema::CreateVerbsFlush(out, i)); });
}

Attack by_verbs(const char* name, Attack::Run run) {
  return {
      .name = name,
      .run = run,
      .least = 200,
      .environment = {"LINKSPAN_SECURITY=insecure", "LINKSPAN_VERBS_DEVICES=auto",
                      "LINKSPAN_VERBS_LIBRARY=" + file_beside_this_program("libfake_verbs.so")}};
}
const bool kAdded[] = {
    add_attack(by_verbs("RdmaAccessToNothing", access)),
    add_attack(by_verbs("RdmaQueuePairsAnew", open)),
    add_attack(by_verbs("RdmaFlushes", flush)),
};

}  // namespace verbs_attacks
}  // namespace linkspan::test
