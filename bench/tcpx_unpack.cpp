// bench_tcpx_unpack: 64 MiB that lie in a bounce pool in fragments of about 4 KiB, unpacked on one
// GPU, beside a bare kernel that copies as much and beside a copy for each fragment.
//
// All take turns on the same memory; the bytes of each are verified before the clock runs. Exit: 0
// all rows are there, and right; 1 not; 2 there is no GPU. --enforce: 1 also where a bar is missed.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>

#include "bench/bare/kernel_copy.hpp"
#include "bench/bare/machine.hpp"
#include "tools/linkspan/pair/data.hpp"
#include "transport/nccl_net/tcpx/unpack.hpp"

namespace linkspan::bench {
namespace {

using namespace std::chrono_literals;
using namespace transport::nccl_net::tcpx;
using transport::nccl_net::Unpack;
using Json = nlohmann::ordered_json;

constexpr std::uint32_t kPage = 4096, kHeaders = 66;  // Ethernet, IPv4, TCP with timestamps
constexpr std::uint64_t kSeed = 1, kPoison = 2;
constexpr Duration kLimit = 20s;

using Run = std::function<Result<Duration>()>;

/// A page of the pool for each fragment, the pages in random order; receives of at most 2048.
struct Shape {
  const char* suffix;         // of the rows' ids
  std::uint32_t skip, bytes;  // of a page
  std::vector<DescriptorBlock> receives = {};
  std::vector<bare::KernelPiece> pieces = {};     // the same fragments
  std::vector<bare::KernelPiece> congruent = {};  // as many, as long, all at whole pages
};

/// By offsets: where the pool and the target begin is added.
Status make(Shape& shape, std::size_t fragments, std::uint64_t pool, std::uint64_t target) {
  std::vector<std::uint32_t> pages(fragments);
  for (std::uint32_t i = 0; i < fragments; ++i) pages[i] = i;
  std::shuffle(pages.begin(), pages.end(), std::mt19937(5));
  for (std::size_t first = 0; first < fragments; first += kMaxFragments / 2) {
    const std::size_t count = std::min(fragments - first, kMaxFragments / 2);
    std::vector<LoadMeta> entries;
    for (std::size_t i = first; i < first + count; ++i) {
      const std::uint32_t from = pages[i] * kPage + shape.skip;
      entries.push_back({from, shape.bytes, (i - first) * shape.bytes});
      shape.pieces.push_back({target + i * shape.bytes, pool + from, shape.bytes});
      shape.congruent.push_back(
          {target + i * kPage, pool + std::uint64_t{pages[i]} * kPage, shape.bytes});
    }
    auto block = DescriptorBlock::of(entries, {fragments * kPage, count * shape.bytes});
    if (!block.ok()) return block.status();
    shape.receives.push_back(*std::move(block));
  }
  return {};
}

class Bench {
 public:
  Bench(const cuda::Device& device, bool quick)
      : device_(device), fragments_(quick ? 1500 : 16384), runs_(quick ? 3 : 200) {}

  Status run(Json& rows) {
    if (Status s = set_up(); !s.ok()) return s;
    for (const Shape& shape : {Shape{"", kHeaders, kPage - kHeaders},
                               Shape{".whole_pages", 0, kPage}, Shape{".odd", 1, kPage - 1}})
      if (Status s = measure(shape, rows); !s.ok()) return s;
    return {};
  }

 private:
  template <class T, class Made>
  static Status keep(std::optional<T>& member, Made made) {
    if (!made.ok()) return made.status();
    member.emplace(*std::move(made));
    return {};
  }

  Status set_up() {
    const auto scope = device_.enter();
    if (!scope.ok()) return scope.status();
    const std::uint64_t bytes = std::uint64_t{fragments_} * kPage;
    Status s = keep(stream_, cuda::Stream::create(*scope));
    if (s.ok()) s = keep(pool_, cuda::DeviceBuffer::create(*scope, bytes));
    if (s.ok()) s = keep(target_, cuda::DeviceBuffer::create(*scope, bytes));
    if (s.ok()) s = keep(host_, cuda::PinnedBuffer::create(*scope, bytes));
    if (s.ok()) s = keep(word_, bare::EndWord::create(*scope));
    if (s.ok()) s = fill(pool_->address(), kSeed);
    auto bare = bare::KernelCopy::create(device_);
    if (!bare.ok()) return bare.status();
    bare_ = *std::move(bare);
    return s;
  }
  Status fill(cuda::CUdeviceptr to, std::uint64_t seed) {
    tool::put_data({host_->data(), host_->bytes()}, seed, 0);
    return copy(to, host_->device_address());
  }
  Status copy(cuda::CUdeviceptr to, cuda::CUdeviceptr from) {
    const auto scope = device_.enter();
    if (!scope.ok()) return scope.status();
    Status s = stream_->copy(*scope, to, from, host_->bytes());
    return s.ok() ? stream_->synchronize(*scope) : s;
  }

