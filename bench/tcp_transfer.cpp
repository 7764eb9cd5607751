// bench_tcp_transfer: from one Engine to another by TCP over loopback, beside as many bare sockets
// that send host memory, and for small messages beside a bare ping-pong. Before the clock runs the
// Engines have made as many streams as pay; each row tells how many it had at its end.
//
// All ends are in this process, in threads of their own; the sides take turns on the same memory,
// and the bytes of each are verified before the clock runs and after it. Exit: 0 all rows are
// there, and right; 1 not. --enforce: 1 also where a bar is missed. Without a GPU: host memory
// only.
#include <sys/socket.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "bench/bare/gpu_copy.hpp"
#include "bench/bare/machine.hpp"
#include "bench/figures.hpp"
#include "bench/memory.hpp"
#include "bench/tcp_ping.hpp"
#include "bench/tcp_small.hpp"

namespace linkspan::bench {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kSeed = 1, kPoison = 2, kCall = std::uint64_t{1} << 20;
constexpr unsigned kPatience = 24;  // rounds of 32 MiB at least: several windows (stream_count.hpp)

/// Blocking sockets, each with a thread on both sides and its share of the bytes.
class Bare {
 public:
  static Result<Bare> create(unsigned sockets) {
    Bare bare;
    for (unsigned i = 0; i < sockets; ++i) {
      auto pair = connected_pair();
      if (!pair.ok()) return pair.status();
      bare.pairs_.push_back(*std::move(pair));
    }
    return bare;
  }
  Result<Duration> run(const Memory& from, const Memory& to) const {
    const auto begin = base::Clock::steady().now();
    const std::uint64_t share = from.bytes() / pairs_.size();
    std::atomic<bool> failed{false};
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < pairs_.size(); ++i) {
        const std::uint64_t at = i * share;
        const std::uint64_t bytes = i + 1 == pairs_.size() ? from.bytes() - at : share;
        threads.emplace_back([&, at, bytes, i] {
          for (std::uint64_t done = 0; done < bytes && !failed;) {
            const ssize_t sent = ::send(pairs_[i].one.get(), from.at(at + done),
                                        std::min(kCall, bytes - done), MSG_NOSIGNAL);
            if (sent <= 0) failed = true;
            done += static_cast<std::uint64_t>(std::max<ssize_t>(sent, 0));
          }
        });
        threads.emplace_back([&, at, bytes, i] {
          for (std::uint64_t done = 0; done < bytes && !failed;) {
            const ssize_t got =
                ::recv(pairs_[i].other.get(), to.at(at + done), std::min(kCall, bytes - done), 0);
            if (got <= 0) failed = true;
            done += static_cast<std::uint64_t>(std::max<ssize_t>(got, 0));
          }
        });
      }
    }
    if (failed) return Status(Code::system, Scope::process, "a bare socket failed");
    return Duration(base::Clock::steady().now() - begin);
  }

 private:
  std::vector<Pair> pairs_;
};

struct Case {
  const char* id;
  bool from_gpu, to_gpu;
  bool pages;
  double bar;
};

/// GB/s of bare copies between that memory of a GPU and pinned memory; of the host's, no limit.
Result<double> pinned_rate(const Memory& memory, bool to_gpu, unsigned runs) {
  if (memory.device() == nullptr) return std::numeric_limits<double>::infinity();
  const auto scope = memory.device()->enter();
  if (!scope.ok()) return scope.status();
  const std::uint64_t bytes = std::min(memory.bytes(), std::uint64_t{256} << 20);
  auto pinned = cuda::PinnedBuffer::create(*scope, bytes);
  if (!pinned.ok()) return pinned.status();
  auto copy = bare::GpuCopy::create(*memory.device());
  if (!copy.ok()) return copy.status();
  const bare::Way in{memory.address(), pinned->device_address()}, out{in.from, in.to};
  std::vector<double> rates;
  for (unsigned i = 0; i <= runs; ++i) {  // the first is not counted
    const auto took = (*copy)->run(to_gpu ? in : out, bytes, kLimit);
    if (!took.ok()) return took.status();
    if (i != 0) rates.push_back(static_cast<double>(bytes) / static_cast<double>(took->count()));
  }
  return median(rates);
}

