#include "tests/hostile/honest.hpp"

#include <deque>
#include <optional>

#include "tests/conformance/engine_fixture.hpp"
#include "tests/hostile/cores.hpp"

namespace linkspan::test {
namespace {

constexpr const char* kHonestHelper = "honest";
constexpr std::uint64_t kRound = 64u << 10;
constexpr std::uint64_t kLookupEach = 8;  // rounds
constexpr Duration kPatience = 10s;       // of a call: what takes longer is an error

/// A connection and memory of one kind.
class Path {
 public:
  Path(Engine& engine, std::string name, const std::string& address, const std::string& kind,
       std::string region)
      : name_(std::move(name)), region_(std::move(region)) {
    from_ = Held::make(engine, {.kind = kind, .bytes = kRound});
    back_ = Held::make(engine, {.kind = kind, .bytes = kRound});
    back_.fill(0);
    peer_ = take(engine.connect(address, kPatience));
  }

  const std::string& name() const noexcept { return name_; }

  /// Makes a write and a read and verifies the bytes; sometimes makes a lookup.
  void round(Served& served, bool look_ups = true) {
    if (look_ups && seed_ % kLookupEach == 0 && !step(served, "lookup", [&] { return look_up(); }))
      return;
    const base::Time begin = base::Clock::steady().now();
    from_.fill(++seed_);
    const Block block{0, seed_ % 2 * kRound, kRound};
    const TransferOptions options{.deadline = kPatience};
    const auto blocks = std::span(&block, 1);
    const bool moved =
        step(served, "write",
             [&] { return finished(peer_.write(from_.region, there_, blocks, options)); }) &&
        step(served, "read",
             [&] { return finished(peer_.read(back_.region, there_, blocks, options)); });
    if (moved) note(served, "read", back_.difference(0, {{0, seed_, 0, kRound}}));
    Served::Path& path = served.paths[name_];
    ++path.rounds;
    path.took += base::Clock::steady().now() - begin;
  }

 private:
  Status look_up() {
    auto found = peer_.lookup(region_, kPatience);
    if (found.ok()) there_ = *std::move(found);
    return found.status();
  }
  void note(Served& served, const char* what, const std::string& wrong) {
    if (!wrong.empty() && served.wrong.empty())
      served.wrong = std::string(what) + " by " + name_ + ": " + wrong;
  }
  template <class Call>
  bool step(Served& served, const char* what, const Call& call) {
    const base::Time begin = base::Clock::steady().now();
    const Status status = call();
    const Duration took = base::Clock::steady().now() - begin;
    if (took > served.longest) {
      served.longest = took;
      served.where = std::string(what) + " by " + name_;
    }
    if (!status.ok()) note(served, what, status.to_string());
    return status.ok();
  }

  const std::string name_, region_;
  Held from_, back_;
  Peer peer_;
  RemoteRegion there_;
  std::uint64_t seed_ = 0;
};

class HonestServer {
 public:
  Result<Answer> handle(const Json& call) {
    const auto what = call.at("do").get<std::string>();
    if (what == "open") return open(call);
    if (what == "visit") return visit(call);
    Served served;
    const auto limit = base::Deadline::after(base::Clock::steady(),
                                             Duration(call.at("time").get<Duration::rep>()));
    do {
      for (Path& each : paths_) each.round(served, call.at("look_ups"));
    } while (!limit.passed() && served.wrong.empty());
    Json paths = Json::object();
    for (const auto& [name, path] : served.paths) paths[name] = {path.rounds, path.took.count()};
    return Answer{{{"paths", paths},
                   {"longest", served.longest.count()},
                   {"where", served.where},
                   {"wrong", served.wrong}},
                  {}};
  }

 private:
  Result<Answer> open(const Json& call) {
    const std::string local = call.at("unix"), tcp = call.at("tcp");
    engine_ = take(Engine::open(engine_options("honest")));
    paths_.emplace_back(*engine_, "unix", local, "shared", honest_region("shared"));
    paths_.emplace_back(*engine_, "asked", local, "host", honest_region("exclusive"));
    paths_.emplace_back(*engine_, "tcp", tcp, "host", honest_region("host"));
    if (kinds_here({kind_of("device0")}).ok())
      paths_.emplace_back(*engine_, "gpu", local, "device0", honest_region("device0"));
    return Answer{};
  }
  static Result<Answer> visit(const Json& call) {
    EngineOptions options = engine_options("newcomer");
    options.use_gpu = false;
    Served served;
    std::deque<Path> paths;  // outlives the Engine
    Engine engine = take(Engine::open(options));
    for (const char* by : {"unix", "tcp"}) {
      paths.emplace_back(engine, by, call.at(by), "host", kNewcomers);
      paths.back().round(served);
    }
    must(engine.close(kPatience));
    return Answer{served.wrong, {}};
  }

  std::deque<Path> paths_;  // outlives the Engine
  std::optional<Engine> engine_;
};

void honest_main(Line& line) {
  pin_to(Core::honest);
  HonestServer server;
  line.serve([&](const Json& call, const std::vector<base::Fd>&) { return server.handle(call); },
             [] { return false; });
}
const bool kHonestRegistered = add_helper(kHonestHelper, honest_main);

}  // namespace

HonestPeer::HonestPeer(const Target& target)
    : child_(take(Child::spawn(kHonestHelper))), visitor_(take(Child::spawn(kHonestHelper))) {
  take(child_->line().call(
      {{"do", "open"}, {"unix", target.unix_address}, {"tcp", target.tcp_address}}));
}

Served HonestPeer::move_for(Duration time, bool look_ups) {
  const Json answer =
      take(child_->line().call({{"do", "move"}, {"time", time.count()}, {"look_ups", look_ups}}))
          .value;
  Served served{.paths = {},
                .longest = Duration(answer.at("longest").get<Duration::rep>()),
                .where = answer.at("where"),
                .wrong = answer.at("wrong")};
  for (const auto& [name, path] : answer.at("paths").items())
    served.paths[name] = {path[0], Duration(path[1].get<Duration::rep>())};
  return served;
}

std::string HonestPeer::visit(const Target& target) {
  const auto visited = visitor_->line().call(
      {{"do", "visit"}, {"unix", target.unix_address}, {"tcp", target.tcp_address}});
  return visited.ok() ? visited->value.get<std::string>() : visited.status().to_string();
}

}  // namespace linkspan::test
