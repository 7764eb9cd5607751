// `linkspan ps`: what the Engines of running processes have outstanding, asked of themselves: once,
// as a live table, or by HTTP.
#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <iostream>
#include <utility>

#include "base/untrusted_input.hpp"
#include "engine/diagnostics/metrics_server.hpp"
#include "tools/linkspan/command_line/signals.hpp"
#include "tools/linkspan/command_line/verb.hpp"
#include "tools/linkspan/ps/engines.hpp"
#include "tools/linkspan/ps/exposition.hpp"
#include "tools/linkspan/ps/watch.hpp"

namespace linkspan::tool {
namespace {

using control::IntrospectionOp;

constexpr unsigned kMaxInterval = 3600;  // seconds
constexpr const char* kClear = "\x1b[H\x1b[2J";

/// Removes control characters, because texts of an Engine quote its peers and a terminal must not
/// obey them.
std::string plain(const std::string& text) { return base::printable(text, true); }

class PsVerb final : public Verb {
 public:
  const char* name() const override { return "ps"; }
  const char* what() const override {
    return "What the Engines of a running process have outstanding; without PID, which processes "
           "have Engines.";
  }
  void define(Arguments& arguments) override {
    arguments.text("pid", pid_text_, "PID", "The process");
    arguments.flag("--metrics", metrics_, "Its counters, in the text format of Prometheus");
    arguments.flag("--watch", watch_,
                   "What the Engines of this user, or of PID, move: a table, again and again");
    arguments.number("--interval", interval_, 1, kMaxInterval, "SECONDS",
                     "Time between two tables of --watch");
    arguments.text(
        "--listen", listen_, "PORT",
        "Serve the counters of all Engines of this user, or of PID, by HTTP as /metrics, "
        "at PORT of loopback or at ADDRESS:PORT");
  }
  int run(const std::string& /*command*/) override {
    const char* end = pid_text_.data() + pid_text_.size();
    const auto read = std::from_chars(pid_text_.data(), end, pid_);
    if (!pid_text_.empty() && (read.ec != std::errc() || read.ptr != end || pid_ <= 0))
      return wrong("\"" + pid_text_ + "\" is no process number");
    if (metrics_ && pid_ == 0) return wrong("--metrics needs the PID of one process");
    if (metrics_ + watch_ + !listen_.empty() > 1)
      return wrong("--metrics, --watch and --listen exclude each other: give one of them");
    if (watch_) return watch();
    if (!listen_.empty()) return listen();
    const auto answers = engines_.ask(metrics_ ? IntrospectionOp::metrics : IntrospectionOp::dump,
                                      {.pid = pid_, .any_uid = true});
    if (!answers.ok()) return failed(name(), answers.status());
    return pid_ == 0 ? list(*answers) : print(*answers);
  }

 private:
  int wrong(std::string why) const {
    return refused(name(), Status(Code::invalid_argument, Scope::request, std::move(why)));
  }

  int print(const std::vector<Engines::Answer>& answers) const {
    if (answers.empty()) return failed(name(), why_absent(pid_));
    int code = kSuccess;
    MergedMetrics merged;
    for (const Engines::Answer& answer : answers) {
      if (!answer.text.ok())
        code = failed(name(), answer.text.status());
      else if (metrics_)
        merged.add(*answer.text);
      else
        std::cout << plain(*answer.text) << std::flush;
    }
    std::cout << plain(merged.text()) << std::flush;
    return code;
  }

  static int list(const std::vector<Engines::Answer>& answers) {
    if (answers.empty()) std::cout << "No process of yours has an Engine open.\n";
    for (const Engines::Answer& answer : answers) {
      const std::string line = answer.text.ok() ? answer.text->substr(0, answer.text->find('\n'))
                                                : answer.text.status().what();
      std::cout << std::to_string(answer.pid) + "\t" + plain(line) + "\n";
    }
    std::cout << std::flush;
    return kSuccess;
  }

  /// Returns the metrics of all Engines that answer.
  Result<std::string> merged() const {
    const auto answers = engines_.ask(IntrospectionOp::metrics, {.pid = pid_});
    if (!answers.ok()) return answers.status();
    MergedMetrics merged;
    for (const Engines::Answer& answer : *answers)
      if (answer.text.ok()) merged.add(*answer.text);
    return merged.text();
  }

  int watch() const {
    const sigset_t signals = block_signals();
    const bool terminal = ::isatty(STDOUT_FILENO) == 1;
    Watch watch;
    for (bool ended = false; !ended; ended = wait_for(signals, std::chrono::seconds(interval_))) {
      const auto metrics = merged();
      if (!metrics.ok()) return failed(name(), metrics.status());
      std::cout << (terminal ? kClear : "")
                << plain(watch.table(*metrics, base::Clock::steady().now())) << std::endl;
      if (!std::cout) break;
    }
    return kSuccess;
  }

  int listen() const {
    const sigset_t signals = block_signals();
    const auto address = engine::parse_metrics_address(listen_);
    if (!address.ok()) return refused(name(), address.status());
    const auto server = net::HttpServer::start(*address, engine::metrics_page([this] {
      auto metrics = merged();
      return metrics.ok() ? *std::move(metrics) : std::string();
    }));
    if (!server.ok()) return failed(name(), server.status());
    std::cout << "metrics at " + (*server)->url() << std::endl;
    (void)wait_for(signals, Duration::max());
    return kSuccess;
  }

  Engines engines_;
  std::string pid_text_, listen_;
  pid_t pid_ = 0;
  bool metrics_ = false, watch_ = false;
  unsigned interval_ = 1;
};

}  // namespace

std::unique_ptr<Verb> ps_verb() { return std::make_unique<PsVerb>(); }

}  // namespace linkspan::tool
