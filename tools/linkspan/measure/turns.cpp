#include "tools/linkspan/measure/turns.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "base/clock.hpp"

namespace linkspan::tool {
namespace {

/// The smallest value that `part` of all do not exceed. In us.
double quantile(Runs& values, double part) {
  const auto rank = std::ceil(part * static_cast<double>(values.size()));
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(std::max(rank, 1.0)) - 1;
  std::nth_element(values.begin(), at, values.end());
  return static_cast<double>(at->count()) / 1e3;
}

Status take_turn(const Contender& contender, std::size_t count, Runs* into) {
  if (contender.begin)
    if (Status s = contender.begin(static_cast<unsigned>(count)); !s.ok()) return s;
  for (std::size_t i = 0; i < count; ++i) {
    const auto took = contender.run();
    if (!took.ok()) return took.status();
    if (into != nullptr) into->push_back(*took);
  }
  return contender.end ? contender.end() : Status();
}

}  // namespace

Result<std::vector<Runs>> take_turns(const Turns& turns, std::span<const Contender> contenders) {
  std::vector<Runs> out(contenders.size());
  for (Runs& runs : out) runs.reserve(turns.runs);
  const auto end = base::Deadline::after(base::Clock::steady(), turns.at_most);
  const Runs& first = out.front();
  for (bool warm = false; first.size() < turns.runs && (first.empty() || !end.passed());
       warm = true) {
    const std::size_t count = std::min<std::size_t>(turns.block, turns.runs - first.size());
    for (std::size_t i = 0; i < contenders.size(); ++i)
      if (Status s = take_turn(contenders[i], count, warm ? &out[i] : nullptr); !s.ok()) return s;
  }
  return out;
}

Timing timing_of(Runs runs) {
  if (runs.empty()) return {};
  return {.p50 = quantile(runs, 0.5),
          .p99 = quantile(runs, 0.99),
          .max = quantile(runs, 1),
          .runs = static_cast<unsigned>(runs.size())};
}

void compare(std::span<const Contender> contenders, std::vector<Runs> runs, Row& out) {
  for (std::size_t i = 1; i < contenders.size(); ++i) {
    Beside one{.how = contenders[i].how, .timing = timing_of(std::move(runs[i]))};
    if (!contenders[i].ceiling) {
      out.beside.push_back(std::move(one));
      continue;
    }
    const bool faster = out.bare.runs == 0 || one.timing.p50 < out.bare.p50;
    if (faster) {
      std::swap(one.how, out.ceiling_how);
      std::swap(one.timing, out.bare);
    }
    if (one.timing.runs != 0) out.beside.push_back(std::move(one));
  }
}

}  // namespace linkspan::tool
