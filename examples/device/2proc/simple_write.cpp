// simple_write: a kernel of one process writes into GPU memory of another and raises a signal
// there.
//
// Two processes, one GPU each: the initiator's kernel puts and signals, the target's kernel waits
// for the signal and answers, the target's CPU verifies every byte. They find each other by a store
// that speaks the protocol of PyTorch's TCPStore; the first process serves it.
//
//   simple_write --mode initiator        # in one terminal
//   simple_write --mode target           # in another; the order does not matter
//
// Exit codes: 0 all is well, 1 a mismatch or a failure, 2 no CUDA device or bad usage.
#include <getopt.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.h"
#include "linkspan/engine.hpp"
#include "linkspan/store.hpp"
#include "linkspan/window.hpp"

namespace {

using namespace simple_write;  // NOLINT(google-build-using-namespace)
using linkspan::Duration;
using linkspan::Result;
using linkspan::Status;
using linkspan::device::Outcome;
using linkspan::device::Scope;
using Clock = std::chrono::steady_clock;

struct Options {
  bool initiator = true, force_proxy = false, flip = false;
  std::uint64_t size = 1 << 20, offset = 0;
  std::string host = "127.0.0.1", listen;
  int port = 9998, device = -1;
  std::uint32_t iterations = 1000;
  Scope scope = Scope::block;
  double timeout = 30;
};

constexpr const char* kHelp =
    "usage: simple_write [options]\n"
    "  --mode initiator|target     which of the two this is (initiator)\n"
    "  --size BYTES                the largest put (1048576)\n"
    "  --offset BYTES              where in both allocations the data lies (0)\n"
    "  --iterations N              rounds of each size, fewer of large ones (1000)\n"
    "  --scope thread|warp|block   who makes each call together (block)\n"
    "  --device N                  the GPU (initiator 0, target 1 if there is one)\n"
    "  --timeout SECONDS           for each step, and each wait of a kernel (30)\n"
    "  --host NAME, --port N       of the store, by which the two meet (127.0.0.1, 9998)\n"
    "  --listen ADDRESS            tcp:HOST:PORT (0: any): go by TCP, also between hosts; of the\n"
    "                              target, to which the initiator connects (a Unix socket)\n"
    "  --force-proxy               by the host's queue, although the memory is mapped\n"
    "  --flip-byte                 initiator: send one wrong byte, which the target has to find\n"
    "  --help\n";

struct BadUsage : std::runtime_error {
  using runtime_error::runtime_error;
};

// An example may end by an exception; the library itself throws none.
template <class T>
T must(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().to_string());
  return *std::move(result);
}
void must(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.to_string());
}
void must(cudaError_t error, const char* call) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}

template <class Number>
Number number(const char* option, const char* text, Number least, Number most) {
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (end == text || *end != '\0' || !(value >= static_cast<double>(least)) ||
      value > static_cast<double>(most))
    throw BadUsage(std::string(option) + " is \"" + text + "\": a number from " +
                   std::to_string(least) + " to " + std::to_string(most) + " is wanted");
  return static_cast<Number>(value);
}

