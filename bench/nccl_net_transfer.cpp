// bench_nccl_net_transfer: 1 GiB from one Engine to another by the test plugin, over loopback,
// beside the plugin's own rate: the same messages by two bare comms.
//
// Both ends are in this process, in threads of their own, and take turns on the same memory; the
// bytes of each are verified before the clock runs. Exit: 0 all rows are there, and right; 1 not.
// --enforce: 1 also where a bar is missed. Without a GPU: host memory only.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "bench/bare/machine.hpp"
#include "bench/memory.hpp"
#include "linkspan/engine.hpp"
#include "transport/nccl_net/comm.hpp"

namespace linkspan::bench {
namespace {

using namespace std::chrono_literals;
using namespace transport::nccl_net;  // NOLINT(google-build-using-namespace)
using Json = nlohmann::ordered_json;

constexpr std::uint64_t kSeed = 1, kPoison = 2;
constexpr std::uint64_t kMessage = std::uint64_t{4} << 20;  // as the transport cuts
constexpr double kBar = 0.9;
constexpr Duration kLimit = 120s;

// ---- the plugin alone
// -----------------------------------------------------------------------------

/// Two comms, and the memory of their messages.
class Bare {
 public:
  static Result<std::unique_ptr<Bare>> create(const std::shared_ptr<Plugin>& plugin,
                                              const Memory& from, const Memory& to) {
    auto bare = std::unique_ptr<Bare>(new Bare(from, to));
    const auto scope = bare->enter();
    auto listener = Listener::open(plugin, 0);
    if (!listener.ok()) return listener.status();
    auto pending_connect = PendingConnect::open(plugin, 0, (*listener)->handle());
    if (!pending_connect.ok()) return pending_connect.status();
    const auto deadline = base::Deadline::after(base::Clock::steady(), kLimit);
    while (bare->send_ == nullptr || bare->receive_ == nullptr) {
      if (deadline.passed()) return Status(Code::timed_out, Scope::process, "no connection");
      if (bare->send_ == nullptr) {
        auto comm = (*pending_connect)->connect();
        if (!comm.ok()) return comm.status();
        bare->send_ = *std::move(comm);
      }
      if (bare->receive_ == nullptr) {
        auto comm = (*listener)->accept();
        if (!comm.ok()) return comm.status();
        bare->receive_ = *std::move(comm);
      }
    }
    const auto type = from.device() != nullptr ? abi::kCuda : abi::kHost;
    auto source = bare->send_->add_memory(from.at(0), from.bytes(), type);
    if (!source.ok()) return source.status();
    bare->source_ = *std::move(source);
    auto target = bare->receive_->add_memory(to.at(0), to.bytes(), type);
    if (!target.ok()) return target.status();
    bare->target_ = *std::move(target);
    return bare;
  }

  /// Receives once. The bytes stay where the plugin puts them: for the device type UNPACK in its
  /// pool.
  Result<Duration> run() {
    const auto deadline = base::Deadline::after(base::Clock::steady(), kLimit);
    const auto begin = base::Clock::steady().now();
    Status received;
    {
      const std::jthread other([&] { received = receive(deadline); });
      if (Status sent = send(deadline); !sent.ok()) return sent;
    }
    if (!received.ok()) return received;
    return Duration(base::Clock::steady().now() - begin);
  }
  bool unpacks() const { return receive_->unpacks(); }

