// p2p/tcpx/tests/program.hpp - what the two programs with a peer have in common: their arguments.
//
// Threads: the main thread.
#pragma once

#include <getopt.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "p2p/tcpx/tcpx_run.hpp"

namespace linkspan::tcpx_tests {

/// Parses `server`, or `client SERVER_IP`, and options. None: bad usage, which was printed.
inline std::optional<tool::TcpxPlan> parse(int argc, char** argv) {
  const option known[] = {{"port", 1, nullptr, 'p'},    {"plugin", 1, nullptr, 'n'},
                          {"device", 1, nullptr, 'd'},  {"unpack", 1, nullptr, 'u'},
                          {"timeout", 1, nullptr, 't'}, {nullptr, 0, nullptr, 0}};
  tool::TcpxPlan plan;
  bool good = true;
  const auto number = [&good](const char* text, unsigned long most) {
    char* end = nullptr;
    const unsigned long value = std::strtoul(text, &end, 10);
    good = good && *text >= '0' && *text <= '9' && *end == '\0' && value <= most;
    return static_cast<unsigned>(value);
  };
  for (int found = 0; (found = getopt_long(argc, argv, "", known, nullptr)) != -1;) switch (found) {
      case 'p':
        plan.port = number(optarg, 65535);
        break;
      case 'n':
        plan.plugin = optarg;
        break;
      case 'd':
        plan.device = number(optarg, 1023);
        break;
      case 'u':
        plan.unpack = optarg;
        break;
      case 't':
        plan.timeout = std::chrono::seconds(number(optarg, 86400));
        break;
      default:
        good = false;
    }
  const char* const side = optind < argc ? argv[optind] : "";
  plan.server = std::strcmp(side, "server") == 0;
  if (!plan.server && optind + 1 < argc) plan.host = argv[optind + 1];
  good = good && (plan.server || std::strcmp(side, "client") == 0) &&
         argc - optind == (plan.server ? 1 : 2) && plan.port != 0;
  if (good) return plan;
  std::fprintf(stderr,
               "usage: %s server | client SERVER_IP\n"
               "  [--port N (12345)] [--plugin NAMES] [--device N] [--unpack d2d|host|kernel] "
               "[--timeout SECONDS (30)]\n",
               argv[0]);
  return std::nullopt;
}

}  // namespace linkspan::tcpx_tests
