#include "tools/linkspan/measure/row_ids.hpp"

#include <array>
#include <cmath>
#include <string_view>

namespace linkspan::tool {
namespace {

/// Lists the bars, and the ceilings measured on H200 with NVLink and PCIe Gen5. A read uses the
/// same links as the write.
struct Known {
  std::string_view id;  // without ".read"
  double bar, ceiling;  // bar: a ratio; zero: none
};
constexpr std::array kKnown = {
    Known{"gpu_gpu.1GiB", 0.98, 396.7},
    Known{"pinned_gpu.1GiB", 0.97, 55.5},
    Known{"gpu_pinned.1GiB", 0.97, 55.4},
    Known{"gpu_gpu.8B.submit_to_done.p50", 1.25, 7.0},
    Known{"gpu_gpu.1MiB.submit_to_done.p50", 0, 10.0},
    Known{"gpu_gpu.bidir.1GiB", 0, 793.4},
    Known{"pages.8192x4KiB", 0, 319.6},
    Known{"pages.100000x256B", 0, 228.6},
    Known{"blocks.16x1MiB", 0, 301.0},
    Known{"gpu_gpu.1MiB.depth16", 0, 185.0},
    Known{"pinned_gpu.64MiB.other_process", 0, 55.5},
    Known{"gpu_pinned.64MiB.other_process", 0, 55.4},
    Known{"host_gpu.two_links.1GiB", 0, 106.6},
};
constexpr std::string_view kKnownMachine = "H200";
constexpr double kSuspect = 0.15;  // a larger deviation from the known ceiling is suspect
constexpr std::string_view kRead = ".read";

bool is_gpu(const std::string& place) { return place.starts_with("gpu"); }

std::string pair_of(const Row& row) {
  if (is_gpu(row.from) && is_gpu(row.to))
    return row.from == "gpu0" && row.to == "gpu1" ? "gpu_gpu" : row.from + "_" + row.to;
  const auto plain = [](const std::string& name) { return name == "gpu0" ? "gpu" : name; };
  return plain(row.from) + "_" + plain(row.to);
}

const Known* find(std::string_view id) {
  if (id.ends_with(kRead)) id.remove_suffix(kRead.size());
  for (const Known& known : kKnown)
    if (known.id == id) return &known;
  return nullptr;
}

}  // namespace

std::string id_of(const Row& row) {
  std::string id = (row.label.empty() ? pair_of(row) : row.label) + '.' + row.shape;
  if (row.depth != 1) id += ".depth" + std::to_string(row.depth);
  if (!row.suffix.empty())
    id += row.suffix;
  else if (row.latency)
    id += ".submit_to_done.p50";
  return row.op == Op::read && row.label.empty() ? id + std::string(kRead) : id;
}

Verdict judge(const Row& row, const bare::Machine& machine) {
  const Known* known = find(id_of(row));
  Verdict out{.bar = row.bar};
  if (out.bar.value <= 0 && known != nullptr) out.bar.value = known->bar;
  const double value = out.bar.absolute ? row.figure(row.ours) : row.ratio();
  const bool met = row.latency ? value <= out.bar.value : value >= out.bar.value;
  out.pass = row.status.ok() && row.verified && value > 0 && met;
  const bool same_machine =
      !machine.gpus.empty() && machine.gpus[0].find(kKnownMachine) != std::string::npos;
  out.suspect = known != nullptr && same_machine && row.bare.runs != 0 &&
                std::abs(row.figure(row.bare) / known->ceiling - 1) > kSuspect;
  return out;
}

}  // namespace linkspan::tool
