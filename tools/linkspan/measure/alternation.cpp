#include "tools/linkspan/measure/alternation.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "base/clock.hpp"

namespace linkspan::tool {
namespace {

/// Returns the smallest value, in us, that a share of `part` of all values do not exceed.
double quantile(Runs& values, double part) {
  const auto rank = std::ceil(part * static_cast<double>(values.size()));
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(std::max(rank, 1.0)) - 1;
  std::nth_element(values.begin(), at, values.end());
  return static_cast<double>(at->count()) / 1e3;
}

Status run_block(const Contestant& contestant, std::size_t count, Runs* into) {
  if (contestant.begin)
    if (Status s = contestant.begin(static_cast<unsigned>(count)); !s.ok()) return s;
  for (std::size_t i = 0; i < count; ++i) {
    const auto took = contestant.run();
    if (!took.ok()) return took.status();
    if (into != nullptr) into->push_back(*took);
  }
  return contestant.end ? contestant.end() : Status();
}

}  // namespace

Result<std::vector<Runs>> run_alternating(const Alternation& alternation,
                                          std::span<const Contestant> contestants) {
  std::vector<Runs> out(contestants.size());
  for (Runs& runs : out) runs.reserve(alternation.runs);
  const auto end = base::Deadline::in(alternation.at_most);
  const Runs& first = out.front();
  for (bool warm = false; first.size() < alternation.runs && (first.empty() || !end.passed());
       warm = true) {
    const std::size_t count =
        std::min<std::size_t>(alternation.block, alternation.runs - first.size());
    for (std::size_t i = 0; i < contestants.size(); ++i)
      if (Status s = run_block(contestants[i], count, warm ? &out[i] : nullptr); !s.ok()) return s;
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

void compare(std::span<const Contestant> contestants, std::vector<Runs> runs, Row& out) {
  for (std::size_t i = 1; i < contestants.size(); ++i) {
    Beside one{.how = contestants[i].how, .timing = timing_of(std::move(runs[i]))};
    if (!contestants[i].ceiling) {
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