/// Measures one case beside its ceiling: for pages the same bytes as one block, by the Engine too;
/// else the slower of the bare sockets and the bare copies between the GPUs and pinned memory.
Status measure(const Case& c, std::span<const cuda::Device* const> gpus, unsigned streams,
               std::uint64_t bytes, unsigned runs, Json& rows) {
  auto from = Memory::create(c.from_gpu ? gpus.front() : nullptr, bytes);
  if (!from.ok()) return from.status();
  auto to = Memory::create(c.to_gpu ? gpus.back() : nullptr, bytes);
  if (!to.ok()) return to.status();
  auto host_from = Memory::create(nullptr, bytes), host_to = Memory::create(nullptr, bytes);
  if (!host_from.ok()) return host_from.status();
  if (!host_to.ok()) return host_to.status();
  auto route = connect(from->at(0), to->at(0), bytes);
  if (!route.ok()) return route.status();
  const Peer& peer = route->ends.peer;
  const TransferOptions options = by_tcp();
  constexpr std::uint64_t kPage = 4096;
  std::vector<std::uint32_t> index(bytes / kPage);
  std::iota(index.begin(), index.end(), 0u);
  std::shuffle(index.begin(), index.end(), std::mt19937(7));
  const Block all{0, 0, bytes};
  const auto write = [&](bool pages) -> Result<Duration> {
    const auto begin = base::Clock::steady().now();
    auto moved =
        pages ? peer.write(route->here, route->remote,
                           Pages{.page_bytes = kPage, .local_index = index, .remote_index = index},
                           options)
              : peer.write(route->here, route->remote, std::span(&all, 1), options);
    if (!moved.ok()) return moved.status();
    if (Status s = moved->wait(kLimit); !s.ok()) return s;
    return Duration(base::Clock::steady().now() - begin);
  };
  const auto streams_now = [&]() -> Result<unsigned> {
    const auto told = peer.explain(Op::write, route->here, route->remote, 1, bytes);
    if (!told.ok()) return told.status();
    return static_cast<unsigned>(std::stoul(told->reason));  // "8 TCP streams"
  };
  // The Engine makes more streams while they pay: until it has all, or no more come.
  const unsigned patience = runs == 1 ? 1 : kPatience;
  unsigned there_are = 0;
  for (unsigned alike = 0; there_are != streams && alike != patience;) {
    if (const auto one = write(c.pages); !one.ok()) return one.status();
    const auto now = streams_now();
    if (!now.ok()) return now.status();
    alike = std::exchange(there_are, *now) == *now ? alike + 1 : 0;
  }
  auto bare = Bare::create(streams);
  if (!bare.ok()) return bare.status();
  const auto ceiling_run = [&] { return c.pages ? write(false) : bare->run(*host_from, *host_to); };

  if (Status s = from->fill(kSeed); !s.ok()) return s;
  if (Status s = host_from->fill(kSeed); !s.ok()) return s;
  std::vector<double> mine, theirs;
  double cpu = 0;
  for (unsigned i = 0; i <= runs; ++i) {  // the first is not counted
    if (i == 0 || i == runs)
      if (Status s = to->fill(kPoison); !s.ok()) return s;
    const double before = cpu_seconds();
    const auto one = write(c.pages);
    if (!one.ok()) return one.status();
    if (i != 0) cpu += cpu_seconds() - before;
    if (i == 0 || i == runs)
      if (Status s = to->verify(kSeed); !s.ok()) return s;
    const auto other = ceiling_run();
    if (!other.ok()) return other.status();
    if (i == 0) continue;
    mine.push_back(static_cast<double>(bytes) / static_cast<double>(one->count()));
    theirs.push_back(static_cast<double>(bytes) / static_cast<double>(other->count()));
  }
  const auto used = streams_now();
  if (!used.ok()) return used.status();
  const double value = median(mine), found = median(theirs);
  auto out = pinned_rate(*from, false, runs), in = pinned_rate(*to, true, runs);
  if (!out.ok()) return out.status();
  if (!in.ok()) return in.status();
  const bool by_link = !c.pages && std::min(*out, *in) < found;
  const double ceiling = by_link ? std::min(*out, *in) : found, ratio = value / ceiling;
  rows.push_back(
      {{"id", c.id},
       {"value", rounded(value)},
       {"unit", "GB/s"},
       {"ceiling", rounded(ceiling)},
       {"ceiling_how", c.pages   ? "the same bytes in one piece"
                       : by_link ? "bare pinned copies"
                                 : std::to_string(streams) + " bare sockets that send host memory"},
       {"ratio", rounded(ratio)},
       {"cpu_s_per_GB", rounded(cpu / runs / (static_cast<double>(bytes) / 1e9))},
       {"streams", *used},
       {"gpus", std::min<std::size_t>(gpus.size(), c.from_gpu + c.to_gpu)},
       {"runs", runs},
       {"verified", true},
       {"bar", c.bar},
       {"pass", ratio >= c.bar}});
  return {};
}

