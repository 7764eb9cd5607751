#include "engine/diagnostics/metrics.hpp"

#include <gtest/gtest.h>

#include "engine/diagnostics/report.hpp"

namespace linkspan::engine {
namespace metrics_test {

using namespace std::chrono_literals;

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

EngineMetrics one_peer() {
  EngineMetrics all;
  all.engine = "of \"this\"";
  all.pid = "17";
  PeerMetrics peer{.id = "3", .name = "a \"quoted\\\n name", .outstanding = 2, .counters = {}};
  peer.counters.started = 5;
  peer.counters.succeeded("memfd+cpu_threads", Work::write, 4096, 20us);
  peer.counters.succeeded("memfd+cpu_threads", Work::write, 1, 10us);
  peer.counters.succeeded("memfd+cpu_threads", Work::receive, 7, 20s);
  peer.counters.failed[static_cast<std::size_t>(Code::timed_out)] = 4;
  all.peers.push_back(std::move(peer));
  all.copies = {{"sm_kernel", 3, 4000}};
  return all;
}

TEST(Metrics, ArePrometheusText) {
  const std::string text = metrics_text(one_peer());
  const std::string engine = R"({engine="of \"this\"",pid="17")";
  const std::string peer = engine + R"(,peer="3",name="a \"quoted\\\n name")";
  EXPECT_TRUE(has_line(text, "linkspan_peers" + engine + "} 0")) << text;
  EXPECT_TRUE(has_line(text, "# TYPE linkspan_transfers_started_total counter")) << text;
  EXPECT_TRUE(has_line(text, "linkspan_transfers_started_total" + peer + "} 5")) << text;
  EXPECT_TRUE(has_line(text, "linkspan_transfers_outstanding" + peer + "} 2")) << text;
  const std::string path = R"(,path="memfd+cpu_threads")";
  EXPECT_TRUE(has_line(text, "linkspan_bytes_total" + peer + R"(,op="write")" + path + "} 4097"))
      << text;
  EXPECT_TRUE(
      has_line(text, "linkspan_transfers_ok_total" + peer + R"(,op="receive")" + path + "} 1"))
      << text;
  EXPECT_TRUE(has_line(text, "linkspan_transfers_failed_total" + peer + R"(,code="timed_out"} 4)"))
      << text;
  const auto bucket = [&](const char* bound, int count) {
    return has_line(text, "linkspan_transfer_seconds_bucket" + peer + path + ",le=\"" + bound +
                              "\"} " + std::to_string(count));
  };
  EXPECT_TRUE(bucket("1e-05", 1) && bucket("3e-05", 2) && bucket("10", 2) && bucket("+Inf", 3))
      << text;
  EXPECT_TRUE(has_line(text, "linkspan_transfer_seconds_count" + peer + path + "} 3")) << text;
  EXPECT_TRUE(has_line(text, "linkspan_transfer_seconds_sum" + peer + path + "} 20.00003")) << text;
  EXPECT_TRUE(
      has_line(text, "linkspan_copied_blocks_total" + engine + R"(,copier="sm_kernel"} 4000)"))
      << text;
}

TEST(Metrics, PathsBeyondTheLastAreOthers) {
  static const std::string kNames = "abcdefghijklmnopqrst";
  PeerCounters counters, sum;
  for (std::size_t i = 0; i < kNames.size(); ++i)
    counters.succeeded(std::string_view(kNames).substr(i, 1), Work::read, 1, 1us);
  EXPECT_EQ(counters.paths.back().path, "other");
  const std::size_t others = kNames.size() - PeerCounters::kPaths + 1;
  EXPECT_EQ(counters.paths.back().bytes[static_cast<std::size_t>(Work::read)], others);
  sum.add(counters);
  sum.add(counters);
  EXPECT_EQ(sum.for_path("b").bytes[static_cast<std::size_t>(Work::read)], 2u);
  EXPECT_EQ(sum.for_path("other").latency.counts[0], 2 * others);
}

TEST(Report, NamesOfPeersAreNotObeyed) {
  EXPECT_EQ(quoted("a\nb\x1b[2J\"c"), "\"a?b?[2J?c\"");
  EXPECT_EQ(age_of(9999ms), "9999 ms");
  EXPECT_EQ(age_of(12345ms), "12.3 s");
  EXPECT_EQ(hex_of(0xbeef), "000000000000beef");
}

TEST(Report, ListsEnd) {
  Listing listing("things");
  std::size_t shown = 0;
  for (std::size_t i = 0; i < Listing::kMax; ++i) shown += listing.room() ? 1 : 0;
  EXPECT_EQ(listing.more(), "");
  for (int i = 0; i < 3; ++i) shown += listing.room() ? 1 : 0;
  EXPECT_EQ(shown, Listing::kMax);
  EXPECT_EQ(listing.more(), "and 3 more things\n");
  EXPECT_EQ(listing.rest(), " and 3 more");
}

}  // namespace metrics_test
}  // namespace linkspan::engine
