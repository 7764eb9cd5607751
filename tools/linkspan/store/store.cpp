// `linkspan store`: serves a store that speaks PyTorch's TCPStore protocol, or asks one.
#include <algorithm>
#include <chrono>
#include <iostream>

#include "control/socket_address.hpp"
#include "store/store_client.hpp"
#include "tools/linkspan/command_line/signals.hpp"
#include "tools/linkspan/command_line/verb.hpp"
#include "tools/linkspan/store/store_call.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr Duration kCountInterval = 50ms;

/// Counts this process as a worker of the store at `address`, and waits until `workers` have come,
/// as open_tcp_store() does. canceled: a signal has come first.
Status await_workers(const std::string& address, unsigned workers, Duration timeout,
                     const sigset_t& signals) {
  const auto deadline = base::Deadline::in(timeout);
  const auto at = control::parse_address(address, {});
  if (!at.ok()) return at.status();
  const auto addresses = net::resolve(at->host, at->port);
  if (!addresses.ok()) return addresses.status();
  const store::Limits limits;
  auto client = store::meet(*addresses, StoreDialect::current, limits, deadline);
  if (!client.ok()) return client.status();
  store::Request request;
  request.op = store::Op::add;
  request.keys = {store::kWorkers};
  for (request.number = 1;; request.number = 0) {
    const auto answer_deadline = base::Deadline::in(timeout);
    if (Status sent = client->send(request, answer_deadline); !sent.ok()) return sent;
    const auto come = client->receive(request.op, 1, limits, answer_deadline);
    if (!come.ok()) return come.status();
    if (come->number >= workers) return {};
    if (deadline.passed())
      return {Code::timed_out, Scope::peer,
              std::to_string(workers - come->number) + " of " + std::to_string(workers) +
                  " workers have not come in time (--timeout)"};
    if (wait_for(signals, std::min<Duration>(kCountInterval, deadline.left())))
      return {Code::canceled, Scope::request, "a signal has come before all workers"};
  }
}

class StoreVerb final : public Verb {
 public:
  const char* name() const override { return "store"; }
  const char* what() const override {
    return "Serves a store that speaks PyTorch's TCPStore protocol, until SIGINT or SIGTERM; with "
           "an "
           "operation, such as `get KEY`, asks one.";
  }
  void define(Arguments& arguments) override {
    arguments.rest("operation", words_, "OPERATION...",
                   "What to ask; - takes operations from stdin, a JSON object a line "
                   "(docs/store.md)");
    arguments.text("--host", host_, "HOST", "Where to listen or to ask (127.0.0.1)");
    arguments.number("--port", port_, 0, 65535, "PORT", "9998; to serve, 0 takes one that is free");
    arguments.number("--for", seconds_, 1, 1u << 30, "SECONDS", "Serve so long at most");
    arguments.number("--workers", workers_, 1, 1u << 20, "N",
                     "Wait until so many have come, as torch counts them");
    arguments.number("--timeout", timeout_s_, 1, 1u << 20, "SECONDS",
                     "For opening and for each operation (30)");
    arguments.choice("--dialect", dialect_, {"detect", "current", "older"},
                     "What to speak to a server: older is torch 1.13");
    arguments.flag("--insecure", insecure_,
                   "Listen beyond loopback, where everybody may read and write the store");
  }

  int run(const std::string& /*command*/) override {
    if (words_.empty()) return serve();
    const bool from_stdin = words_.size() == 1 && words_[0] == "-";
    auto call = from_stdin ? StoreCall{} : call_of(words_, timeout());
    if (!call.ok()) return refused(name(), call.status());
    auto store = connect();
    if (!store.ok()) return failed(name(), store.status());
    return from_stdin ? run_lines(**store) : run_one(**store, *call);
  }

 private:
  Duration timeout() const { return std::chrono::seconds(timeout_s_); }

  TcpStoreOptions options(StoreRole role) const {
    TcpStoreOptions options;
    options.host = host_;
    options.port = static_cast<std::uint16_t>(port_);
    options.role = role;
    options.timeout = timeout();
    options.workers = workers_;
    options.insecure = insecure_;
    options.dialect = dialect_ == "older"     ? StoreDialect::older
                      : dialect_ == "current" ? StoreDialect::current
                                              : StoreDialect::detect;
    return options;
  }

  int serve() const {
    const sigset_t signals = block_signals();
    auto wanted = options(StoreRole::serve);
    wanted.workers = 0;  // waits for them below, once its address is printed
    wanted.log = [](std::string_view line) { std::cerr << std::string(line) + "\n"; };
    auto store = open_tcp_store(wanted);
    if (!store.ok()) return failed(name(), store.status());
    std::string greeting = "store at " + (*store)->address();
    if (insecure_) greeting += ", insecure: everybody who reaches it may read and write it";
    std::cout << greeting + "\n" << std::flush;
    Status come;
    if (workers_ != 0) come = await_workers((*store)->address(), workers_, timeout(), signals);
    if (come.ok())
      (void)wait_for(signals, seconds_ == 0 ? Duration::max() : std::chrono::seconds(seconds_));
    (void)(*store)->close(Duration::zero());
    return come.ok() || come.code() == Code::canceled ? kSuccess : failed(name(), come);
  }

  Result<std::unique_ptr<Store>> connect() const {
    return open_tcp_store(options(StoreRole::connect));
  }

  int run_one(Store& store, const StoreCall& call) const {
    auto answer = tool::run(store, call);
    if (!answer.ok()) return failed(name(), answer.status());
    for (const std::string& value : answer->values) std::cout << value + "\n";
    if (answer->has_number) std::cout << std::to_string(answer->number) + "\n";
    std::cout << std::flush;
    return kSuccess;
  }

  int run_lines(Store& store) const {
    int code = kSuccess;
    for (std::string line; std::getline(std::cin, line);) {
      auto call = call_of_json(line, timeout());
      auto answer = call.ok() ? tool::run(store, *call) : Result<StoreAnswer>(call.status());
      if (!answer.ok()) code = kFailed;
      std::cout << to_json(answer) + "\n" << std::flush;
    }
    return code;
  }

  std::vector<std::string> words_;
  std::string host_ = "127.0.0.1", dialect_ = "detect";
  unsigned port_ = 9998, seconds_ = 0, workers_ = 0, timeout_s_ = 30;
  bool insecure_ = false;
};

}  // namespace

std::unique_ptr<Verb> store_verb() { return std::make_unique<StoreVerb>(); }

}  // namespace linkspan::tool
