// `linkspan serve`: the far end of push, pull and bench --to. A few threads take one peer each,
// hear what it asks for, and do that.
#include <atomic>
#include <exception>
#include <iostream>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "tools/linkspan/conversation.hpp"
#include "tools/linkspan/far_memories.hpp"
#include "tools/linkspan/files.hpp"
#include "tools/linkspan/network_options.hpp"
#include "tools/linkspan/output.hpp"
#include "tools/linkspan/signals.hpp"
#include "tools/linkspan/verb.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr unsigned kAtOnce = 16;          // peers that are served; more wait until one has left
constexpr Duration kAcceptLooks = 500ms;  // for the end of the verb
constexpr Duration kBenchThinks = 60s;    // it fills and compares 4 GiB meanwhile
constexpr Duration kBenchTurn = 10s;      // for the bench before to let go
constexpr const char* kOk = "ok ";
constexpr const char* kInsecure = ", insecure: everybody who reaches it may use it";

class Server {
 public:
  Server(Engine& engine, const Gpus& gpus, base::Fd folder, Place place, Duration patience)
      : engine_(engine),
        gpus_(gpus),
        folder_(std::move(folder)),
        place_(place),
        patience_(patience) {}

  /// Peers, one behind the other, until it is to stop; or one.
  void work(const std::stop_token& stop, bool once);
  /// All threads have ended, and the Engine could not be closed: what peers may still write to
  /// stays with the process.
  void leave() {
    if (memories_) memories_->leave();
  }
  bool failed() const noexcept { return failed_; }

 private:
  Status serve(const Peer& peer, const std::stop_token& stop, std::string& request);
  Status handle(Conversation& talk, const Peer& peer, const std::string& request);
  Status push(Conversation& talk, const std::string& request);
  Status pull(Conversation& talk, const std::string& request);
  Status bench(Conversation& talk, const Peer& peer);
  Status folder_for(const std::string& name) const;

  Engine& engine_;
  const Gpus& gpus_;
  const base::Fd folder_;  // none: no files
  const Place place_;
  const Duration patience_;
  std::timed_mutex bench_;               // the Engine's notifications are one bench's at a time
  std::optional<FarMemories> memories_;  // with bench_: of this bench, or the one before
  std::atomic<bool> failed_{false};
};

void Server::work(const std::stop_token& stop, bool once) {
  while (!stop.stop_requested()) {
    const auto peer = engine_.accept(kAcceptLooks);
    if (peer.status().code() == Code::timed_out) continue;
    if (!peer.ok()) return;
    std::string request = "nothing";
    Status end;
    try {
      end = serve(*peer, stop, request);
    } catch (const std::exception& error) {  // no memory
      end = Status(Code::no_resource, Scope::request, error.what());
    }
    std::cerr << printable(request) + ": " + (end.ok() ? "done" : end.what()) + "\n";
    if (!once) continue;
    failed_ = !end.ok();
    (void)::kill(::getpid(), SIGTERM);  // for wait_for() of the main thread
    return;
  }
}

Status Server::serve(const Peer& peer, const std::stop_token& stop, std::string& request) {
  auto talk = Conversation::begin(peer, patience_);
  if (!talk.ok()) return talk.status();
  auto asked = (*talk)->hear();
  Status end = asked.status();
  if (asked.ok()) {
    request = *std::move(asked);
    end = handle(**talk, peer, request);
  }
  // A peer that has stopped in the midst is lost after some seconds of silence, and with it goes
  // what it was lent.
  while (!(*talk)->settle(1s) && !stop.stop_requested()) {
  }
  return end;
}

Status Server::handle(Conversation& talk, const Peer& peer, const std::string& request) {
  if (request.starts_with("push ")) return push(talk, request);
  if (request.starts_with("pull ")) return pull(talk, request);
  if (request == "bench") return bench(talk, peer);
  Status why(
      Code::invalid_argument, Scope::request,
      "not understood: \"" + request.substr(0, 64) + "\"; both sides must be of one release");
  talk.refuse(why);
  return why;
}

Status Server::folder_for(const std::string& name) const {
  if (!folder_.valid())
    return {Code::unsupported, Scope::request,
            "no files here: `linkspan serve` was started without --folder"};
  return check_name(name);
}

/// push BYTES NAME
Status Server::push(Conversation& talk, const std::string& request) {
  std::istringstream words(request);
  std::string verb, name;
  std::uint64_t bytes = 0;
  Status status;
  if (!(words >> verb >> bytes) || words.get() != ' ')
    status = {Code::invalid_argument, Scope::request, "push BYTES NAME"};
  std::getline(words, name, '\0');
  if (status.ok()) status = words.eof() ? folder_for(name) : check_name({});
  if (status.ok()) status = talk.open_ring(engine_, gpus_, place_);
  auto file = status.ok() ? ArrivingFile::open(folder_.get(), name) : status;
  if (!file.ok()) {
    talk.refuse(file.status());
    return file.status();
  }
  return receive_file(talk, *file, bytes).status();
}