 private:
  Bare(const Memory& from, const Memory& to) : from_(from), to_(to) {}
  std::optional<cuda::DeviceScope> enter() const {
    std::optional<cuda::DeviceScope> scope;
    if (from_.device() == nullptr) return scope;
    if (auto entered = from_.device()->enter(); entered.ok()) scope.emplace(*std::move(entered));
    return scope;
  }
  Status send(base::Deadline deadline) {
    const auto scope = enter();
    for (std::uint64_t begun = 0, done = 0; done < from_.bytes();) {
      while (begun < from_.bytes()) {
        const std::uint64_t bytes = std::min(kMessage, from_.bytes() - begun);
        Status status = send_->send(from_.at(begun), bytes, 0, *source_, bytes);
        if (status.code() == Code::no_resource) break;
        if (!status.ok()) return status;
        begun += bytes;
      }
      const auto tested = send_->test();
      if (!tested.ok()) return tested.status();
      if (*tested) done += (*tested)->bytes;
      if (deadline.passed())
        return {Code::timed_out, Scope::process, "the bare comm took too long"};
    }
    return {};
  }
  Status receive(base::Deadline deadline) {
    const auto scope = enter();
    for (std::uint64_t begun = 0, done = 0; done < to_.bytes();) {
      while (begun < to_.bytes()) {
        const std::uint64_t bytes = std::min(kMessage, to_.bytes() - begun);
        Status status = receive_->receive(to_.at(begun), bytes, 0, *target_, begun);
        if (status.code() == Code::no_resource) break;
        if (!status.ok()) return status;
        begun += bytes;
      }
      const auto tested = receive_->test();
      if (!tested.ok()) return tested.status();
      if (deadline.passed())
        return {Code::timed_out, Scope::process, "the bare comm took too long"};
      if (!*tested) continue;
      const Done& one = **tested;
      if (to_.device() != nullptr && !receive_->unpacks()) {
        const auto flush = receive_->flush(to_.at(one.cookie), one.bytes, *target_);
        if (!flush.ok()) return flush.status();
        for (bool flushed = false; !flushed && !deadline.passed();) {
          const auto asked = receive_->flushed(*flush);
          if (!asked.ok()) return asked.status();
          flushed = *asked;
        }
      }
      if (Status status = receive_->consumed(one); !status.ok()) return status;
      done += one.bytes;
    }
    return {};
  }

