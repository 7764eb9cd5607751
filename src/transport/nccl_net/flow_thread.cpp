#include "transport/nccl_net/flow_thread.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/named_thread.hpp"
#include "base/no_memory.hpp"

namespace linkspan::transport::nccl_net {
namespace {

using namespace std::chrono_literals;

constexpr int kSpins = 2000;             // turns without a move, before it naps
constexpr Duration kNap = 50us;          // a look at a peer that has to move first
constexpr Duration kFlowSleep = 60s;     // until it is woken
constexpr Duration kFlowPatience = 10s;  // at the end

/// Ends the flow where memory ends.
bool turn(Flow& flow) {
  try {
    return flow.turn();
  } catch (const std::exception&) {
    flow.end(base::no_memory(Scope::peer));
    return true;  // it is looked at again
  }
}

}  // namespace

FlowThread::~FlowThread() {
  std::jthread thread;
  {
    const base::MutexLock lock(mutex_);
    ending_ = true;
    thread = std::move(thread_);
  }
  changed_.notify_all();
}

Status FlowThread::add(std::shared_ptr<Flow> flow) {
  const base::MutexLock lock(mutex_);
  if (!thread_.joinable()) {
    try {
      thread_ = base::named_thread<"ls-nccl-net">([this] { loop(); });
    } catch (const std::exception& error) {
      return {Code::system, Scope::process, std::string("no thread: ") + error.what()};
    }
  }
  added_.push_back(std::move(flow));
  changed_.notify_all();
  return {};
}

void FlowThread::wake() {
  const base::MutexLock lock(mutex_);
  woken_ = true;
  changed_.notify_all();
}

void FlowThread::release() {
  const base::MutexLock lock(mutex_);
  releasing_ = true;
  changed_.notify_all();
}

FlowThread::News FlowThread::collect(Flows& flows, Duration sleep) {
  const base::MutexLock lock(mutex_);
  if (sleep > Duration::zero() && !woken_ && !releasing_ && !ending_ && added_.empty())
    changed_.wait(mutex_, base::Deadline::after(base::Clock::steady(), sleep));
  woken_ = false;
  try {
    flows.reserve(flows.size() + added_.size());
    for (auto& flow : added_) flows.push_back(std::move(flow));
    added_.clear();
  } catch (const std::exception&) {  // no memory: they have had no turn, and wait for the next look
    changed_.wait(mutex_, base::Deadline::after(base::Clock::steady(), base::kWithoutMemory));
  }
  return {.release = std::exchange(releasing_, false), .end = ending_};
}

void FlowThread::loop() {
  Flows flows;
  int still = 0;  // turns of all without a move
  Duration sleep = Duration::zero();
  for (News news; !news.end; news = collect(flows, sleep)) {
    bool moved = false, idle = true;
    for (const auto& flow : flows) {
      if (news.release) flow->release();
      moved |= turn(*flow);
      idle &= flow->idle();
    }
    std::erase_if(flows, [](const auto& flow) { return flow->broken().has_value(); });
    still = moved ? 0 : std::min(still + 1, kSpins);
    if (still != 0) std::this_thread::yield();
    sleep = idle ? kFlowSleep : still == kSpins ? kNap : Duration::zero();
  }
  const auto deadline = base::Deadline::after(base::Clock::steady(), kFlowPatience);
  for (const auto& flow : flows)
    flow->end(Status(Code::canceled, Scope::process, "the Engine has ended"));
  while (!flows.empty() && !deadline.passed()) {
    for (const auto& flow : flows) (void)turn(*flow);
    std::erase_if(flows, [](const auto& flow) { return flow->broken().has_value(); });
  }
}

}  // namespace linkspan::transport::nccl_net