/// pull NAME
Status Server::pull(Conversation& talk, const std::string& request) {
  const std::string name = request.substr(request.find(' ') + 1);
  Status status = folder_for(name);
  if (status.ok()) status = talk.open_ring(engine_, gpus_, place_);
  auto file = status.ok() ? LeavingFile::open(folder_.get(), name, false) : status;
  if (!file.ok()) {
    talk.refuse(file.status());
    return file.status();
  }
  if (Status s = talk.tell("file " + std::to_string(file->bytes)); !s.ok()) return s;
  return send_file(talk, *file).status();
}

/// Requests of far_memories.hpp, until the peer leaves.
Status Server::bench(Conversation& talk, const Peer& peer) {
  const std::unique_lock turn(bench_, std::chrono::nanoseconds(kBenchTurn));
  if (!turn.owns_lock()) {
    Status why(Code::busy, Scope::request, "another bench is under way here: run it again later");
    talk.refuse(why);
    return why;
  }
  if (memories_ && !memories_->close(kBenchTurn)) {
    Status why(Code::busy, Scope::request,
               "the peer of the bench before still uses its memory here: run it again later");
    talk.refuse(why);
    return why;
  }
  FarMemories& memories = memories_.emplace(engine_, gpus_, peer);
  Status end = talk.tell(kOk);
  while (end.ok()) {
    const auto request = talk.hear(kBenchThinks);
    if (!request.ok()) {
      end = request.status();
      break;
    }
    const auto answer = memories.handle(*request);
    if (answer.ok())
      end = talk.tell(kOk + *answer);
    else
      talk.refuse(answer.status());
  }
  if (memories.close(kBenchTurn)) memories_.reset();
  return end.code() == Code::disconnected ? Status() : end;
}

class ServeVerb final : public Verb {
 public:
  const char* name() const override { return "serve"; }
  const char* what() const override {
    return "Lets other hosts push files here, pull them and measure (`bench --to`), until SIGINT "
           "or SIGTERM.";
  }
  void define(Arguments& arguments) override {
    arguments.text("--listen", listen_, "HOST:PORT",
                   "127.0.0.1:4711; port 0 takes one that is free");
    arguments.text("--folder", folder_, "DIR",
                   "Where files are pushed to and pulled from; without it there are none");
    arguments.flag("--once", once_, "Serve one peer, and exit with how that went");
    arguments.number("--for", seconds_, 1, 1u << 30, "SECONDS", "Serve so long at most");
    staging_.define(arguments);
    network_.define(arguments);
  }

  int run(const std::string& /*command*/) override {
    const sigset_t signals = block_signals();
    base::Fd folder;
    if (!folder_.empty()) {
      auto opened = open_folder(folder_);
      if (!opened.ok()) return refused(name(), opened.status());
      folder = *std::move(opened);
    }
    const Gpus gpus = Gpus::find();
    if (staging_.on_gpu())
      if (const auto device = gpus.device(staging_.gpu); !device.ok())
        return refused(name(), device.status());
    EngineOptions options = network_.engine(name());
    options.use_gpu = staging_.on_gpu();
    auto engine = Engine::open(options);
    if (!engine.ok()) return failed(name(), engine.status());
    if (Status s = engine->listen(tcp_address(listen_)); !s.ok()) return failed(name(), s);
    Server server(*engine, gpus, std::move(folder), staging_.place(), network_.timeout());
    std::cout << "serve at " + engine->address() +
                     (folder_.empty() ? ", no files" : ", files in " + folder_) +
                     (network_.insecure && network_.secret_file.empty() ? kInsecure : "") + "\n"
              << std::flush;
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < (once_ ? 1 : kAtOnce); ++i)
      threads.emplace_back(
          [this, &server](const std::stop_token& stop) { server.work(stop, once_); });
    wait_for(signals, seconds_ == 0 ? Duration::max() : std::chrono::seconds(seconds_));
    for (std::jthread& thread : threads) thread.request_stop();
    const Status closed = engine->close(3s);
    threads.clear();
    if (!closed.ok()) server.leave();
    return server.failed() ? kFailed : kWell;
  }

 private:
  std::string listen_ = "127.0.0.1:4711", folder_;
  bool once_ = false;
  unsigned seconds_ = 0;
  StagingOption staging_;
  NetworkOptions network_;
};

}  // namespace

std::unique_ptr<Verb> serve_verb() { return std::make_unique<ServeVerb>(); }

}  // namespace linkspan::tool
