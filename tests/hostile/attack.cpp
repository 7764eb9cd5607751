#include "tests/hostile/attack.hpp"

#include <signal.h>

#include <algorithm>
#include <stdexcept>
#include <thread>

#include "base/mutex.hpp"
#include "tests/hostile/cores.hpp"
#include "tests/support/take.hpp"

namespace linkspan::test {
namespace {

constexpr const char* kAttackerHelper = "attacker";
constexpr const char* kBurn = "burn";

std::vector<Attack>& added() {
  static std::vector<Attack> attacks;
  return attacks;
}

void burn_core(const Target&, const std::stop_token& stop, std::atomic<std::uint64_t>& done) {
  while (!stop.stop_requested()) done.fetch_add(1, std::memory_order_relaxed);
}

class AttackServer {
 public:
  Result<Answer> handle(const Json& call) {
    const auto what = call.at("do").get<std::string>();
    if (what == "start") return start(call);
    if (what == "done") {
      const base::MutexLock lock(mutex_);
      if (!error_.empty()) return Status(Code::internal, Scope::peer, error_);
      return Answer{done_.load(), {}};
    }
    threads_.clear();
    return Answer{};
  }

 private:
  Result<Answer> start(const Json& call) {
    target_ = {call.at("unix"), call.at("tcp"), call.at("folder")};
    const auto name = call.at("name").get<std::string>();
    Attack::Run run = burn_core;
    for (const Attack& each : added())
      if (each.name == name) run = each.run;
    done_ = 0;
    for (unsigned i = 0; i < call.at("threads").get<unsigned>(); ++i)
      threads_.emplace_back([this, run](const std::stop_token& stop) {
        try {
          run(target_, stop, done_);
        } catch (const std::exception& error) {
          const base::MutexLock lock(mutex_);
          error_ = error.what();
        }
      });
    return Answer{};
  }

  Target target_;
  std::atomic<std::uint64_t> done_{0};
  base::Mutex mutex_;
  std::string error_ LINKSPAN_GUARDED_BY(mutex_);
  std::vector<std::jthread> threads_;  // last: they use all of the above
};

void attacker_main(Line& line) {
  pin_to(Core::attacked);
  AttackServer server;
  line.serve([&](const Json& call, const std::vector<base::Fd>&) { return server.handle(call); },
             [] { return false; });
}
const bool kAttackerRegistered = add_helper(kAttackerHelper, attacker_main);

Json starting(const std::string& name, unsigned threads, const Target& target) {
  return {{"do", "start"},
          {"name", name},
          {"threads", threads},
          {"unix", target.unix_address},
          {"tcp", target.tcp_address},
          {"folder", target.socket_folder}};
}

}  // namespace

bool add_attack(Attack attack) {
  added().push_back(std::move(attack));
  return true;
}

std::vector<Attack> all_attacks() {
  std::vector<Attack> all = added();
  std::ranges::sort(all, {}, &Attack::name);
  return all;
}

Attacker::Attacker() : child_(take(Child::spawn(kAttackerHelper))) {}

void Attacker::burn(const Attack& attack) {
  take(child_->line().call(starting(kBurn, attack.threads, {})));
}

void Attacker::start(const Attack& attack, const Target& target) {
  take(child_->line().call(starting(attack.name, attack.threads, target)));
}

std::uint64_t Attacker::done() { return take(child_->line().call({{"do", "done"}})).value; }

void Attacker::freeze() { child_->signal(SIGSTOP); }

void Attacker::kill() { child_->kill(); }

void Attacker::stop() { take(child_->line().call({{"do", "stop"}})); }

}  // namespace linkspan::test
