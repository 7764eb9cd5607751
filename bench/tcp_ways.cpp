// bench_tcp_ways: 1 GiB of host memory over 1, 4 and 8 TCP connections, by each of the calls that
// could move it: which of them the TCP transport should use (docs/adr/0015).
//
// Each connection has a thread on either side, of this process; all ways take turns on the same
// memory and keep their connections; the bytes of each are verified before the clock runs and
// after it. Exit: 0 all rows are there, and right; 1 not. What the kernel does not offer is told
// under "absent".
#include <CLI/CLI.hpp>
#include <algorithm>
#include <deque>
#include <fstream>
#include <iostream>
#include <latch>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/clock.hpp"
#include "bench/bare/machine.hpp"
#include "bench/figures.hpp"
#include "bench/tcp_ways/ways.hpp"
#include "bench/tcp_ways/wire.hpp"
#include "tools/linkspan/data.hpp"

namespace linkspan::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kSeed = 1, kPoison = 2;
constexpr unsigned kConnections[] = {1, 4, 8};

/// Where the data comes from and goes to.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes) : bytes_(bytes), all_(new std::byte[bytes]) {}
  std::span<std::byte> all() const noexcept { return {all_.get(), bytes_}; }
  void fill(std::uint64_t seed) const {
    (void)each_part([&](std::span<std::byte> part, std::uint64_t at) {
      tool::put_data(part, seed, at);
      return Status();  // none fails
    });
  }
  Status verify() const {
    return each_part([](std::span<std::byte> part, std::uint64_t at) -> Status {
      const std::uint64_t wrong = tool::first_difference(part, kSeed, at);
      if (wrong == 0) return {};
      return {Code::corrupt, Scope::process,
              "other bytes came, from " + std::to_string(at + wrong - 1) + " on"};
    });
  }

 private:
  /// By all cores.
  template <class Work>
  Status each_part(Work work) const {
    const std::size_t parts = std::max(1u, std::thread::hardware_concurrency());
    const std::size_t each = (bytes_ + parts - 1) / parts;
    std::vector<Status> ends(parts);
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < parts && i * each < bytes_; ++i)
        threads.emplace_back([&, i] {
          ends[i] = work(all().subspan(i * each, std::min(each, bytes_ - i * each)), i * each);
        });
    }
    const auto bad = std::ranges::find_if(ends, [](const Status& s) { return !s.ok(); });
    return bad == ends.end() ? Status() : *bad;
  }

  std::size_t bytes_;
  std::unique_ptr<std::byte[]> all_;
};

/// When a thread was ready and when it was through. The clock runs from when the last one is ready,
/// which it says also if it never comes to be.
class Lap {
 public:
  explicit Lap(std::latch& all) : all_(all) {}
  Lap(const Lap&) = delete;
  Lap& operator=(const Lap&) = delete;
  ~Lap() = default;

  void begin() {
    began_ = now();
    all_.arrive_and_wait();
  }
  void end() {
    ended_ = now();
    if (began_ == base::Time()) all_.count_down();
  }
  base::Time began() const noexcept { return began_; }
  base::Time ended() const noexcept { return ended_; }

 private:
  static base::Time now() { return base::Clock::steady().now(); }
  std::latch& all_;
  base::Time began_, ended_;
};

/// A way with its connections, and what it has shown.
struct Contender {
  const Way* way;
  std::vector<Pair> pairs;
  std::vector<double> rates = {};
  double cpu = 0;
  ZeroCopy told = {};
};

