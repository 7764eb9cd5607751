#include "engine/diagnostics/metrics.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <utility>

namespace linkspan::engine {
namespace {

using Labels = std::vector<std::pair<const char*, std::string_view>>;

/// Collects the families one after the other: each has its head once, whatever series follow. All
/// have the labels `engine` and `pid`.
class Text {
 public:
  explicit Text(const EngineMetrics& of) {
    std::swap(out_, engine_);
    label("{", "engine", of.engine);
    label(",", "pid", of.pid);
    std::swap(out_, engine_);
  }
  void family(const char* name, const char* type, const char* help) {
    name_ = name;
    out_.append("# HELP linkspan_").append(name).append(" ").append(help);
    out_.append("\n# TYPE linkspan_").append(name).append(" ").append(type).append("\n");
  }
  void sample(const Labels& labels, const std::string& value, const char* suffix = "") {
    out_.append("linkspan_").append(name_).append(suffix).append(engine_);
    for (const auto& [key, text] : labels) label(",", key, text);
    out_.append("} ").append(value).append("\n");
  }
  void sample(const Labels& labels, std::uint64_t value, const char* suffix = "") {
    sample(labels, std::to_string(value), suffix);
  }
  std::string release() { return std::move(out_); }

 private:
  void label(const char* before, const char* key, std::string_view text) {
    out_.append(before).append(key).append("=\"");
    for (const char c : text) {
      if (c == '\\' || c == '"') out_ += '\\';
      if (c == '\n')
        out_ += "\\n";
      else
        out_ += c;
    }
    out_ += '"';
  }

  const char* name_ = "";
  std::string engine_, out_;
};

std::string seconds(Duration time) {
  std::array<char, 32> text{};
  const auto end =
      std::to_chars(text.begin(), text.end(), std::chrono::duration<double>(time).count(),
                    std::chars_format::general, 9);  // in no user's locale
  return {text.data(), end.ptr};
}

using PeerCounter = std::uint64_t PeerCounters::*;

void peer_family(Text& text, const EngineMetrics& m, const char* name, const char* help,
                 PeerCounter value) {
  text.family(name, "counter", help);
  for (const PeerMetrics& peer : m.peers)
    text.sample({{"peer", peer.id}, {"name", peer.name}}, peer.counters.*value);
}

using PathCounter = std::array<std::uint64_t, kWork.size()> PathCounters::*;

void path_family(Text& text, const EngineMetrics& m, const char* name, const char* help,
                 PathCounter values) {
  text.family(name, "counter", help);
  for (const PeerMetrics& peer : m.peers)
    for (const PathCounters& counters : peer.counters.paths)
      for (std::size_t work = 0; work < kWork.size(); ++work)
        if (counters.transfers[work] != 0)
          text.sample({{"peer", peer.id},
                       {"name", peer.name},
                       {"op", kWork[work]},
                       {"path", counters.path}},
                      (counters.*values)[work]);
}

void latencies(Text& text, const EngineMetrics& m) {
  text.family("transfer_seconds", "histogram",
              "From the submission until the transfer was quiet, of those that went well.");
  for (const PeerMetrics& peer : m.peers)
    for (const PathCounters& counters : peer.counters.paths) {
      if (counters.path.empty()) continue;
      Labels labels{{"peer", peer.id}, {"name", peer.name}, {"path", counters.path}, {"le", {}}};
      std::uint64_t below = 0;
      for (std::size_t i = 0; i < counters.latency.counts.size(); ++i) {
        below += counters.latency.counts[i];
        const std::string bound =
            i < Latency::kBounds.size() ? seconds(Latency::kBounds[i]) : "+Inf";
        labels.back().second = bound;
        text.sample(labels, below, "_bucket");
      }
      labels.pop_back();
      text.sample(labels, seconds(counters.latency.sum), "_sum");
      text.sample(labels, below, "_count");
    }
}

}  // namespace

void Latency::add(Duration took) noexcept {
  const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), took);
  ++counts[static_cast<std::size_t>(bound - kBounds.begin())];
  sum += took;
}

PathCounters& PeerCounters::for_path(std::string_view path) noexcept {
  for (PathCounters& each : paths) {
    if (each.path == path) return each;
    if (!each.path.empty()) continue;
    each.path = &each == &paths.back() ? "other" : path;
    return each;
  }
  return paths.back();
}

