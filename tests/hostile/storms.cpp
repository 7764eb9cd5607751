// Sends the victim endless retracts, requests, cancels and offers, and puts that do not go on.
#include <array>
#include <deque>

#include "base/schema/local_generated.h"
#include "tests/hostile/attack.hpp"
#include "tests/hostile/raw_attacker.hpp"
#include "tests/hostile/right_peer.hpp"
#include "tests/hostile/victim.hpp"
#include "transport/local/key.hpp"
#include "transport/local/wire.hpp"

namespace linkspan::test {
namespace storms {

using transport::local::LocalMessage;
using Done = std::atomic<std::uint64_t>;

/// Connects peers of this host by hand; the next one when the victim has dropped one.
template <class Say>
void by_hand(const Target& target, const std::stop_token& stop, Done& done, const Say& say) {
  const transport::local::LocalAddress address{.incarnation = kRawIncarnation,
                                               .process = base::this_process(),
                                               .proof_address = 0,
                                               .proof = {}};
  while (!stop.stop_requested()) {
    RawAttacker attacker(target.unix_address, stop);
    if (!attacker.greet({{"local", transport::local::encode(address)}})) continue;
    for (std::uint64_t i = 1; !stop.stop_requested() && say(attacker, i); ++i) ++done;
  }
}

bool send(RawAttacker& attacker, LocalMessage op, const flatbuffers::FlatBufferBuilder& out) {
  return attacker.to_transport(static_cast<std::uint16_t>(op), schema::finished(out));
}

/// Retracts regions that the victim never saw; reads no answer.
void retract(const Target& target, const std::stop_token& stop, Done& done) {
  by_hand(target, stop, done, [](RawAttacker& attacker, std::uint64_t i) {
    flatbuffers::FlatBufferBuilder out;
    out.Finish(schema::CreateRetract(out, i, i % 2 == 0));
    return send(attacker, LocalMessage::retract, out);
  });
}

/// Copies of what was never offered, and their cancels; no answer is read.
void ask_for_copies(const Target& target, const std::stop_token& stop, Done& done) {
  by_hand(target, stop, done, [](RawAttacker& attacker, std::uint64_t i) {
    flatbuffers::FlatBufferBuilder execute, cancel;
    const std::vector<schema::WireBlock> blocks(256, schema::WireBlock(0, 0, 1));
    execute.Finish(schema::CreateExecute(execute, i, true, i, i % 16,
                                         execute.CreateVectorOfStructs(blocks),
                                         static_cast<std::uint32_t>(i)));
    cancel.Finish(schema::CreateCancel(cancel, i));
    return send(attacker, LocalMessage::execute, execute) &&
           send(attacker, LocalMessage::cancel, cancel);
  });
}

constexpr std::uint64_t kParts = 64;

/// Starts many transfers and cancels each while it is in flight.
template <auto kAddress>
void cancel(const Target& target, const std::stop_token& stop, Done& done) {
  RightPeer attacker(target.*kAddress, {.kind = "host", .bytes = kVictimBytes});
  const RemoteRegion remote = take(attacker.peer.lookup(kExclusiveBait));
  while (!stop.stop_requested()) {
    std::vector<Transfer> all;
    for (std::uint64_t i = 0; i < kParts; ++i) {
      const Block part = part_of(kVictimBytes, i, kParts);
      const auto blocks = std::span(&part, 1);
      auto next = i % 2 == 0 ? attacker.peer.write(attacker.held.region, remote, blocks)
                             : attacker.peer.read(attacker.held.region, remote, blocks);
      if (next.ok()) all.push_back(*next);
    }
    for (const Transfer& each : all) (void)each.cancel();
    for (const Transfer& each : all) (void)each.wait(10s);
    done += all.size();
  }
}

/// Offers messages that the victim never receives, and withdraws them.
void offer(const Target& target, const std::stop_token& stop, Done& done) {
  RightPeer attacker(target.unix_address, {.kind = "host", .bytes = kVictimBytes});
  while (!stop.stop_requested()) {
    std::vector<Transfer> all;
    for (std::uint64_t i = 0; i < kParts; ++i)
      if (auto next = attacker.peer.send(i, attacker.held.at(0), kVictimBytes); next.ok())
        all.push_back(*next);
    for (const Transfer& each : all) (void)each.cancel();
    for (const Transfer& each : all) (void)each.wait(10s);
    done += all.size();
  }
}

/// Writes into a region of the victim all the time: by TCP, or copied by the victim itself.
template <auto kAddress>
void put(const Target& target, const std::stop_token& stop, Done& done) {
  RightPeer attacker(target.*kAddress, {.kind = "host", .bytes = kVictimBytes});
  const RemoteRegion remote = take(attacker.peer.lookup(kExclusiveBait));
  std::deque<Transfer> all;
  for (std::uint64_t i = 0; !stop.stop_requested(); ++i) {
    const Block part = part_of(kVictimBytes, i % 4, 4);
    all.push_back(take(attacker.peer.write(attacker.held.region, remote, std::span(&part, 1))));
    if (all.size() < 4) continue;
    (void)all.front().wait(10s);
    all.pop_front();
    ++done;
  }
}

constexpr auto kUnix = &Target::unix_address;
constexpr auto kTcp = &Target::tcp_address;
const bool kAdded[] = {
    add_attack({.name = "Retracts", .run = retract, .least = 1000}),
    add_attack({.name = "CopiesOfNothing", .run = ask_for_copies, .least = 500}),
    add_attack({.name = "CancelsByUnix", .run = cancel<kUnix>, .least = 200}),
    add_attack({.name = "CancelsByTcp", .run = cancel<kTcp>, .least = 200}),
    add_attack({.name = "MessagesThatAreWithdrawn", .run = offer, .least = 200}),
    add_attack({.name = "PutsThatNeverEndByUnix",
                .run = put<kUnix>,
                .least = 50,
                .ending = Attack::Ending::frozen}),
    add_attack({.name = "PutsThatNeverEndByTcp",
                .run = put<kTcp>,
                .least = 50,
                .ending = Attack::Ending::frozen,
                .is_remote = true}),
};

}  // namespace storms
}  // namespace linkspan::test