Result<Duration> turn(Contender& it, const Buffer& from, const Buffer& to) {
  const auto count = static_cast<unsigned>(it.pairs.size());
  std::latch all_ready(2 * std::ptrdiff_t{count});
  std::vector<Status> ends(2 * std::size_t{count});
  std::vector<ZeroCopy> told(count);
  std::deque<Lap> laps;
  std::vector<std::jthread> threads;
  const auto start = [&](std::size_t which, const Pair& pair, auto work) {
    threads.emplace_back([&, which, work, lap = &laps.emplace_back(all_ready)] {
      ends[which] = work([&] { lap->begin(); });
      lap->end();
      if (ends[which].ok()) return;
      ::shutdown(pair.from.get(), SHUT_RDWR);  // for the thread at the other end
      ::shutdown(pair.to.get(), SHUT_RDWR);
    });
  };
  for (unsigned i = 0; i < count; ++i) {
    const Pair& pair = it.pairs[i];
    start(2 * std::size_t{i}, pair, [&, i](const Begin& begin) {
      auto frames = lay_out(from.all(), i, count);
      auto sent = it.way->send(pair.from.get(), frames, begin);
      if (sent.ok()) told[i] = *sent;
      return sent.status();
    });
    start(2 * std::size_t{i} + 1, pair, [&, i](const Begin& begin) {
      Incoming incoming(to.all(), lay_out(to.all(), i, count).size());
      return it.way->receive(pair.to.get(), incoming, begin);
    });
  }
  threads.clear();  // joins them
  const auto bad = std::ranges::find_if(ends, [](const Status& s) { return !s.ok(); });
  if (bad != ends.end()) return *bad;
  for (const ZeroCopy& each : told) {
    it.told.sends += each.sends;
    it.told.copied += each.copied;
  }
  // Their own times: on a busy machine this thread would come late to either end.
  return std::ranges::max_element(laps, {}, &Lap::ended)->ended() -
         std::ranges::max_element(laps, {}, &Lap::began)->began();
}

std::string id_of(const Contender& it, const std::string& wire) {
  return "ways." + wire + '.' + it.way->name + '.' + std::to_string(it.pairs.size());
}

Json row_of(const Contender& it, double bare, const std::string& id, std::uint64_t bytes) {
  const double value = median(it.rates), runs = static_cast<double>(it.rates.size());
  Json row{{"id", id},
           {"value", rounded(value)},
           {"unit", "GB/s"},
           {"ceiling", rounded(bare)},
           {"ceiling_how", "as many blocking sockets"},
           {"ratio", rounded(value / bare)},
           {"cpu_s_per_GB", rounded(it.cpu / runs / (static_cast<double>(bytes) / 1e9))},
           {"runs", it.rates.size()},
           {"verified", true}};
  if (it.told.sends != 0)
    row["copied_share"] =
        rounded(static_cast<double>(it.told.copied) / static_cast<double>(it.told.sends));
  return row;
}

struct Report {
  Json rows = Json::array(), absent = Json::array();

  void leave_out(const std::string& id, const Status& why) {
    absent.push_back({{"id", id}, {"why", why.what()}});
  }
};

Status measure(std::span<const Way* const> offered, const Wire& wire, const std::string& name,
               unsigned connections, unsigned runs, const Buffer& from, const Buffer& to,
               Report& report) {
  std::vector<Contender> all;
  for (const Way* const way : offered) {
    Contender it{way, {}};
    for (unsigned i = 0; i < connections; ++i) {
      auto pair = wire.connect();
      if (!pair.ok()) return pair.status();
      if (Status s = way->prepare(pair->from.get()); !s.ok()) return s;
      it.pairs.push_back(*std::move(pair));
    }
    all.push_back(std::move(it));
  }
  const auto named = [](const Contender& it, const Status& s) {
    return Status(s.code(), s.scope(), std::string(it.way->name) + ": " + s.what());
  };
  // Not counted, and who cannot take part is left out.
  for (auto it = all.begin(); it != all.end();) {
    to.fill(kPoison);
    const Status end = turn(*it, from, to).status();
    if (end.code() == Code::no_resource && it->way != &ways().front()) {
      report.leave_out(id_of(*it, name), end);
      it = all.erase(it);
      continue;
    }
    if (!end.ok()) return named(*it, end);
    if (Status s = to.verify(); !s.ok()) return named(*it, s);
    (it++)->told = {};
  }
  for (unsigned run = 1; run <= runs; ++run) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      Contender& it = all[(run + i) % all.size()];
      if (run == runs) to.fill(kPoison);
      const double before = cpu_seconds();
      const auto took = turn(it, from, to);
      it.cpu += cpu_seconds() - before;
      if (!took.ok()) return named(it, took.status());
      it.rates.push_back(static_cast<double>(from.all().size()) /
                         static_cast<double>(took->count()));
      if (run != runs) continue;
      if (Status s = to.verify(); !s.ok()) return named(it, s);
    }
  }
  const double bare = median(all.front().rates);
  for (const Contender& it : all)
    report.rows.push_back(row_of(it, bare, id_of(it, name), from.all().size()));
  return {};
}

