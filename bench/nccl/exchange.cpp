// bench_nccl_exchange: a network plugin of NCCL's between two processes without NCCL and GPUs.
//
// One thread of each process posts and tests messages as NCCL's proxy does, in channels of 8 slots.
// Beside the plugin stands what NCCL's own sockets do at best: that thread alone sends
// and receives by a socket for each channel, without ever blocking. The number of each message and
// the bytes of the last ones are verified. Exit: 0 all rows are there, and right; 1 not.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/tcp.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "bench/figures.hpp"
#include "bench/nccl/lane.hpp"

extern char** environ;  // NOLINT(readability-redundant-declaration)

namespace linkspan::bench {
namespace {

using namespace std::chrono_literals;
using namespace transport::nccl_net;  // NOLINT(google-build-using-namespace)
using Json = nlohmann::ordered_json;

constexpr Duration kLimit = 60s;

enum class Flow { ping_pong, one_way, both_ways };

struct Case {
  Flow flow;
  std::size_t bytes;
  unsigned channels, messages;

  double all_messages() const { return static_cast<double>(messages) * channels; }
};
constexpr Case kCases[] = {
    {Flow::ping_pong, 8, 1, 20000},         {Flow::ping_pong, 64u << 10, 1, 5000},
    {Flow::both_ways, 8, 1, 20000},         {Flow::one_way, 128u << 10, 1, 16000},
    {Flow::one_way, 128u << 10, 4, 8000},   {Flow::one_way, 512u << 10, 4, 2000},
    {Flow::both_ways, 512u << 10, 2, 2000}, {Flow::both_ways, 512u << 10, 8, 500},
    {Flow::both_ways, 1u << 20, 4, 500},
};

void keep_quiet(int, unsigned long, const char*, int, const char*, ...) {}

/// Bytes between the processes before and after a case.
class Wire {
 public:
  explicit Wire(int fd) : fd_(fd) {}
  void send(const void* data, std::size_t bytes) const {
    if (::send(fd_.get(), data, bytes, 0) != static_cast<ssize_t>(bytes)) fail("the peer is gone");
  }
  void receive(void* data, std::size_t bytes) const {
    if (::recv(fd_.get(), data, bytes, MSG_WAITALL) != static_cast<ssize_t>(bytes))
      fail("the peer is gone");
  }
  void meet() const {
    char both = 0;
    send(&both, 1);
    receive(&both, 1);
  }

