#include "base/pci.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

namespace linkspan::base {
namespace {

constexpr std::size_t kFirstExtended = 0x100, kConfigBytes = 4096;
constexpr unsigned kAcs = 0x000d, kAcsControl = 6;
constexpr unsigned kRequestRedirect = 1u << 2, kCompletionRedirect = 1u << 3;

bool redirects(const std::filesystem::path& bridge) {
  std::ifstream file(bridge / "config", std::ios::binary);
  const std::string config{std::istreambuf_iterator<char>(file), {}};
  const auto word = [&config](std::size_t at) {
    return at + 1 < config.size()
               ? static_cast<unsigned char>(config[at]) |
                     static_cast<unsigned>(static_cast<unsigned char>(config[at + 1])) << 8
               : 0u;
  };
  std::size_t at = kFirstExtended;
  // A list that does not end is longer than the space has room for.
  for (std::size_t seen = 0; at >= kFirstExtended && seen < kConfigBytes / 8; ++seen) {
    if (word(at) == kAcs)
      return (word(at + kAcsControl) & (kRequestRedirect | kCompletionRedirect)) != 0;
    at = word(at + 2) >> 4;
  }
  return false;
}

}  // namespace

std::string pci_path_of(const std::string& bus_id, const std::string& sysfs) {
  std::string name = bus_id;  // CUDA writes capitals, sysfs does not
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::error_code error;
  const auto path = std::filesystem::canonical(sysfs + "/bus/pci/devices/" + name, error);
  return error ? std::string() : path.string();
}

std::size_t shared_bridges(const std::string& a, const std::string& b) {
  const std::filesystem::path one = a, other = b;
  const auto ends = std::mismatch(one.begin(), one.end(), other.begin(), other.end());
  return static_cast<std::size_t>(std::distance(one.begin(), ends.first));
}

std::string acs_redirect(const std::string& a, const std::string& b) {
  const auto shared = static_cast<std::ptrdiff_t>(shared_bridges(a, b));
  for (const std::filesystem::path device : {a, b}) {
    const auto depth = std::distance(device.begin(), device.end());
    auto bridge = device.parent_path();
    for (auto at = depth - 1; at > shared; --at, bridge = bridge.parent_path())
      if (redirects(bridge)) return bridge.filename();
  }
  return {};
}

}  // namespace linkspan::base
