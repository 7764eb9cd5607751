#include "integrations/nixl/src/options.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

namespace linkspan::nixl {
namespace {

constexpr std::string_view kTransport[] = {
    "tcp.interfaces",  "tcp.connections",     "nccl_net.plugin", "nccl_net.unpack", "verbs.devices",
    "verbs.gid_index", "verbs.traffic_class", "verbs.sl",        "verbs.pkey",      "verbs.mtu"};
// Parameters of UCX and LIBFABRIC that programs pass to any backend.
constexpr std::string_view kIgnored[] = {"num_threads",
                                         "num_workers",
                                         "num_cpus",
                                         "device_list",
                                         "engine_config",
                                         "split_batch_size",
                                         "ucx_devices",
                                         "ucx_num_device_channels",
                                         "ucx_error_handling_mode"};

constexpr double kMinDeadline = 1e-9, kMaxDeadline = 86400;
constexpr std::string_view kYes = "yes";

bool is_yes_or_no(const std::string& value) { return value == kYes || value == "no"; }

std::optional<double> number_of(const std::string& text) {
  double out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return out;
}

Status refused(const std::string& name, const std::string& value, const char* allowed) {
  return {Code::invalid_argument, Scope::process,
          "parameter " + name + "=\"" + value + "\": " + allowed};
}

std::optional<unsigned> count_of(const std::string& text) {
  unsigned out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return out;
}

}  // namespace

Result<BackendOptions> BackendOptions::parse(const abi::Parameters& parameters) {
  BackendOptions out;
  for (const auto& [name, value] : parameters) {
    if (name == "deadline_s") {
      const auto seconds = number_of(value);
      if (!seconds || !(*seconds >= kMinDeadline && *seconds <= kMaxDeadline))
        return refused(name, value, "a number of seconds from 1e-9 to 86400");
      out.deadline = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(*seconds));
    } else if (name == "listen") {
      if (value != "none" && value.rfind("tcp:", 0) != 0)
        return refused(name, value,
                       "\"tcp:HOST:PORT\" with an address of this host, or \"none\" for peers of "
                       "this host only");
      out.listen = value == "none" ? "" : value;
    } else if (name == "unix_socket") {
      if (!is_yes_or_no(value))
        return refused(name, value, "\"yes\", or \"no\" to connect by TCP within the host too");
      out.unix_socket = value == kYes;
    } else if (name == "low_latency") {
      if (!is_yes_or_no(value))
        return refused(name, value, "\"yes\" for a kernel that stays on an SM, or \"no\"");
      out.transfer.low_latency = value == kYes;
    } else if (name == "require") {
      out.transfer.require = value;
    } else if (name == "cpu_threads") {
      const auto count = count_of(value);
      if (!count) return refused(name, value, "a number of threads; 0 is the default");
      out.engine.cpu_threads = *count;
    } else if (name == "copy_ctas") {
      const auto count = count_of(value);
      if (!count) return refused(name, value, "a number of CTAs; 0 uses copy engines only");
      out.engine.copy_ctas = *count;
    } else if (std::ranges::find(kTransport, name) != std::end(kTransport)) {
      out.engine.transport[name] = value;
    } else if (std::ranges::find(kIgnored, name) == std::end(kIgnored)) {
      out.unknown.push_back(name);
    }
  }
  if (!out.unix_socket && out.listen.empty())
    return refused("unix_socket", "no", "\"yes\" with listen=\"none\", else no peer could connect");
  return out;
}

abi::Parameters BackendOptions::defaults() {
  abi::Parameters out{{"deadline_s", "30"},   {"listen", BackendOptions().listen},
                      {"unix_socket", "yes"}, {"low_latency", "no"},
                      {"require", ""},        {"cpu_threads", "0"}};
  for (std::string_view name : kTransport) out.emplace(name, "");
  return out;
}

}  // namespace linkspan::nixl