int run(bool quick, bool link, unsigned runs, const std::string& file, const std::string& command) {
  if (quick) runs = 1;
  const std::uint64_t bytes = quick ? (std::uint64_t{24} << 20) + 4321 : std::uint64_t{1} << 30;
  Report report;
  const std::string name = link ? "veth" : "loopback";
  std::vector<const Way*> offered;
  for (const Way& way : ways()) {
    if (Status s = way.offered(); s.ok())
      offered.push_back(&way);
    else
      report.leave_out("ways." + name + '.' + way.name, s);
  }
  const auto wire = link ? Wire::veth() : Result<Wire>(Wire::loopback());
  Status end;
  if (!wire.ok()) {
    report.leave_out("ways." + name, wire.status());
  } else {
    const Buffer from(bytes), to(bytes);
    from.fill(kSeed);
    for (const unsigned connections : kConnections)
      if (end.ok()) end = measure(offered, *wire, name, connections, runs, from, to, report);
  }
  const bare::Machine machine = bare::describe_machine(nullptr);
  Json out{{"what", "the calls that could move what TCP carries, beside blocking sockets"},
           {"command", command},
           {"machine", {{"cpus", machine.cpus}, {"kernel", machine.kernel}}}};
  if (quick) out["quick"] = true;  // smaller than 1 GiB
  if (!end.ok()) out["stopped"] = end.to_string();
  out["verified"] = end.ok();
  out["rows"] = report.rows;
  out["absent"] = report.absent;
  for (const Json& row : report.rows) {
    std::cout << row["id"].get<std::string>() << ": " << row["value"] << " GB/s, ratio "
              << row["ratio"] << ", CPU " << row["cpu_s_per_GB"] << " s/GB";
    if (row.contains("copied_share")) std::cout << ", copied " << row["copied_share"];
    std::cout << '\n';
  }
  for (const Json& each : report.absent)
    std::cout << each["id"].get<std::string>() << ": absent, " << each["why"].get<std::string>()
              << '\n';
  if (!end.ok()) std::cout << "stopped: " << end.to_string() << '\n';
  if (!file.empty() && !(std::ofstream(file) << out.dump(2) << '\n').flush()) {
    std::cout << "cannot write " << file << '\n';
    return 1;
  }
  return end.ok() ? 0 : 1;
}

}  // namespace
}  // namespace linkspan::bench

int main(int argc, char** argv) try {
  CLI::App app("Which calls move bytes over TCP connections fastest, and at what cost of CPU.");
  bool quick = false, link = false;
  unsigned runs = 5;
  std::string file, command = "bench_tcp_ways";
  app.add_flag("--quick", quick, "Few and seldom: shows that it works, not speeds");
  app.add_flag("--link", link,
               "Between two network namespaces that a veth pair joins, not over loopback");
  app.add_option("--runs", runs, "Of each way that count")->check(CLI::Range(1, 100));
  app.add_option("--json", file, "Also write rows as evidence/ keeps them")->type_name("FILE");
  CLI11_PARSE(app, argc, argv);
  for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
  return linkspan::bench::run(quick, link, runs, file, command);
} catch (const std::exception& error) {  // of CLI11, of Json
  std::cerr << "bench_tcp_ways: " << error.what() << '\n';
  return 1;
}