  /// Poisons the target, runs, and looks at each byte of `pieces`.
  Status verify(const Run& run, std::span<const bare::KernelPiece> pieces, const char* what) {
    if (Status s = fill(target_->address(), kPoison); !s.ok()) return s;
    const auto took = run();
    if (!took.ok()) return took.status();
    if (Status s = copy(host_->device_address(), target_->address()); !s.ok()) return s;
    for (const bare::KernelPiece& piece : pieces) {
      const auto held = std::span(host_->data(), host_->bytes())
                            .subspan(piece.to - target_->address(), piece.bytes);
      if (tool::first_difference(held, kSeed, piece.from - pool_->address()) != 0)
        return {Code::corrupt, Scope::process, std::string(what) + " moved other bytes"};
    }
    return {};
  }

  /// From begin() to the poll() that tells the end, of batch after batch where one is too small.
  Result<Duration> unpack(Unpacker& by, const Shape& shape) const {
    std::vector<UnpackRequest> requests;
    std::uint64_t at = target_->address();
    for (const DescriptorBlock& block : shape.receives) {
      requests.push_back({.block = &block, .bounce = pool_->address(), .destination = at});
      at += block.bytes();
    }
    const std::size_t most = by.method() == Unpack::host ? 3 : Unpacker::kRequests;
    const auto begin = base::Clock::steady().now();
    for (std::size_t i = 0; i < requests.size(); i += most) {
      const auto id = by.begin(std::span(requests).subspan(i, std::min(most, requests.size() - i)));
      if (!id.ok()) return id.status();
      std::optional<Status> end;
      while (!(end = by.poll(*id)))
        if (base::Clock::steady().now() - begin > kLimit)
          return Status(Code::timed_out, Scope::process, "a batch did not end in time");
      if (!end->ok()) return *end;
    }
    return Duration(base::Clock::steady().now() - begin);
  }
  Result<Duration> loop(const Shape& shape) {
    const auto scope = device_.enter();
    if (!scope.ok()) return scope.status();
    const auto begin = bare::Clock::now();
    for (const bare::KernelPiece& piece : shape.pieces)
      if (Status s = stream_->copy(*scope, piece.to, piece.from, piece.bytes); !s.ok()) return s;
    if (Status s = word_->write(*scope, *stream_, ++loops_); !s.ok()) return s;
    if (Status s = word_->wait(*scope, *stream_, loops_, begin + kLimit); !s.ok()) return s;
    return Duration(bare::Clock::now() - begin);
  }

  struct Timing {
    double p50 = 0, p99 = 0;  ///< us
  };
  /// In turns, one of each.
  Result<std::vector<Timing>> time(std::span<const Run> all, unsigned runs) const {
    std::vector<std::vector<double>> took(all.size());
    for (unsigned i = 0; i < runs + 5; ++i)
      for (std::size_t k = 0; k < all.size(); ++k) {
        const auto one = all[k]();
        if (!one.ok()) return one.status();
        if (i >= 5) took[k].push_back(static_cast<double>(one->count()) / 1e3);
      }
    std::vector<Timing> timings;
    for (auto& each : took) {
      std::sort(each.begin(), each.end());
      timings.push_back({each[each.size() / 2], each[(each.size() * 99 - 1) / 100]});
    }
    return timings;
  }