 private:
  base::Fd fd_;
};

using Lanes = std::vector<std::unique_ptr<Lane>>;

/// Moves messages until each lane has moved `messages` since its begin. Returns the seconds that
/// took.
double move(std::uint64_t messages, Flow flow, bool first, const Lanes& lanes, const Wire& wire) {
  wire.meet();
  const auto begin = base::Clock::steady().now();
  const auto limit = base::Deadline::in(kLimit);
  const auto ended = [&] {
    return std::ranges::all_of(lanes, [&](const auto& lane) { return lane->done() == messages; });
  };
  for (unsigned turns = 1; !ended(); ++turns) {
    std::uint64_t came = 0;
    for (const auto& lane : lanes)
      if (lane->receives()) came = lane->done();
    bool moved = false;
    for (const auto& lane : lanes)
      moved |= lane->go_on(flow == Flow::ping_pong && !lane->receives()
                               ? std::min(messages, came + (first ? 1 : 0))
                               : messages);
    if (!moved) std::this_thread::yield();  // as NCCL's proxy does
    if (turns % 4096 == 0 && limit.passed()) fail("not done after 60 s");
  }
  const Duration took = base::Clock::steady().now() - begin;
  for (const auto& lane : lanes) lane->verify();
  wire.meet();
  return std::chrono::duration<double>(took).count();
}

/// Calls `make(sends)` for each lane of a case, in the order in which both sides make them.
template <class Make>
Lanes lanes_of(const Case& c, bool first, const Make& make) {
  Lanes lanes;
  for (const bool from_first : {true, false})
    for (unsigned i = 0; i < c.channels && (from_first || c.flow != Flow::one_way); ++i)
      lanes.push_back(make(from_first == first));
  return lanes;
}

std::unique_ptr<Lane> by_plugin(Net& net, const Case& c, bool sends, const Wire& wire) {
  alignas(8) std::array<std::byte, abi::kHandleBytes> handle{};
  void *comm = nullptr, *listener = nullptr;
  abi::DeviceHandle* kernels = nullptr;
  if (sends) {
    wire.receive(handle.data(), handle.size());
  } else {
    PluginLane::check(net.listen(0, handle.data(), listener));
    wire.send(handle.data(), handle.size());
  }
  for (const auto limit = base::Deadline::in(kLimit); comm == nullptr;) {
    if (limit.passed()) fail("no comm after 60 s");
    PluginLane::check(sends ? net.connect(0, handle.data(), comm, kernels)
                            : net.accept(listener, comm, kernels));
  }
  if (!sends) PluginLane::check(net.close_listen(listener));
  return std::make_unique<PluginLane>(net, comm, c.bytes, !sends);
}

base::Fd loopback_socket(bool listens, const Wire& wire) {
  base::Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  socklen_t bytes = sizeof at;
  if (listens) {
    if (::bind(socket.get(), address, bytes) != 0 || ::listen(socket.get(), 1) != 0 ||
        ::getsockname(socket.get(), address, &bytes) != 0)
      fail("no socket that listens");
    wire.send(&at, sizeof at);
    socket = base::Fd(::accept4(socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
  } else {
    wire.receive(&at, sizeof at);
    if (::connect(socket.get(), address, bytes) != 0) fail("no connection by a bare socket");
  }
  const int on = 1;
  (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return socket;
}

struct Figures {
  double seconds, cpu;
};

/// Both sides run the same cases in the same order.
Figures measure(const Case& c, bool first, const Wire& wire, Net* net) {
  std::vector<base::Fd> sockets;
  const Lanes lanes = lanes_of(c, first, [&](bool sends) -> std::unique_ptr<Lane> {
    if (net != nullptr) return by_plugin(*net, c, sends, wire);
    sockets.push_back(loopback_socket(!sends, wire));
    return std::make_unique<SocketLane>(sockets.back().get(), c.bytes, !sends);
  });
  Case warm = c;
  warm.messages = std::max(Lane::kSlots, c.messages / 10);
  (void)move(warm.messages, c.flow, first, lanes, wire);
  const double cpu = cpu_seconds();
  const double seconds = move(warm.messages + c.messages, c.flow, first, lanes, wire);
  return {seconds, cpu_seconds() - cpu};
}

std::string name_of(const Case& c) {
  static constexpr const char* kFlows[] = {"ping_pong", "one_way", "both_ways"};
  const std::string bytes = c.bytes < 1024         ? std::to_string(c.bytes) + "B"
                            : c.bytes < (1u << 20) ? std::to_string(c.bytes >> 10) + "KiB"
                                                   : std::to_string(c.bytes >> 20) + "MiB";
  return std::string(kFlows[static_cast<int>(c.flow)]) + "." + bytes + "x" +
         std::to_string(c.channels);
}

/// GB/s of one direction, or us of a message there.
double figure(const Case& c, double seconds) {
  if (c.bytes < (128u << 10))
    return seconds * 1e6 / c.messages / (c.flow == Flow::ping_pong ? 2 : 1);
  return c.all_messages() * static_cast<double>(c.bytes) / seconds / 1e9;
}

void run(Net& net, bool first, const Wire& wire, const std::string& only, bool quick, Json& rows) {
  for (Case c : kCases) {
    if (quick) c.messages /= 250;
    if (name_of(c).find(only) == std::string::npos) continue;
    std::vector<double> ours, bare, cpu;
    for (int turn = 0; turn < (quick ? 1 : 3); ++turn) {
      bare.push_back(figure(c, measure(c, first, wire, nullptr).seconds));
      const Figures by_plugin = measure(c, first, wire, &net);
      ours.push_back(figure(c, by_plugin.seconds));
      cpu.push_back(by_plugin.cpu / (c.all_messages() * static_cast<double>(c.bytes)) * 1e9);
    }
    if (!first) continue;
    const bool rate = c.bytes >= (128u << 10);
    rows.push_back({{"id", name_of(c)},
                    {"value", rounded(median(ours))},
                    {"unit", rate ? "GB/s" : "us"},
                    {"ceiling", rounded(median(bare))},
                    {"ceiling_how", "a bare socket for each channel, all by one thread that polls"},
                    {"ratio", rounded(median(ours) / median(bare))},
                    {"cpu_s_per_gb", rounded(median(cpu))},
                    {"verified", true}});
    std::cout << rows.back().dump() << std::endl;
  }
}

int main_of(int argc, char** argv) {
  CLI::App app("A network plugin of NCCL's between two processes, beside bare sockets.");
  std::string plugin, file, only;
  int version = 11, peer = -1;
  bool quick = false;
  app.add_option("--plugin", plugin, "Its file")->required()->type_name("FILE");
  app.add_option("--version", version, "Of its table")->capture_default_str();
  app.add_option("--only", only, "Rows whose names have this")->type_name("TEXT");
  app.add_flag("--quick", quick, "Few messages: shows that it works, not speeds");
  app.add_option("--json", file, "Also write the rows")->type_name("FILE");
  app.add_option("--peer", peer, "Of the second process")->group("");
  CLI11_PARSE(app, argc, argv);
  const bool first = peer < 0;
  pid_t child = 0;
  if (first) {
    std::array<int, 2> both{};
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, both.data()) != 0) fail("no socket pair");
    std::string number = std::to_string(both[1]);
    std::vector<char*> arguments(argv, argv + argc);
    std::string option = "--peer";
    arguments.insert(arguments.end(), {option.data(), number.data(), nullptr});
    if (::posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments.data(), environ) != 0)
      fail("no second process");
    ::close(both[1]);
    peer = both[0];
  }
  const Wire wire(peer);
  void* const library = ::dlopen(plugin.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) fail("no library " + plugin);
  const auto net =
      make_net(version, ::dlsym(library, ("ncclNetPlugin_v" + std::to_string(version)).c_str()));
  if (net == nullptr) fail("no table of version " + std::to_string(version));
  PluginLane::check(net->init(&keep_quiet));
  Json rows = Json::array();
  run(*net, first, wire, only, quick, rows);
  if (!first) return 0;
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!file.empty())
    std::ofstream(file) << Json{{"what",
                                 "NCCL's network plugin between two processes beside bare sockets"},
                                {"rows", rows}}
                               .dump(2)
                        << '\n';
  return status == 0 ? 0 : 1;
}

}  // namespace
}  // namespace linkspan::bench

int main(int argc, char** argv) {
  try {
    return linkspan::bench::main_of(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "bench_nccl_exchange: " << error.what() << std::endl;
    return 1;
  }
}
