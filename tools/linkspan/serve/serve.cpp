// `linkspan serve`: the remote side of `bench --to`. Each of a few threads reads and executes the
// requests of one peer.
#include <atomic>
#include <exception>
#include <iostream>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/untrusted_input.hpp"
#include "tools/linkspan/command_line/network_options.hpp"
#include "tools/linkspan/command_line/signals.hpp"
#include "tools/linkspan/command_line/verb.hpp"
#include "tools/linkspan/pair/target_memories.hpp"
#include "tools/linkspan/pair/text_channel.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr unsigned kMaxServed = 16;          // peers that are served at once; others wait
constexpr Duration kAcceptInterval = 500ms;  // for the end of the verb
constexpr Duration kBenchComputeTime = 60s;  // it fills and compares 4 GiB meanwhile
constexpr Duration kBenchLockTimeout = 10s;  // for the previous bench to end
constexpr const char* kOk = "ok ";
constexpr const char* kInsecure = ", insecure: everybody who reaches it may use it";

class Server {
 public:
  Server(Engine& engine, const Gpus& gpus, Duration step_timeout)
      : engine_(engine), gpus_(gpus), step_timeout_(step_timeout) {}

  /// Serves one peer after the other until `stop`; only one with `once`.
  void work(const std::stop_token& stop, bool once);
  /// Leaves memory that peers may still write to allocated, if the Engine could not be closed. All
  /// threads have ended.
  void leak() {
    if (memories_) memories_->leak();
  }
  bool failed() const noexcept { return failed_; }

 private:
  Status serve(const Peer& peer, const std::stop_token& stop, std::string& request);
  Status handle(TextChannel& channel, const Peer& peer, const std::string& request);
  Status bench(TextChannel& channel, const Peer& peer);

  Engine& engine_;
  const Gpus& gpus_;
  const Duration step_timeout_;
  std::timed_mutex bench_mutex_;  // only one bench at a time may read the Engine's notifications
  std::optional<TargetMemories>
      memories_;  // guarded by bench_mutex_: of this bench, or the previous one
  std::atomic<bool> failed_{false};
};

void Server::work(const std::stop_token& stop, bool once) {
  while (!stop.stop_requested()) {
    const auto peer = engine_.accept(kAcceptInterval);
    if (peer.status().code() == Code::timed_out) continue;
    if (!peer.ok()) return;
    std::string request = "nothing";
    Status end;
    try {
      end = serve(*peer, stop, request);
    } catch (const std::exception& error) {  // no memory
      end = Status(Code::no_resource, Scope::request, error.what());
    }
    std::cerr << base::printable(request + ": " + (end.ok() ? "done" : end.what())) + "\n";
    if (!once) continue;
    failed_ = !end.ok();
    (void)::kill(::getpid(), SIGTERM);  // for wait_for() of the main thread
    return;
  }
}

Status Server::serve(const Peer& peer, const std::stop_token& stop, std::string& request) {
  auto channel = TextChannel::begin(peer, step_timeout_);
  if (!channel.ok()) return channel.status();
  auto received = (*channel)->receive();
  Status end = received.status();
  if (received.ok()) {
    request = *std::move(received);
    end = handle(**channel, peer, request);
  }
  // A stopped peer is disconnected after some seconds of silence, which ends its transfers.
  while (!(*channel)->cancel_pending(1s) && !stop.stop_requested()) {
  }
  return end;
}

Status Server::handle(TextChannel& channel, const Peer& peer, const std::string& request) {
  if (request == "bench") return bench(channel, peer);
  Status why(
      Code::invalid_argument, Scope::request,
      "not understood: \"" + request.substr(0, 64) + "\"; both sides must be of one release");
  channel.send_error(why);
  return why;
}

/// Executes requests of target_memories.hpp until the peer disconnects.
Status Server::bench(TextChannel& channel, const Peer& peer) {
  const std::unique_lock lock(bench_mutex_, std::chrono::nanoseconds(kBenchLockTimeout));
  if (!lock.owns_lock()) {
    Status why(Code::busy, Scope::request, "another bench is under way here: run it again later");
    channel.send_error(why);
    return why;
  }
  if (memories_ && !memories_->close(kBenchLockTimeout)) {
    Status why(Code::busy, Scope::request,
               "the peer of the bench before still uses its memory here: run it again later");
    channel.send_error(why);
    return why;
  }
  TargetMemories& memories = memories_.emplace(engine_, gpus_, peer);
  Status end = channel.send(kOk);
  while (end.ok()) {
    const auto request = channel.receive(kBenchComputeTime);
    if (!request.ok()) {
      end = request.status();
      break;
    }
    const auto answer = memories.handle(*request);
    if (answer.ok())
      end = channel.send(kOk + *answer);
    else
      channel.send_error(answer.status());
  }
  if (memories.close(kBenchLockTimeout)) memories_.reset();
  return end.code() == Code::disconnected ? Status() : end;
}

class ServeVerb final : public Verb {
 public:
  const char* name() const override { return "serve"; }
  const char* what() const override {
    return "Serves other hosts that measure (`bench --to`), until SIGINT or SIGTERM.";
  }
  void define(Arguments& arguments) override {
    arguments.text("--listen", listen_, "HOST:PORT",
                   "127.0.0.1:4711; port 0 takes one that is free");
    arguments.flag("--once", once_, "Serve one peer, and exit with how that went");
    arguments.number("--for", seconds_, 1, 1u << 30, "SECONDS", "Serve so long at most");
    arguments.number("--gpu,--device", gpu_, 0, 1023, "N",
                     "Measures memory of GPUs too; this one has to exist");
    network_.define(arguments);
  }

  int run(const std::string& /*command*/) override {
    const sigset_t signals = block_signals();
    const Gpus gpus = Gpus::find();
    if (gpu_ != kNoGpu)
      if (const auto device = gpus.device(gpu_); !device.ok())
        return refused(name(), device.status());
    EngineOptions options = network_.engine(name());
    options.use_gpu = gpu_ != kNoGpu;
    auto engine = Engine::open(options);
    if (!engine.ok()) return failed(name(), engine.status());
    if (Status s = engine->listen(tcp_address(listen_)); !s.ok()) return failed(name(), s);
    Server server(*engine, gpus, network_.timeout());
    std::cout << "serve at " + engine->address() +
                     (network_.security == "insecure" ? kInsecure : "") + "\n"
              << std::flush;
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < (once_ ? 1 : kMaxServed); ++i)
      threads.emplace_back(
          [this, &server](const std::stop_token& stop) { server.work(stop, once_); });
    (void)wait_for(signals, seconds_ == 0 ? Duration::max() : std::chrono::seconds(seconds_));
    for (std::jthread& thread : threads) thread.request_stop();
    const Status closed = engine->close(3s);
    threads.clear();
    if (!closed.ok()) server.leak();
    return server.failed() ? kFailed : kSuccess;
  }

 private:
  static constexpr unsigned kNoGpu = ~0u;
  std::string listen_ = "127.0.0.1:4711";
  unsigned gpu_ = kNoGpu;
  bool once_ = false;
  unsigned seconds_ = 0;
  NetworkOptions network_;
};

}  // namespace

std::unique_ptr<Verb> serve_verb() { return std::make_unique<ServeVerb>(); }

}  // namespace linkspan::tool
