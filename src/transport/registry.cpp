#include "transport/registry.hpp"

#include <algorithm>
#include <string_view>

namespace linkspan::transport {

// A line for each transport, best first.
#define LINKSPAN_TRANSPORTS(X) X(local) X(verbs) X(nccl_net) X(tcp)

#define LINKSPAN_DECLARE(folder) \
  namespace folder {             \
  extern const Factory factory;  \
  }
LINKSPAN_TRANSPORTS(LINKSPAN_DECLARE)
#undef LINKSPAN_DECLARE

namespace {

#define LINKSPAN_FACTORY(folder) &folder::factory,
constexpr const Factory* kFactories[] = {LINKSPAN_TRANSPORTS(LINKSPAN_FACTORY)};
#undef LINKSPAN_FACTORY

/// Returns the keys that EngineOptions::transport takes.
std::vector<std::string_view> keys() {
  std::vector<std::string_view> all;
  for (const Factory* each : kFactories)
    for (const base::OptionInfo& option : each->options)
      if (const std::string_view name(option.name); name.find(' ') == name.npos)
        all.push_back(name);
  return all;
}

}  // namespace

Result<std::vector<std::unique_ptr<Transport>>> create_all(const Context& context) {
  std::vector<std::unique_ptr<Transport>> all;
  for (const Factory* each : kFactories) {
    auto made = each->create(context);
    if (!made.ok()) return made.status();
    if (*made != nullptr) all.push_back(*std::move(made));
  }
  return all;
}

std::vector<base::OptionInfo> option_table() {
  const auto common = base::option_table();
  std::vector<base::OptionInfo> all(common.begin(), common.end());
  for (const Factory* each : kFactories)
    all.insert(all.end(), each->options.begin(), each->options.end());
  return all;
}

Status check_options(const base::Options& options) {
  const std::vector<std::string_view> known = keys();
  for (const auto& [key, value] : options.transport) {
    if (std::ranges::find(known, key) != known.end()) continue;
    std::string text = "EngineOptions::transport has no \"" + key + "\"; known are";
    for (const std::string_view each : known)
      text.append(each == known.front() ? " " : ", ").append(each);
    return {Code::invalid_argument, Scope::process, std::move(text)};
  }
  for (const Factory* each : kFactories)
    if (each->check != nullptr)
      if (Status s = each->check(options); !s.ok()) return s;
  return {};
}

Result<std::vector<net::Interface>> interfaces(const base::Options& options) {
  std::vector<net::Interface> all;
  for (const Factory* each : kFactories) {
    if (each->interfaces == nullptr) continue;
    auto named = each->interfaces(options);
    if (!named.ok()) return named.status();
    all.insert(all.end(), named->begin(), named->end());
  }
  return all;
}

Result<Duration> peer_timeout(const base::Options& options) {
  Duration longest{0};
  for (const Factory* each : kFactories) {
    if (each->peer_timeout == nullptr) continue;
    const auto time = each->peer_timeout(options);
    if (!time.ok()) return time.status();
    longest = std::max(longest, *time);
  }
  return longest;
}

std::vector<Finding> findings(const base::Options& options) {
  std::vector<Finding> all;
  for (const Factory* each : kFactories)
    if (each->find != nullptr) all.push_back(each->find(options));
  return all;
}

}  // namespace linkspan::transport