int run(bool quick, bool enforce, unsigned streams, const std::string& only,
        const std::string& file, const std::string& command) {
  // Before any thread. NOLINTNEXTLINE(concurrency-mt-unsafe)
  ::setenv("LINKSPAN_TCP_STREAMS", std::to_string(streams).c_str(), 1);
  auto topology = cuda::Topology::create();
  std::vector<const cuda::Device*> gpus;  // from the first to the last
  for (std::size_t i = 0; topology.ok() && i < (*topology)->devices().size(); ++i)
    if (auto active = (*topology)->activate((*topology)->devices()[i].uuid); active.ok())
      gpus.push_back(*active);
  constexpr Case kCases[] = {{"host_host.1GiB", false, false, false, 0.95},
                             {"gpu_gpu.1GiB", true, true, false, 0.9},
                             {"gpu_host.1GiB", true, false, false, 0.9},
                             {"host_gpu.1GiB", false, true, false, 0.9},
                             {"pages.8192x4KiB", true, true, true, 0.85},
                             {"pages.8192x4KiB.host", false, false, true, 0.85}};
  Json rows = Json::array();
  Status end;
  for (const Case& c : kCases) {
    if ((c.from_gpu || c.to_gpu) && gpus.empty()) continue;
    if (std::string_view(c.id).find(only) == std::string_view::npos) continue;
    const std::uint64_t mib = c.pages ? 32 : quick ? 24 : 1024;
    end = measure(c, gpus, streams, mib << 20, quick ? 1 : c.pages ? 31 : 9, rows);
    if (!end.ok()) break;
  }
  for (const SmallCase& c : kSmallCases) {
    if (!end.ok() || (c.on_gpu && gpus.empty())) continue;
    if (std::string_view(c.id).find(only) == std::string_view::npos) continue;
    auto row = measure_small(c, gpus, quick ? 1 : 20, quick ? 5 : c.bytes == 8 ? 200 : 50);
    end = row.status();
    if (row.ok()) rows.push_back(*std::move(row));
  }
  if (end.ok() && std::string_view(kPingId).find(only) != std::string_view::npos) {
    auto row = ping(quick ? 50 : 4000);
    end = row.status();
    if (row.ok()) rows.push_back(*std::move(row));
  }
  const bare::Machine machine = bare::describe_machine(topology.ok() ? topology->get() : nullptr);
  Json out{{"what", "transfers by TCP over loopback beside bare sockets"}, {"command", command}};
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
    std::cout << row["id"].get<std::string>() << ": " << row["value"] << ' '
              << row["unit"].get<std::string>() << ", bare " << row["ceiling"] << ", ratio "
              << row["ratio"] << ", bar " << row["bar"] << (met ? " met" : " MISSED");
    if (row.contains("streams")) std::cout << ", " << row["streams"] << " streams";
    if (row.contains("cpu_s_per_GB")) std::cout << ", CPU " << row["cpu_s_per_GB"] << " s/GB";
    std::cout << '\n';
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
  CLI::App app("Transfers by TCP over loopback, beside bare sockets.");
  bool quick = false, enforce = false;
  unsigned streams = 8;
  std::string only, file, command = "bench_tcp_transfer";
  app.add_flag("--quick", quick, "Few and seldom: shows that it works, not speeds");
  app.add_flag("--enforce", enforce, "Exit code 1 also where a bar is missed");
  app.add_option("--streams", streams, "Of the Engines at most, and bare sockets")
      ->check(CLI::Range(1, 64));
  app.add_option("--only", only, "Rows whose names have this")->type_name("TEXT");
  app.add_option("--json", file, "Also write rows as evidence/ keeps them")->type_name("FILE");
  CLI11_PARSE(app, argc, argv);
  for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
  return linkspan::bench::run(quick, enforce, streams, only, file, command);
} catch (const std::exception& error) {  // of CLI11, of Json
  std::cerr << "bench_tcp_transfer: " << error.what() << '\n';
  return 1;
}