void PeerCounters::succeeded(std::string_view path, Work work, std::uint64_t bytes,
                             Duration took) noexcept {
  PathCounters& counters = for_path(path);
  ++counters.transfers[static_cast<std::size_t>(work)];
  counters.bytes[static_cast<std::size_t>(work)] += bytes;
  counters.latency.add(took);
}

void PeerCounters::add(const PeerCounters& other) noexcept {
  for (const PeerCounter each :
       {&PeerCounters::started, &PeerCounters::notifications_sent,
        &PeerCounters::notifications_received, &PeerCounters::imports,
        &PeerCounters::imports_failed, &PeerCounters::keys_sent, &PeerCounters::failovers})
    this->*each += other.*each;
  const auto sum_up = [](auto& into, const auto& from) {
    for (std::size_t i = 0; i < into.size(); ++i) into[i] += from[i];
  };
  sum_up(failed, other.failed);
  for (const PathCounters& theirs : other.paths) {
    if (theirs.path.empty()) continue;
    PathCounters& ours = for_path(theirs.path);
    sum_up(ours.transfers, theirs.transfers);
    sum_up(ours.bytes, theirs.bytes);
    sum_up(ours.latency.counts, theirs.latency.counts);
    ours.latency.sum += theirs.latency.sum;
  }
}

std::string metrics_text(const EngineMetrics& m) {
  Text text(m);
  text.family("engine_info", "gauge", "1 for each Engine.");
  text.sample({{"incarnation", m.incarnation}}, std::uint64_t{1});
  text.family("peers", "gauge", "Peers that are up.");
  text.sample({}, std::uint64_t{m.peers_up});
  text.family("regions", "gauge", "Registered regions, also of messages under way.");
  text.sample({}, std::uint64_t{m.regions});
  text.family("transfers_outstanding", "gauge", "Transfers that are not quiet.");
  for (const PeerMetrics& peer : m.peers)
    text.sample({{"peer", peer.id}, {"name", peer.name}}, std::uint64_t{peer.outstanding});
  text.family("transfers_queued", "gauge", "Of these, those that wait for room.");
  for (const PeerMetrics& peer : m.peers)
    text.sample({{"peer", peer.id}, {"name", peer.name}}, std::uint64_t{peer.queued});
  peer_family(text, m, "transfers_started_total", "Transfers that were taken.",
              &PeerCounters::started);
  path_family(text, m, "transfers_ok_total", "Transfers that went well.", &PathCounters::transfers);
  path_family(text, m, "bytes_total", "Of the transfers that went well.", &PathCounters::bytes);
  text.family("transfers_failed_total", "counter", "Transfers that ended otherwise.");
  for (const PeerMetrics& peer : m.peers)
    for (std::size_t code = 0; code < kCodes; ++code)
      if (peer.counters.failed[code] != 0)
        text.sample(
            {{"peer", peer.id}, {"name", peer.name}, {"code", name_of(static_cast<Code>(code))}},
            peer.counters.failed[code]);
  latencies(text, m);
  peer_family(text, m, "notifications_sent_total", "Also those that rode on a transfer.",
              &PeerCounters::notifications_sent);
  peer_family(text, m, "notifications_received_total", "Notifications that came.",
              &PeerCounters::notifications_received);
  peer_family(text, m, "imports_total", "Regions of the peer's that were imported.",
              &PeerCounters::imports);
  peer_family(text, m, "imports_failed_total", "Imports that failed.",
              &PeerCounters::imports_failed);
  peer_family(text, m, "keys_sent_total", "Regions of ours whose keys the peer asked for.",
              &PeerCounters::keys_sent);
  peer_family(text, m, "failovers_total",
              "Batches that went on over another transport because theirs had failed.",
              &PeerCounters::failovers);
  text.family("copies_total", "counter", "Orders to a copier, for peers as well.");
  for (const transport::CopyCount& each : m.copies)
    text.sample({{"copier", each.copier}}, each.orders);
  text.family("copied_blocks_total", "counter", "Blocks of these orders.");
  for (const transport::CopyCount& each : m.copies)
    text.sample({{"copier", each.copier}}, each.blocks);
  return text.release();
}

}  // namespace linkspan::engine