  Status measure(Shape shape, Json& rows) {
    if (Status s = make(shape, fragments_, pool_->address(), target_->address()); !s.ok()) return s;
    std::unique_ptr<Unpacker> by[3];
    std::vector<Run> all;
    for (const Unpack way : {Unpack::kernel, Unpack::d2d, Unpack::host}) {
      auto made = Unpacker::create(device_, way, {});
      if (!made.ok()) return made.status();
      auto& mine = by[all.size()] = *std::move(made);
      all.emplace_back([&] { return unpack(*mine, shape); });
    }
    all.emplace_back([&] { return bare_->run(shape.congruent, kLimit); });
    all.emplace_back([&] { return bare_->run(shape.pieces, kLimit); });
    all.emplace_back([&] { return loop(shape); });
    for (std::size_t i = 0; i < all.size(); ++i)
      if (Status s = verify(all[i], i == 3 ? shape.congruent : shape.pieces,
                            (std::string(shape.suffix) + ", " + std::to_string(i)).c_str());
          !s.ok())
        return s;
    // Times what takes one launch, and separately what takes 16k calls.
    const Run quick[] = {all[0], all[3], all[4]}, slow[] = {all[0], all[1], all[2], all[5]};
    const auto fast = time(quick, runs_), loops = time(slow, std::max(runs_ / 20, 3u));
    if (!fast.ok()) return fast.status();
    if (!loops.ok()) return loops.status();
    const double bytes = static_cast<double>(fragments_) * shape.bytes;
    const Timing ours = (*fast)[0], congruent = (*fast)[1], same = (*fast)[2];
    const auto add = [&](const char* id, double value, const char* unit,
                         const Timing& timing) -> Json& {
      rows.push_back({{"id", std::string("unpack.") + id + ".64MiB" + shape.suffix},
                      {"value", std::round(value * 10) / 10},
                      {"unit", unit},
                      {"verified", true},
                      {"p50_us", timing.p50},
                      {"p99_us", timing.p99}});
      return rows.back();
    };
    const auto gbps = [bytes](const Timing& t) { return bytes / t.p50 / 1e3; };
    const auto bar = [](Json& row, double ratio, double least, const char* how) {
      row["ceiling_how"] = how;
      row["ratio"] = std::round(ratio * 1000) / 1000;
      row["bar"] = least;
      row["pass"] = ratio >= least;
    };
    bar(add("kernel", gbps(ours), "GB/s", ours), congruent.p50 / ours.p50, 0.9,
        "one launch of the copy kernel on as many pieces, as long, at whole pages on both sides");
    bar(add("kernel_over_loop", (*loops)[3].p50 / (*loops)[0].p50, "times", (*loops)[0]),
        (*loops)[3].p50 / (*loops)[0].p50, 20, "a cuMemcpyAsync for each fragment, one wait");
    add("bare_congruent", gbps(congruent), "GB/s", congruent);
    add("bare_same", gbps(same), "GB/s", same);
    add("d2d", gbps((*loops)[1]), "GB/s", (*loops)[1]);
    add("host", gbps((*loops)[2]), "GB/s", (*loops)[2]);
    return {};
  }

  const cuda::Device& device_;
  const unsigned fragments_, runs_;
  std::optional<cuda::Stream> stream_;
  std::optional<cuda::DeviceBuffer> pool_, target_;
  std::optional<cuda::PinnedBuffer> host_;
  std::optional<bare::EndWord> word_;
  std::unique_ptr<bare::KernelCopy> bare_;
  std::uint64_t loops_ = 0;
};

int run(bool quick, bool enforce, const std::string& file, const std::string& command) {
  auto topology = cuda::Topology::create();
  if (!topology.ok()) {
    std::cout << "bench_tcpx_unpack needs a GPU: " << topology.status().to_string() << '\n';
    return 2;
  }
  const auto device = (*topology)->activate((*topology)->devices()[0].uuid);
  Json rows = Json::array();
  const Status end = device.ok() ? Bench(**device, quick).run(rows) : device.status();
  const bare::Machine machine = bare::describe_machine(topology->get());
  Json out{{"what", "fragments of a bounce pool unpacked on one GPU"}, {"command", command}};
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
    std::cout << row["id"].get<std::string>() << ": " << row["value"] << ' '
              << row["unit"].get<std::string>() << ", " << row["p50_us"] << " us";
    if (row.contains("bar")) {
      std::cout << ", ratio " << row["ratio"] << ", bar " << row["bar"]
                << (row["pass"].get<bool>() ? " met" : " MISSED");
      missed = missed || !row["pass"].get<bool>();
    }
    std::cout << '\n';
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
  CLI::App app("Fragments of a bounce pool, unpacked on one GPU.");
  bool quick = false, enforce = false;
  std::string file, command = "bench_tcpx_unpack";
  app.add_flag("--quick", quick, "Few and seldom: shows that it works, not speeds");
  app.add_flag("--enforce", enforce, "Exit code 1 also where a bar is missed");
  app.add_option("--json", file, "Also write rows as evidence/ keeps them")->type_name("FILE");
  CLI11_PARSE(app, argc, argv);
  for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
  return linkspan::bench::run(quick, enforce, file, command);
} catch (const std::exception& error) {  // of CLI11, of Json
  std::cerr << "bench_tcpx_unpack: " << error.what() << '\n';
  return 1;
}
