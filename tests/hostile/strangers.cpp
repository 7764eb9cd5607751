// Connects strangers to the victim's sockets that send nothing, too little, too slowly, or
// nonsense.
#include <poll.h>
#include <sys/socket.h>

#include <deque>
#include <random>
#include <thread>

#include "control/handshake.hpp"
#include "tests/hostile/attack.hpp"
#include "tests/support/raw_peer.hpp"
#include "tests/support/take.hpp"

namespace linkspan::test {
namespace strangers {

using Done = std::atomic<std::uint64_t>;

/// More than have room in a waiting room.
constexpr std::size_t kMany = 300;

bool is_closed(const base::Fd& socket) {
  pollfd end{.fd = socket.get(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&end, 1, 0) == 1;
}

/// Keeps kMany connections open to `address`, each of which says `greeting(i)` at first. In the
/// place of one that the victim closes comes the next.
template <class Greeting, class More>
void keep_many(const std::string& address, const std::stop_token& stop, Done& done,
               const Greeting& greeting, const More& more) {
  std::deque<base::Fd> open;
  std::size_t next = 0;
  while (!stop.stop_requested()) {
    if (auto socket = socket_to(address); socket.ok()) {
      const std::string bytes = greeting(next++);
      (void)::send(socket->get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      open.push_back(*std::move(socket));
      ++done;
    }
    while (!open.empty() && is_closed(open.front())) open.pop_front();
    if (open.size() > kMany) open.pop_back();
    more(open);
  }
}

std::string nothing(std::size_t) { return {}; }
void no_more(const std::deque<base::Fd>&) {}

/// Returns the first bytes of a frame's header with a valid length.
std::string beginning(std::size_t) { return {"\x18", 1}; }

/// Sends a byte more of each now and then, so it is never silent for long, and takes seconds.
void drip(const std::deque<base::Fd>& open) {
  static base::Time next;
  const base::Time now = base::Clock::steady().now();
  if (now < next) return;
  next = now + 200ms;
  for (const base::Fd& each : open) (void)::send(each.get(), "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/// Returns half of a hello in the largest frame that a stranger may send.
std::string half_a_hello(std::size_t) {
  const auto header = base::encode({.length = 64u << 10,
                                    .op = static_cast<std::uint16_t>(control::FrameOp::hello),
                                    .id = 1,
                                    .incarnation = kRawIncarnation});
  std::string bytes(reinterpret_cast<const char*>(header.data()), header.size());
  bytes.resize(bytes.size() + (32u << 10), 'x');
  return bytes;
}

std::string junk(std::size_t i) {
  std::minstd_rand random(static_cast<unsigned>(i + 1));
  std::string bytes(random() % 4096, '\0');
  for (char& each : bytes) each = static_cast<char>(random());
  return bytes;
}

template <auto kAddress, auto kGreeting, auto kMore>
void run(const Target& target, const std::stop_token& stop, Done& done) {
  keep_many(target.*kAddress, stop, done, kGreeting, kMore);
}

constexpr auto kUnix = &Target::unix_address;
constexpr auto kTcp = &Target::tcp_address;
const bool kAdded[] = {
    add_attack({.name = "SilentStrangersByTcp", .run = run<kTcp, nothing, no_more>, .least = 400}),
    add_attack(
        {.name = "SilentStrangersByUnix", .run = run<kUnix, nothing, no_more>, .least = 400}),
    add_attack({.name = "SlowStrangersByTcp", .run = run<kTcp, beginning, drip>, .least = 400}),
    add_attack({.name = "SlowStrangersByUnix", .run = run<kUnix, beginning, drip>, .least = 400}),
    add_attack(
        {.name = "UnfinishedHellosByTcp", .run = run<kTcp, half_a_hello, no_more>, .least = 400}),
    add_attack(
        {.name = "UnfinishedHellosByUnix", .run = run<kUnix, half_a_hello, no_more>, .least = 400}),
    add_attack({.name = "JunkByTcp", .run = run<kTcp, junk, no_more>, .least = 400}),
    add_attack({.name = "JunkByUnix", .run = run<kUnix, junk, no_more>, .least = 400}),
};

}  // namespace strangers
}  // namespace linkspan::test
