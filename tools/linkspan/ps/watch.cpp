#include "tools/linkspan/ps/watch.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tools/linkspan/command_line/table.hpp"
#include "tools/linkspan/ps/exposition.hpp"

namespace linkspan::tool {
namespace {

constexpr std::size_t kNameWidth = 24;

std::string whole(double value) { return std::to_string(std::llround(value)); }

}  // namespace

Watch::Reading Watch::read(std::string_view metrics) {
  Reading reading;
  for_each_line(metrics, [&](std::string_view line) {
    const auto sample = parse_sample(line);
    if (!sample) return;
    const std::string peer = sample->label("peer");
    if (peer.empty() || peer == "gone") return;
    const std::string pid = sample->label("pid"), engine = sample->label("engine");
    PeerTotals& totals = reading[pid + "\n" + engine + "\n" + peer];
    totals.pid = pid;
    totals.engine = engine;
    totals.peer = peer == "others" ? peer : sample->label("name");
    if (sample->name == "linkspan_bytes_total") {
      totals.bytes += sample->value;
      totals.bytes_by_path[sample->label("path")] += sample->value;
    } else if (sample->name == "linkspan_transfer_seconds_count") {
      totals.transfers += sample->value;
    } else if (sample->name == "linkspan_transfer_seconds_sum") {
      totals.seconds += sample->value;
    } else if (sample->name == "linkspan_transfers_outstanding") {
      totals.outstanding += sample->value;
    } else if (sample->name == "linkspan_transfers_queued") {
      totals.queued += sample->value;
    } else if (sample->name == "linkspan_transfers_failed_total") {
      totals.failed += sample->value;
    }
  });
  return reading;
}

std::string Watch::table(std::string_view metrics, base::Time now) {
  Reading reading = read(metrics);
  const double seconds = std::chrono::duration<double>(now - at_).count();
  Table table({{"pid", true},
               {"engine"},
               {"peer"},
               {"GB/s", true},
               {"transfers/s", true},
               {"mean us", true},
               {"outstanding", true},
               {"queued", true},
               {"failed", true},
               {"path"}});
  for (const auto& [key, peer] : reading) {
    std::vector<std::string> row = {peer.pid, shortened(peer.engine, kNameWidth),
                                    shortened(peer.peer, kNameWidth)};
    std::string path = "-";
    if (const auto found = before_.find(key); found != before_.end()) {
      const PeerTotals& before = found->second;
      const double transfers = peer.transfers - before.transfers;
      row.push_back(number((peer.bytes - before.bytes) / seconds / 1e9));
      row.push_back(whole(transfers / seconds));
      row.push_back(transfers > 0 ? number((peer.seconds - before.seconds) / transfers * 1e6)
                                  : "-");
      double most = 0;
      for (const auto& [name, bytes] : peer.bytes_by_path) {
        const auto earlier = before.bytes_by_path.find(name);
        const double moved = bytes - (earlier == before.bytes_by_path.end() ? 0 : earlier->second);
        if (moved > most) path = name;
        most = std::max(most, moved);
      }
    } else {
      row.insert(row.end(), 3, "-");
    }
    for (const double count : {peer.outstanding, peer.queued, peer.failed})
      row.push_back(whole(count));
    row.push_back(path);
    table.add(std::move(row));
  }
  before_ = std::move(reading);
  at_ = now;
  return table.text();
}

}  // namespace linkspan::tool
