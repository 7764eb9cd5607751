#include "tools/linkspan/demo.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <optional>

#include "base/options.hpp"
#include "tools/linkspan/pair_run.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr Duration kChildStarts = 20s;
constexpr Duration kChildAllocates = 60s;

/// A folder for one socket. Both can go as soon as the two processes are connected.
class SocketFolder {
 public:
  static Result<SocketFolder> create() {
    std::string path = "/tmp/linkspan-demo-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) return base::Fd::from("mkdtemp(/tmp)", -1).status();
    return SocketFolder(std::move(path));
  }
  SocketFolder(SocketFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  SocketFolder& operator=(SocketFolder&&) = delete;
  SocketFolder(const SocketFolder&) = delete;
  SocketFolder& operator=(const SocketFolder&) = delete;
  ~SocketFolder() {
    if (path_.empty()) return;
    ::unlink(socket().c_str());
    ::rmdir(path_.c_str());
  }
  std::string socket() const { return path_ + "/demo.sock"; }

 private:
  explicit SocketFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;  // empty: moved from
};

class Demo {
 public:
  explicit Demo(const DemoOptions& options)
      : options_(options), deadline_(base::Deadline::after(base::Clock::steady(), options.limit)) {}
  ~Demo() { close(); }
  Demo(const Demo&) = delete;
  Demo& operator=(const Demo&) = delete;

  DemoReport run();

 private:
  Status set_up();
  Status add_memories();
  void run_pairs(DemoReport& report);
  std::uint64_t bytes_of(Place from, Place to) const;
  bool takes_another_way(Place from, Place to);
  void close();

  const DemoOptions& options_;
  const base::Deadline deadline_;
  Gpus gpus_ = Gpus::find();
  const std::vector<Place> places_ = gpus_.places();
  std::unique_ptr<ChildProcess> child_;
  std::optional<Engine> engine_;
  Peer peer_;
  Ceilings::Memories near_;
  std::map<std::string, Far> far_;
};

/// The simulated driver's memory is the machine's own, and slow.
bool real_gpus(const Gpus& gpus) {
  return gpus.count() != 0 && !gpus.info(0).name.starts_with("Simulated");
}

DemoReport Demo::run() {
  DemoReport report;
  report.machine = bare::describe_machine(gpus_.topology());
  if (gpus_.count() == 0) report.no_gpu = gpus_.why().what();
  report.stopped = set_up();
  if (report.stopped.ok()) run_pairs(report);
  return report;
}

Status Demo::set_up() {
  auto child = ChildProcess::spawn(kDemoChild.data(), kChildStarts);
  if (!child.ok()) return child.status();
  child_ = *std::move(child);
  auto folder = SocketFolder::create();
  if (!folder.ok()) return folder.status();
  const std::string address = "unix:" + folder->socket();
  if (auto open = child_->ask("open " + address, kChildStarts); !open.ok()) return open.status();

  auto engine = Engine::open({.name = "demo"});
  if (!engine.ok()) return engine.status();
  engine_.emplace(*std::move(engine));
  auto peer = engine_->connect(address, kChildStarts);
  if (!peer.ok()) return peer.status();
  peer_ = *std::move(peer);
  return add_memories();
}

Status Demo::add_memories() {
  for (const Place place : places_) {
    std::uint64_t bytes = kLeastRegion;
    for (const Place other : places_)
      bytes = std::max({bytes, bytes_of(place, other), bytes_of(other, place)});
    const std::string name = place.name();
    auto memory = Memory::create(*engine_, gpus_, place, bytes);
    if (!memory.ok()) return memory.status();
    near_[name] = *std::move(memory);
    auto answer = child_->ask("memory " + name + ' ' + std::to_string(bytes), kChildAllocates);
    if (!answer.ok()) return answer.status();
    auto far = FarMemory::decode(*answer);
    if (!far.ok()) return far.status();
    auto region = peer_.lookup(name);
    if (!region.ok()) return region.status();
    far_[name] = {.place = place, .memory = *far, .region = *std::move(region)};
  }
  return {};
}

void Demo::run_pairs(DemoReport& report) {
  struct Plan {
    Op op;
    Place from, to;
  };
  std::vector<Plan> plans;
  for (const Place from : places_) {
    for (const Place to : places_) {
      plans.push_back({Op::write, from, to});
      if (takes_another_way(from, to)) plans.push_back({Op::read, from, to});
    }
  }
  const auto threads = base::Options::from_environment();
  Ceilings ceilings(gpus_, near_, child_->pid(), threads.ok() ? threads->cpu_threads : 1);
  PairRun pair_run(*child_, peer_, ceilings, deadline_);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const auto [op, from, to] = plans[i];
    if (options_.progress) options_.progress(i + 1, plans.size(), from.name() + " -> " + to.name());
    Memory& local = *near_.at((op == Op::write ? from : to).name());
    const Far& far = far_.at((op == Op::write ? to : from).name());
    report.pairs.push_back(pair_run.run(op, local, far, bytes_of(from, to)));
    report.stopped = pair_run.lost();
    if (report.stopped.ok() && deadline_.passed() && i + 1 < plans.size())
      report.stopped = Status(Code::timed_out, Scope::request, "the demo's own time is over");
    if (!report.stopped.ok()) return;
  }
}

/// 1 GiB where a link is to be filled; there a start of 10 us is nothing.
std::uint64_t Demo::bytes_of(Place from, Place to) const {
  if (options_.bytes != 0) return options_.bytes;
  if (options_.quick) return kMiB;
  if (!real_gpus(gpus_)) return 64 * kMiB;
  const auto fast = [](Place p) { return p.on_gpu() || p.kind == MemoryKind::pinned; };
  const bool gpu = from.on_gpu() || to.on_gpu();
  return gpu && fast(from) && fast(to) ? 1024 * kMiB : 256 * kMiB;
}

/// True if a read, asked for at the other end, is not the same copy as the write.
bool Demo::takes_another_way(Place from, Place to) {
  const std::uint64_t bytes = bytes_of(from, to);
  const auto write = peer_.explain(Op::write, near_.at(from.name())->region(),
                                   far_.at(to.name()).region, 1, bytes);
  const auto read =
      peer_.explain(Op::read, near_.at(to.name())->region(), far_.at(from.name()).region, 1, bytes);
  if (!write.ok() || !read.ok()) return false;
  return write->path != read->path || write->executor != read->executor;
}

/// What is not quiet may still be written to: it stays until the process ends, which is soon.
void Demo::close() {
  far_.clear();
  if (!engine_ || engine_->close(3s).ok()) return;
  for (auto& [name, memory] : near_) (void)memory.release();
}

}  // namespace

DemoReport run_demo(const DemoOptions& options) { return Demo(options).run(); }

}  // namespace linkspan::tool
