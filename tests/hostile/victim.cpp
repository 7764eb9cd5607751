#include "tests/hostile/victim.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <vector>

#include "tests/conformance/engine_fixture.hpp"
#include "tests/hostile/cores.hpp"
#include "tests/support/few_fds.hpp"

namespace linkspan::test {
namespace {

constexpr const char* kVictimHelper = "victim";
constexpr Duration kClose = 5s;

Json json_of(const Usage& usage) {
  return {{"fds", usage.fds},           {"threads", usage.threads}, {"mappings", usage.mappings},
          {"granules", usage.granules}, {"balance", usage.balance}, {"names", usage.names}};
}
Usage usage_of(const Json& json) {
  return {.fds = json.at("fds"),
          .threads = json.at("threads"),
          .mappings = json.at("mappings"),
          .granules = json.at("granules"),
          .balance = json.at("balance").get<DriverBalance>(),
          .names = json.at("names")};
}

/// Returns the highest use since the last call, in bytes.
std::uint64_t most_memory() {
  std::uint64_t kib = 0;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) kib = std::stoull(line.substr(6));
  std::ofstream("/proc/self/clear_refs") << "5";
  return kib << 10;
}

class VictimServer {
 public:
  Result<Answer> handle(const Json& call) {
    const auto what = call.at("do").get<std::string>();
    if (what == "open") return open();
    if (what == "usage")
      return Answer{json_of(Usage::lowest(Duration(call.at("time").get<Duration::rep>()),
                                          usage_of(call.at("enough")))),
                    {}};
    if (what == "lack") return lack(call.at("what").get<Attack::Lacks>()), Answer{};
    if (what == "invalidate") {
      const Status status = engine_->invalidate(held_.at(kExclusiveBait).region, 5s);
      if (!status.ok()) return status;
      add(kExclusiveBait, {.kind = "host", .peers = {true, true, true}});
      return Answer{};
    }
    if (what == "memory") return Answer{most_memory(), {}};
    if (what == "dump") return Answer{engine_->dump(), {}};
    if (what == "close") {
      const base::Time begin = base::Clock::steady().now();
      const Status status = engine_->close(kClose);
      const Duration took = base::Clock::steady().now() - begin;
      engine_.reset();
      if (!status.ok()) return status;
      if (took > kClose) return Status(Code::timed_out, Scope::process, "close() took too long");
      return Answer{};
    }
    return Status(Code::unsupported, Scope::request, what);
  }

  /// Does what a program with peers does: accepts peers and takes notifications.
  bool idle() {
    if (!engine_) return false;
    try {
      while (engine_->accept(Duration::zero()).ok()) {
      }
      (void)engine_->notifications();
    } catch (const std::bad_alloc&) {
      // Memory is exhausted.
    }
    return false;
  }

 private:
  Result<Answer> open() {
    EngineOptions options = engine_options("victim");
    if (std::getenv("LINKSPAN_TEST_UNREAD_STDERR") != nullptr) {
      fill_stderr();
      options.log = {};
    }
    engine_ = take(Engine::open(options));
    add(honest_region("shared"), {.kind = "shared"});
    add(honest_region("host"), {.kind = "host"});
    add(honest_region("exclusive"), {.kind = "host", .peers = {true, true, true}});
    add(kNewcomers, {.kind = "shared"});
    add(kBait, {.kind = "shared"});
    add(kExclusiveBait, {.kind = "host", .peers = {true, true, true}});
    if (kinds_here({kind_of("device0")}).ok()) add(honest_region("device0"), {.kind = "device0"});
    must(engine_->listen());
    const std::string local = engine_->address();
    must(engine_->listen("tcp:127.0.0.1:0"));
    return Answer{{local, engine_->address(), engine_options("").socket_dir}, {}};
  }
  /// Replaces stderr by a full pipe, as if the program that started this one read nothing.
  void fill_stderr() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    unread_ = base::Fd(ends[0]);
    const base::Fd other(ends[1]);
    ::fcntl(other.get(), F_SETFL, O_NONBLOCK);
    const std::vector<char> text(4096, 'x');
    while (::write(other.get(), text.data(), text.size()) > 0) {
    }
    ::fcntl(other.get(), F_SETFL, 0);
    if (::dup2(other.get(), STDERR_FILENO) < 0) throw std::runtime_error("no stderr");
  }
  void lack(Attack::Lacks what) {
    few_.reset();
    little_.reset();
    if (what == Attack::Lacks::descriptors) few_.emplace(0);
    if (what != Attack::Lacks::address_space) return;
    std::uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    little_.emplace(RLIMIT_AS,
                    pages * static_cast<std::uint64_t>(::getpagesize()) + 4 * kVictimBytes);
  }
  void add(const std::string& name, MemoryOptions options) {
    options.bytes = kVictimBytes;
    Held held = Held::make(*engine_, options);
    must(engine_->publish(name, held.region));
    held_.insert_or_assign(name, std::move(held));
  }

  std::map<std::string, Held> held_;  // outlives the Engine
  std::optional<Engine> engine_;
  base::Fd unread_;
  std::optional<FewFds> few_;
  std::optional<Limit> little_;
};

void victim_main(Line& line) {
  pin_to(Core::attacked);
  VictimServer server;
  line.serve([&](const Json& call, const std::vector<base::Fd>&) { return server.handle(call); },
             [&] { return server.idle(); });
}
const bool kVictimRegistered = add_helper(kVictimHelper, victim_main);

}  // namespace

Victim::Victim(const std::vector<std::string>& environment)
    : child_(take(Child::spawn(kVictimHelper, environment))) {
  const Json at = take(child_->line().call({{"do", "open"}})).value;
  target_ = {at[0], at[1], at[2]};
}

Usage Victim::usage(Duration time, const Usage& enough) {
  return usage_of(take(child_->line().call(
                           {{"do", "usage"}, {"time", time.count()}, {"enough", json_of(enough)}}))
                      .value);
}

void Victim::lack(Attack::Lacks what) {
  take(child_->line().call({{"do", "lack"}, {"what", what}}));
}

std::uint64_t Victim::most_memory() { return take(child_->line().call({{"do", "memory"}})).value; }

std::string Victim::invalidate() {
  const auto done = child_->line().call({{"do", "invalidate"}});
  return done.ok() ? "" : done.status().to_string();
}

std::string Victim::dump() { return take(child_->line().call({{"do", "dump"}})).value; }

std::string Victim::close() {
  const auto closed = child_->line().call({{"do", "close"}});
  return closed.ok() ? "" : closed.status().to_string();
}

}  // namespace linkspan::test
