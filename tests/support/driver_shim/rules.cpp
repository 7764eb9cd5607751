#include "tests/support/driver_shim/rules.hpp"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <sstream>
#include <string_view>
#include <thread>
#include <vector>

namespace linkspan::cuda::shim {
namespace {

using std::chrono::microseconds;

struct Rule {
  enum class What { fail, lose, stall, delay, forbid } what;
  std::string entry;
  unsigned long long left = 0;  // calls up to the one that is meant; zero: done, or every call
  unsigned value = 0;           // error or microseconds
};

struct State {
  std::mutex mutex;
  std::vector<Rule> rules;
  CUcontext lost = nullptr;
  CUresult lost_by = CUDA_SUCCESS;
  std::string struck, forbidden;
  bool tracing = false;
  std::vector<const char*> trace;
  CurrentContext current = nullptr;
};
/// Returns the state, which is never destroyed, because threads may call the driver until the very
/// end.
State& state() {
  static State& only = *new State;
  return only;
}
std::atomic<bool> any_order{false};
thread_local bool own_calls = false;

/// Returns true for entries that only return an error's text, to which no order applies.
bool only_tells(std::string_view entry) {
  return entry == "cuGetErrorName" || entry == "cuGetErrorString";
}

/// Returns false for entries that work without a context, as on a real GPU.
bool needs_context(std::string_view entry) {
  for (const char* free :
       {"cuInit", "cuDriverGetVersion", "cuDevice", "cuCtxPushCurrent", "cuCtxPopCurrent",
        "cuCtxGetCurrent", "cuThreadExchangeStreamCaptureMode", "cuPointerGetAttribute"})
    if (entry.starts_with(free)) return false;
  return true;
}

void add(std::string& list, const char* entry) {
  list += (list.empty() ? "" : " ") + std::string(entry);
}

bool parse(std::istringstream& words, Rule& rule, std::string& verb) {
  using What = Rule::What;
  if (!(words >> verb)) return false;
  if (verb == "trace" || verb == "clear") return (words >> std::ws).eof();
  if (verb == "fail")
    rule.what = What::fail;
  else if (verb == "lose")
    rule.what = What::lose;
  else if (verb == "stall")
    rule.what = What::stall;
  else if (verb == "delay")
    rule.what = What::delay;
  else if (verb == "forbid")
    rule.what = What::forbid;
  else
    return false;
  if (!(words >> rule.entry)) return false;
  const bool one = rule.what != What::delay && rule.what != What::forbid;
  if (one && (!(words >> rule.left) || rule.left == 0)) return false;
  if (rule.what != What::forbid && !(words >> rule.value)) return false;
  return (words >> std::ws).eof();
}

CUcontext current_context(const State& s) {
  CUcontext context = nullptr;
  if (s.current != nullptr) s.current(&context);
  return context;
}

}  // namespace

bool order(const char* text) {
  std::vector<Rule> rules;
  bool trace = false, clear = false;
  std::istringstream all(text);
  for (std::string one; std::getline(all, one, ',');) {
    std::istringstream words(one);
    Rule rule{};
    std::string verb;
    if (!parse(words, rule, verb)) return false;
    if (verb == "trace")
      trace = true;
    else if (verb == "clear")
      clear = true;
    else
      rules.push_back(std::move(rule));
  }
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (clear) {
    s.rules.clear();
    s.trace.clear();
    s.struck.clear();
    s.forbidden.clear();
    s.lost = nullptr;
    s.tracing = false;
  }
  s.tracing = s.tracing || trace;
  s.rules.insert(s.rules.end(), rules.begin(), rules.end());
  any_order = s.tracing || !s.rules.empty();
  return true;
}

void order_from_environment() {
  const char* text = std::getenv("LINKSPAN_SHIM_RULES");
  if (text == nullptr || order(text)) return;
  std::fprintf(stderr, "LINKSPAN_SHIM_RULES: no such order: %s\n", text);
  std::abort();
}

void ask_for_context(CurrentContext current) {
  const std::lock_guard lock(state().mutex);
  state().current = current;
}

void set_own(bool own) { own_calls = own; }
bool is_own() { return own_calls; }

CUresult meet(const char* entry) {
  if (own_calls || !any_order.load(std::memory_order_acquire) || only_tells(entry))
    return CUDA_SUCCESS;
  State& s = state();
  microseconds wait{0};
  CUresult answer = CUDA_SUCCESS;
  {
    const std::lock_guard lock(s.mutex);
    if (s.tracing) s.trace.push_back(entry);
    if (s.lost != nullptr && needs_context(entry) && current_context(s) == s.lost)
      answer = s.lost_by;
    for (Rule& rule : s.rules) {
      using What = Rule::What;
      if (rule.entry != "*" && rule.entry != entry) continue;
      if (rule.what == What::forbid) add(s.forbidden, entry);
      if (rule.what == What::delay) wait += microseconds(rule.value);
      if (rule.left == 0 || --rule.left != 0) continue;
      if (rule.what == What::stall) {
        wait += microseconds(rule.value);
      } else {
        answer = static_cast<CUresult>(rule.value);
        add(s.struck, entry);
      }
      if (rule.what == What::lose) {
        s.lost = current_context(s);
        s.lost_by = answer;
      }
    }
  }
  if (wait != microseconds::zero()) std::this_thread::sleep_for(wait);
  return answer;
}

std::string struck() {
  const std::lock_guard lock(state().mutex);
  return state().struck;
}

std::string forbidden() {
  const std::lock_guard lock(state().mutex);
  return state().forbidden;
}

const char* traced(unsigned long long i) {
  const std::lock_guard lock(state().mutex);
  return i < state().trace.size() ? state().trace[i] : nullptr;
}

}  // namespace linkspan::cuda::shim