template <class T>
T choice(const char* option, const std::string& text,
         std::initializer_list<std::pair<const char*, T>> all) {
  std::string names;
  for (const auto& [name, value] : all) {
    if (text == name) return value;
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  throw BadUsage(std::string(option) + " is \"" + text + "\": one of " + names + " is wanted");
}

/// Parses the command line. Returns nullopt for --help.
std::optional<Options> parse(int argc, char** argv) {
  enum : int {
    kMode = 1,
    kSize,
    kOffset,
    kIterations,
    kScope,
    kDevice,
    kTimeout,
    kHost,
    kPort,
    kListen,
    kProxy,
    kFlip,
    kHelpAsked
  };
  const option known[] = {
      {"mode", 1, nullptr, kMode},         {"size", 1, nullptr, kSize},
      {"offset", 1, nullptr, kOffset},     {"iterations", 1, nullptr, kIterations},
      {"scope", 1, nullptr, kScope},       {"device", 1, nullptr, kDevice},
      {"timeout", 1, nullptr, kTimeout},   {"host", 1, nullptr, kHost},
      {"port", 1, nullptr, kPort},         {"listen", 1, nullptr, kListen},
      {"force-proxy", 0, nullptr, kProxy}, {"flip-byte", 0, nullptr, kFlip},
      {"help", 0, nullptr, kHelpAsked},    {nullptr, 0, nullptr, 0}};
  Options o;
  opterr = 0;
  for (int found = 0; (found = getopt_long(argc, argv, "", known, nullptr)) != -1;) switch (found) {
      case kMode:
        o.initiator = choice<bool>("--mode", optarg, {{"initiator", true}, {"target", false}});
        break;
      case kSize:
        o.size = number<std::uint64_t>("--size", optarg, 1, 1ull << 36);
        break;
      case kOffset:
        o.offset = number<std::uint64_t>("--offset", optarg, 0, 1ull << 30);
        break;
      case kIterations:
        o.iterations = number<std::uint32_t>("--iterations", optarg, 1, 1'000'000);
        break;
      case kScope:
        o.scope = choice<Scope>(
            "--scope", optarg,
            {{"thread", Scope::thread}, {"warp", Scope::warp}, {"block", Scope::block}});
        break;
      case kDevice:
        o.device = number<int>("--device", optarg, 0, 1023);
        break;
      case kTimeout:
        o.timeout = number<double>("--timeout", optarg, 0.001, 86400);
        break;
      case kHost:
        o.host = optarg;
        break;
      case kPort:
        o.port = number<int>("--port", optarg, 1, 65535);
        break;
      case kListen:
        o.listen = optarg;
        break;
      case kProxy:
        o.force_proxy = true;
        break;
      case kFlip:
        o.flip = true;
        break;
      case kHelpAsked:
        return std::nullopt;
      default:
        throw BadUsage(std::string("what is ") + argv[optind - 1] + "?");
    }
  if (optind < argc) throw BadUsage(std::string("what is ") + argv[optind] + "?");
  return o;
}

/// Memory of this GPU.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::uint64_t bytes) {
    must(cudaMalloc(&data_, bytes), "cudaMalloc");
    must(cudaMemset(data_, 0, bytes), "cudaMemset");
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  ~DeviceMemory() { (void)cudaFree(data_); }
  unsigned char* data() const { return static_cast<unsigned char*>(data_); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

class Stream {
 public:
  Stream() {
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { (void)cudaStreamDestroy(stream_); }
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Makes the bytes that one step sends. Each step has a `seed` of its own.
std::vector<unsigned char> pattern(std::uint64_t bytes, std::uint64_t seed) {
  std::vector<unsigned char> data(bytes);
  for (std::uint64_t i = 0; i < bytes; ++i)
    data[i] =
        static_cast<unsigned char>((i * 0x9E3779B97F4A7C15u + seed * 0xD1B54A32D192ED03u) >> 56);
  return data;
}

constexpr unsigned char kPoison = 0xEE;
constexpr std::uint64_t kGuard = 256;

class SimpleWrite {
 public:
  explicit SimpleWrite(const Options& options)
      : o_(options),
        name_(o_.initiator ? "initiator" : "target"),
        other_(o_.initiator ? "target" : "initiator"),
        patience_(static_cast<std::int64_t>(o_.timeout * 1e9)) {}

  void set_up(int devices) {
    const int device = o_.device >= 0 ? o_.device : o_.initiator ? 0 : std::min(1, devices - 1);
    if (device >= devices)
      throw BadUsage("--device is " + std::to_string(device) + ": there are " +
                     std::to_string(devices));
    cudaDeviceProp properties{};
    must(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    must(cudaSetDevice(device), "cudaSetDevice");
    stream_.emplace();
    gpu_.assign(properties.uuid.bytes, sizeof properties.uuid.bytes);
    say("GPU " + std::to_string(device) + " (" + properties.name + "), " + std::to_string(o_.size) +
        " bytes");

    memory_.emplace(o_.offset + o_.size + kGuard);
    pad_.emplace(layout_.bytes());
    took_.emplace(o_.iterations * sizeof(std::uint64_t));
    report_.emplace(sizeof(Report) + sizeof(std::uint32_t) * 2);
    engine_.emplace(must(linkspan::Engine::open({.name = name_})));
    must(engine_->listen(o_.listen));
    region_ = must(engine_->register_memory(memory_->data() + o_.offset, o_.size + kGuard));
    pad_region_ = must(engine_->register_memory(pad_->data(), layout_.bytes()));
    must(engine_->publish("data", region_));
    must(engine_->publish("pad", pad_region_));
    say("published \"data\" and \"pad\" at " + engine_->address());
  }

  void connect() {
    store_ = must(linkspan::open_tcp_store(
        {.host = o_.host, .port = static_cast<std::uint16_t>(o_.port), .timeout = patience_}));
    say("store " + store_->address() + (store_->serves() ? ", served here" : ""));
    const std::string key = "simple_write/";
    must(store_->set(key + name_ + "/gpu", gpu_));
    must(store_->set(key + name_ + "/size", std::to_string(o_.size)));
    must(store_->set(key + name_ + "/address", engine_->address()));
    const std::string address = must(store_->get(key + other_ + "/address", patience_));
    const std::string size = must(store_->get(key + other_ + "/size", patience_));
    if (size != std::to_string(o_.size))
      throw std::runtime_error("--size is " + std::to_string(o_.size) + " here and " + size +
                               " at the " + other_ + ": both sides have to have the same");
    one_gpu_ = must(store_->get(key + other_ + "/gpu", patience_)) == gpu_;
    peer_ = o_.initiator ? must(engine_->connect(address, patience_))
                         : must(engine_->accept(patience_));
    const auto data = must(peer_.lookup("data", patience_));
    const auto pad = must(peer_.lookup("pad", patience_));
    window_ = must(peer_.window({.local = region_,
                                 .remote = data,
                                 .local_pad = pad_region_,
                                 .remote_pad = pad,
                                 .layout = layout_,
                                 .force_proxy = o_.force_proxy}));
    say("connected to " + peer_.name() + ", window: " + window_.path());
    if (one_gpu_)
      say("both processes are on one GPU, which gives them turns of milliseconds: latencies say "
          "nothing; MPS (nvidia-cuda-mps-control -d) lets them run at once");
  }

  /// All sizes up to the largest.
  void run() {
    if (o_.initiator)
      std::printf("%12s %8s %10s %10s %10s  %s\n", "bytes", "rounds", "p50 us", "p99 us", "GB/s",
                  "verified");
    std::uint64_t seed = 1;
    for (const std::uint64_t size : {8ull, 1024ull, 4096ull, 16384ull, 65536ull, 1ull << 20,
                                     16ull << 20, 256ull << 20, 1ull << 30})
      if (size < o_.size) step(size, seed++);
    step(o_.size, seed);
  }

  /// The serving side stays until the other has gone.
  void close() {
    window_ = {};
    must(engine_->close(patience_));
    must(store_->close(patience_));
    say("done");
  }

 private:
  void say(const std::string& text) const {
    std::printf("[%s] %s\n", name_.c_str(), text.c_str());
    std::fflush(stdout);
  }

  void tell(const std::string& message) { must(peer_.notify(std::as_bytes(std::span(message)))); }
  /// Returns the next message of the other side.
  std::string hear() {
    const auto end = Clock::now() + patience_;
    for (;;) {
      for (const linkspan::Notification& each :
           engine_->notifications(std::chrono::milliseconds(100)))
        heard_.emplace_back(reinterpret_cast<const char*>(each.bytes.data()), each.bytes.size());
      if (!heard_.empty()) {
        const std::string first = heard_.front();
        heard_.erase(heard_.begin());
        return first;
      }
      if (peer_.state() != linkspan::PeerState::up) throw std::runtime_error(gone());
      if (Clock::now() > end)
        throw std::runtime_error("timed_out: the " + other_ + " has said nothing for " +
                                 std::to_string(o_.timeout) + " s");
    }
  }
  std::string gone() const { return "disconnected: the " + other_ + " has gone"; }

  /// Until this GPU's kernel has ended, which it does by its bound.
  void finish(std::uint32_t rounds) {
    must(cudaStreamSynchronize(stream_->get()), "cudaStreamSynchronize");
    Report report{};
    must(cudaMemcpy(&report, report_->data(), sizeof report, cudaMemcpyDeviceToHost), "cudaMemcpy");
    if (report.outcome == Outcome::ok) return;
    const std::string after =
        " after " + std::to_string(report.rounds) + " of " + std::to_string(rounds) + " rounds";
    if (report.outcome == Outcome::timed_out)
      throw std::runtime_error("timed_out: the kernel waited for the " + other_ + " for " +
                               std::to_string(o_.timeout) + " s" + after);
    if (const Status why = window_.failure(); !why.ok())
      throw std::runtime_error(why.to_string() + after);
    throw std::runtime_error("the kernel ended with outcome " +
                             std::to_string(static_cast<int>(report.outcome)) + after);
  }

  void step(std::uint64_t bytes, std::uint64_t seed) {
    std::uint32_t rounds = std::min<std::uint32_t>(
        o_.iterations, std::max<std::uint32_t>(
                           10, static_cast<std::uint32_t>((std::uint64_t{256} << 20) / bytes)));
    if (window_.device().proxied()) rounds = std::min(rounds, 100u);
    if (one_gpu_) rounds = std::min(rounds, 20u);
    const std::uint32_t wide =
        bytes < 65536 || window_.device().proxied() ? 0 : std::min(rounds, 10u);
    const Rounds all{.window = window_.device(),
                     .data = memory_->data() + o_.offset,
                     .bytes = bytes,
                     .before = rounds_before_,
                     .count = rounds,
                     .timeout_ns = static_cast<std::uint64_t>(patience_.count()),
                     .took_ns = took_->as<std::uint64_t>(),
                     .report = report_->as<Report>()};
    o_.initiator ? initiate(all, wide, seed) : answer(all, wide, seed);
    rounds_before_ += rounds + wide;
  }

  void initiate(Rounds all, std::uint32_t wide, std::uint64_t seed) {
    std::vector<unsigned char> data = pattern(all.bytes, seed);
    if (o_.flip) data[all.bytes / 2] ^= 1;
    must(cudaMemcpy(memory_->data() + o_.offset, data.data(), all.bytes, cudaMemcpyHostToDevice),
         "cudaMemcpy");
    if (const std::string said = hear(); said != "ready") throw std::runtime_error(said);
    must(launch_initiator(all, o_.scope, stream_->get()), "launch");
    finish(all.count);
    std::vector<std::uint64_t> took(all.count), took_wide(wide);
    const auto read = [&](std::vector<std::uint64_t>& into) {
      if (!into.empty())
        must(cudaMemcpy(into.data(), took_->data(), into.size() * 8, cudaMemcpyDeviceToHost),
             "cudaMemcpy");
      std::sort(into.begin(), into.end());
    };
    read(took);
    all.before += all.count;
    for (std::uint32_t i = 0; i < wide; ++i, ++all.before, ++all.took_ns) {
      must(launch_wide_put(all, reinterpret_cast<std::uint32_t*>(report_->data() + sizeof(Report)),
                           stream_->get()),
           "launch");
      finish(1);
    }
    read(took_wide);
    const std::string verdict = hear();
    const auto at = [](const auto& sorted, double part) {
      return static_cast<double>(
          sorted[static_cast<std::size_t>(part * static_cast<double>(sorted.size() - 1))]);
    };
    const double whole = wide != 0 ? at(took_wide, 0.5) : at(took, 0.5);
    std::printf("%12llu %8u %10.2f %10.2f %10.3f  %s\n", static_cast<unsigned long long>(all.bytes),
                all.count, at(took, 0.5) / 2e3, at(took, 0.99) / 2e3,
                static_cast<double>(all.bytes) / whole, verdict == "verified" ? "ok" : "WRONG");
    std::fflush(stdout);
    if (verdict != "verified") throw std::runtime_error(verdict);
  }

  void answer(Rounds all, std::uint32_t wide, std::uint64_t seed) {
    all.count += wide;
    const std::uint64_t room = all.bytes + kGuard;
    must(cudaMemset(memory_->data() + o_.offset, kPoison, room), "cudaMemset");
    must(launch_target(all, o_.scope, stream_->get()), "launch");
    tell("ready");
    finish(all.count);
    std::vector<unsigned char> found(room), wanted = pattern(all.bytes, seed);
    wanted.resize(room, kPoison);  // behind the data nothing has changed
    must(cudaMemcpy(found.data(), memory_->data() + o_.offset, room, cudaMemcpyDeviceToHost),
         "cudaMemcpy");
    const auto wrong = std::mismatch(found.begin(), found.end(), wanted.begin()).first;
    if (wrong == found.end()) {
      say(std::to_string(all.bytes) + " bytes verified after " + std::to_string(all.count) +
          " puts");
      return tell("verified");
    }
    const std::string what = "MISMATCH: byte " + std::to_string(wrong - found.begin()) + " of " +
                             std::to_string(all.bytes) + " is wrong";
    tell(what);
    throw std::runtime_error(what);
  }

  const Options o_;
  const std::string name_, other_;
  const Duration patience_;
  const linkspan::device::PadLayout layout_{.signals = kSignals};
  std::string gpu_;
  bool one_gpu_ = false;
  std::uint64_t rounds_before_ = 0;
  std::optional<Stream> stream_;
  std::optional<DeviceMemory> memory_, pad_, took_, report_;  // outlive the Engine
  std::optional<linkspan::Engine> engine_;
  std::unique_ptr<linkspan::Store> store_;
  linkspan::Region region_, pad_region_;
  linkspan::Peer peer_;
  linkspan::Window window_;
  std::vector<std::string> heard_;
};

}  // namespace

int main(int argc, char** argv) try {
  const std::optional<Options> options = parse(argc, argv);
  if (!options) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices);
      error != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "simple_write: no CUDA device: %s\n", cudaGetErrorString(error));
    return 2;
  }
  SimpleWrite program(*options);
  program.set_up(devices);
  program.connect();
  program.run();
  program.close();
  return 0;
} catch (const BadUsage& error) {
  std::fprintf(stderr, "simple_write: %s\n%s", error.what(), kHelp);
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "simple_write: %s\n", error.what());
  return 1;
}