  const Memory &from_, &to_;
  std::unique_ptr<SendComm> send_;
  std::unique_ptr<ReceiveComm> receive_;
  std::unique_ptr<Comm::CommRegistration> source_, target_;
};

// ---- rows -------------------------------------------------------------------------------------

struct Case {
  const char *id, *file;
  bool on_gpu;
};

Status measure(const Case& c, const cuda::Device* device, const std::string& folder,
               std::uint64_t bytes, unsigned runs, Json& rows) {
  auto from = Memory::create(c.on_gpu ? device : nullptr, bytes);
  if (!from.ok()) return from.status();
  auto to = Memory::create(c.on_gpu ? device : nullptr, bytes);
  if (!to.ok()) return to.status();
  EngineOptions options;
  options.transport["nccl_net.plugin"] = folder + c.file;
  auto near = Engine::open(options), far = Engine::open(options);
  if (!near.ok()) return near.status();
  if (!far.ok()) return far.status();
  if (Status s = far->listen(); !s.ok()) return s;
  auto peer = near->connect(far->address());
  if (!peer.ok()) return peer.status();
  auto here = near->register_memory(from->at(0), bytes);
  if (!here.ok()) return here.status();
  auto there = far->register_memory(to->at(0), bytes, {.peers = {.read = true, .write = true}});
  if (!there.ok()) return there.status();
  if (Status s = far->publish("to", *there); !s.ok()) return s;
  auto remote = peer->lookup("to");
  if (!remote.ok()) return remote.status();
  TransferOptions by_plugin;
  by_plugin.require = "nccl_net";
  by_plugin.deadline = kLimit;
  const Block all{0, 0, bytes};
  const auto ours = [&]() -> Result<Duration> {
    const auto begin = base::Clock::steady().now();
    auto moved = peer->write(*here, *remote, std::span(&all, 1), by_plugin);
    if (!moved.ok()) return moved.status();
    if (Status s = moved->wait(kLimit); !s.ok()) return s;
    return Duration(base::Clock::steady().now() - begin);
  };
  auto plugin =
      Plugin::load({folder + c.file}, base::Log(base::Level::warning, base::stderr_sink()));
  if (!plugin.ok()) return plugin.status();
  auto bare = Bare::create(*plugin, *from, *to);
  if (!bare.ok()) return bare.status();

  for (const bool is_ours : {true, false}) {
    if (Status s = from->fill(kSeed); !s.ok()) return s;
    if (Status s = to->fill(kPoison); !s.ok()) return s;
    const auto took = is_ours ? ours() : (*bare)->run();
    if (!took.ok()) return took.status();
    if (!is_ours && (*bare)->unpacks()) continue;  // it leaves the bytes in its pool
    if (Status s = to->verify(kSeed); !s.ok()) return s;
  }
  std::vector<double> mine, theirs;
  for (unsigned i = 0; i < runs; ++i) {
    const auto one = ours(), other = (*bare)->run();
    if (!one.ok()) return one.status();
    if (!other.ok()) return other.status();
    mine.push_back(static_cast<double>(bytes) / static_cast<double>(one->count()));
    theirs.push_back(static_cast<double>(bytes) / static_cast<double>(other->count()));
  }
  if (Status s = to->verify(kSeed); !s.ok()) return s;
  std::sort(mine.begin(), mine.end());
  std::sort(theirs.begin(), theirs.end());
  const double value = mine[runs / 2], ceiling = theirs[runs / 2], ratio = value / ceiling;
  const auto rounded = [](double number) { return std::round(number * 1000) / 1000; };
  rows.push_back({{"id", c.id},
                  {"value", rounded(value)},
                  {"unit", "GB/s"},
                  {"ceiling", rounded(ceiling)},
                  {"ceiling_how", "the same messages by two bare comms of the plugin"},
                  {"ratio", rounded(ratio)},
                  {"runs", runs},
                  {"verified", true},
                  {"bar", kBar},
                  {"pass", ratio >= kBar}});
  return {};
}

int run(bool quick, bool enforce, const std::string& folder, const std::string& file,
        const std::string& command) {
  auto topology = cuda::Topology::create();
  const cuda::Device* device = nullptr;
  if (topology.ok())
    if (auto active = (*topology)->activate((*topology)->devices()[0].uuid); active.ok())
      device = *active;
  constexpr Case kCases[] = {{"test_plugin.1GiB", "libnccl-net-linkspan-test.so", true},
                             {"test_plugin.1GiB.flushed", "libnccl-net-linkspan-test-v12.so", true},
                             {"test_plugin.1GiB.host", "libnccl-net-linkspan-test-v12.so", false}};
  Json rows = Json::array();
  Status end;
  for (const Case& c : kCases) {
    if (c.on_gpu && device == nullptr) continue;
    end = measure(c, device, folder, std::uint64_t{quick ? 24u : 1024u} << 20, quick ? 1 : 7, rows);
    if (!end.ok()) break;
  }
  const bare::Machine machine = bare::describe_machine(topology.ok() ? topology->get() : nullptr);
  Json out{{"what", "transfers by a network plugin beside the plugin's own rate"},
           {"command", command}};
  out["machine"] = {{"gpus", machine.gpus},
                    {"driver", machine.driver},
                    {"cuda", machine.cuda},
                    {"cpus", machine.cpus},
                    {"kernel", machine.kernel}};
  if (quick) out["quick"] = true;  // smaller than the names say
  if (!end.ok()) out["stopped"] = end.to_string();
  out["verified"] = end.ok();
  out["rows"] = rows;
  bool missed = false;
  for (const Json& row : rows) {
    const bool met = row["pass"].get<bool>();
    std::cout << row["id"].get<std::string>() << ": " << row["value"] << " GB/s of "
              << row["ceiling"] << ", ratio " << row["ratio"] << ", bar " << row["bar"]
              << (met ? " met" : " MISSED") << '\n';
    missed = missed || !met;
  }
  if (!end.ok()) std::cout << "stopped: " << end.to_string() << '\n';
  if (!file.empty() && !(std::ofstream(file) << out.dump(2) << '\n').flush()) {
    std::cout << "cannot write " << file << '\n';
    return 1;
  }
  return end.ok() && !(enforce && missed) ? 0 : 1;
}

}  // namespace
}  // namespace linkspan::bench

int main(int argc, char** argv) try {
  CLI::App app("1 GiB by the test plugin, beside the plugin's own rate.");
  bool quick = false, enforce = false;
  std::string file, folder, command = "bench_nccl_net_transfer";
  app.add_flag("--quick", quick, "Few and seldom: shows that it works, not speeds");
  app.add_flag("--enforce", enforce, "Exit code 1 also where a bar is missed");
  app.add_option("--plugins", folder, "Where libnccl-net-linkspan-test*.so lie")
      ->type_name("FOLDER")
      ->required();
  app.add_option("--json", file, "Also write rows as evidence/ keeps them")->type_name("FILE");
  CLI11_PARSE(app, argc, argv);
  for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
  return linkspan::bench::run(quick, enforce, folder + "/", file, command);
} catch (const std::exception& error) {  // of CLI11, of Json
  std::cerr << "bench_nccl_net_transfer: " << error.what() << '\n';
  return 1;
}
