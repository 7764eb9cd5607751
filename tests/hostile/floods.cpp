// Floods each socket of the victim, and adds peers that send requests and read nothing.
#include "control/introspection_socket.hpp"
#include "tests/hostile/attack.hpp"
#include "tests/hostile/raw_attacker.hpp"

namespace linkspan::test {
namespace floods {

using control::FrameOp;
using Done = std::atomic<std::uint64_t>;

constexpr auto kUnix = &Target::unix_address;
constexpr auto kTcp = &Target::tcp_address;

/// Connections that are gone at once.
template <auto kAddress>
void connect_and_go(const Target& target, const std::stop_token& stop, Done& done) {
  while (!stop.stop_requested()) done += socket_to(target.*kAddress).ok() ? 1 : 0;
}

void connect_to_operators(const Target& target, const std::stop_token& stop, Done& done) {
  const auto sockets = control::introspection_sockets(target.socket_folder);
  while (!stop.stop_requested())
    for (const std::string& each : sockets)
      if (each.starts_with(target.socket_folder))
        done += control::IntrospectionCall::connect(each).ok() ? 1 : 0;
}

/// Sends the costly query again and again.
void ask_as_operator(const Target& target, const std::stop_token& stop, Done& done) {
  const auto sockets = control::introspection_sockets(target.socket_folder);
  while (!stop.stop_requested())
    for (const std::string& each : sockets) {
      if (!each.starts_with(target.socket_folder)) continue;
      auto call = control::IntrospectionCall::connect(each);
      if (!call.ok() || !call->ask(control::IntrospectionOp::dump).ok()) continue;
      done += call->answer(base::Deadline::after(base::Clock::steady(), 100ms)).ok() ? 1 : 0;
    }
}

/// Peers that keep the rules of the handshake, and are gone.
template <auto kAddress>
void meet_and_go(const Target& target, const std::stop_token& stop, Done& done) {
  while (!stop.stop_requested()) {
    RawAttacker attacker(target.*kAddress, stop);
    done += attacker.greet() && attacker.hear() ? 1 : 0;
  }
}

/// Frames of one kind without an end, by one peer; by the next one where that was dropped.
template <auto kAddress, auto kSay>
void say_without_end(const Target& target, const std::stop_token& stop, Done& done) {
  while (!stop.stop_requested()) {
    RawAttacker attacker(target.*kAddress, stop);
    if (!attacker.greet()) continue;
    while (!stop.stop_requested() && kSay(attacker)) ++done;
  }
}

/// Sends 32 look-ups of existing regions and reads the answers.
bool look_up(RawAttacker& attacker) {
  const auto import = control::encode_import("bait");
  for (int i = 0; i < 32; ++i)
    if (!attacker.say(FrameOp::import, import)) return false;
  for (int i = 0; i < 32; ++i)
    if (!attacker.hear()) return false;
  return true;
}
/// Answers are not read.
bool look_up_unread(RawAttacker& attacker) {
  return attacker.say(FrameOp::import, control::encode_import("bait"));
}
bool notify(RawAttacker& attacker) {
  const std::vector<std::byte> bytes(512);
  return attacker.say(FrameOp::notify, control::encode_notify(bytes));
}
bool wait_for_sets(RawAttacker& attacker) {
  const control::AskSet ask{.name = "never", .above = 0, .waits = true};
  return attacker.say(FrameOp::ask_set, control::encode(ask));
}
bool say_what_nobody_knows(RawAttacker& attacker) {
  return attacker.say(static_cast<FrameOp>(999), {});
}

const bool kAdded[] = {
    add_attack({.name = "ConnectionsByUnix", .run = connect_and_go<kUnix>, .least = 500}),
    add_attack({.name = "ConnectionsByTcp", .run = connect_and_go<kTcp>, .least = 500}),
    add_attack(
        {.name = "ConnectionsToTheOperatorsSocket", .run = connect_to_operators, .least = 100}),
    add_attack({.name = "QuestionsOfOperators", .run = ask_as_operator, .least = 20}),
    add_attack({.name = "PeersThatComeAndGoByUnix", .run = meet_and_go<kUnix>, .least = 100}),
    add_attack({.name = "PeersThatComeAndGoByTcp", .run = meet_and_go<kTcp>, .least = 100}),
    add_attack({.name = "LookupsByUnix", .run = say_without_end<kUnix, look_up>, .least = 10}),
    add_attack({.name = "LookupsByTcp", .run = say_without_end<kTcp, look_up>, .least = 10}),
    add_attack({.name = "PeersThatReadNothingByUnix",
                .run = say_without_end<kUnix, look_up_unread>,
                .least = 300}),
    add_attack({.name = "PeersThatReadNothingByTcp",
                .run = say_without_end<kTcp, look_up_unread>,
                .least = 300}),
    add_attack(
        {.name = "NotificationsByUnix", .run = say_without_end<kUnix, notify>, .least = 1000}),
    add_attack({.name = "NotificationsByTcp", .run = say_without_end<kTcp, notify>, .least = 1000}),
    add_attack(
        {.name = "WaitsForSets", .run = say_without_end<kUnix, wait_for_sets>, .least = 300}),
    add_attack({.name = "UnknownFrames",
                .run = say_without_end<kTcp, say_what_nobody_knows>,
                .least = 300}),
};

}  // namespace floods
}  // namespace linkspan::test
