#include "integrations/nccl/src/interfaces.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string_view>

namespace linkspan::nccl {
namespace {

constexpr int kUnknownSpeed = 100'000;

/// NCCL_SOCKET_IFNAME.
struct Choice {
  bool excludes = false, whole = false;
  std::vector<std::string_view> names;

  static Choice parse(std::string_view text) {
    Choice choice;
    choice.excludes = text.starts_with('^');
    if (choice.excludes) text.remove_prefix(1);
    choice.whole = text.starts_with('=');
    if (choice.whole) text.remove_prefix(1);
    while (!text.empty()) {
      const std::string_view name = text.substr(0, text.find(','));
      if (!name.empty()) choice.names.push_back(name);
      text.remove_prefix(std::min(text.size(), name.size() + 1));
    }
    return choice;
  }
  bool has(std::string_view interface) const {
    const bool named = std::ranges::any_of(names, [&](std::string_view each) {
      return whole ? interface == each : interface.starts_with(each);
    });
    return named != excludes;
  }
};

/// Returns "10.0.0.1" or "[fd00::1]"; empty: an address that only its own link knows.
std::string text_of(const sockaddr& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.sa_family == AF_INET) {
    const auto& of = reinterpret_cast<const sockaddr_in&>(address);
    return ::inet_ntop(AF_INET, &of.sin_addr, text.data(), text.size());
  }
  const auto& of = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_LINKLOCAL(&of.sin6_addr)) return {};
  return "[" + std::string(::inet_ntop(AF_INET6, &of.sin6_addr, text.data(), text.size())) + "]";
}

Result<std::vector<Interface>> find_all(const std::string& family) {
  if (!family.empty() && family != "AF_INET" && family != "AF_INET6")
    return Status(Code::invalid_argument, Scope::process,
                  "NCCL_SOCKET_FAMILY=\"" + family + "\": AF_INET or AF_INET6");
  ifaddrs* raw = nullptr;
  if (::getifaddrs(&raw) != 0)
    return Status(Code::system, Scope::process, "getifaddrs: no list of interfaces");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(raw, &::freeifaddrs);
  std::vector<Interface> all;
  for (const int wanted : {AF_INET, AF_INET6}) {  // an interface with both has the first
    if (family == (wanted == AF_INET ? "AF_INET6" : "AF_INET")) continue;
    for (const ifaddrs* each = list.get(); each != nullptr; each = each->ifa_next) {
      if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != wanted ||
          (each->ifa_flags & IFF_UP) == 0 ||
          std::ranges::find(all, each->ifa_name, &Interface::name) != all.end())
        continue;
      std::string address = text_of(*each->ifa_addr);
      if (address.empty()) continue;
      all.push_back({each->ifa_name, std::move(address), (each->ifa_flags & IFF_LOOPBACK) != 0});
    }
  }
  return all;
}

}  // namespace

Result<std::vector<Interface>> choose_interfaces(const std::string& names,
                                                 const std::string& family) {
  auto all = find_all(family);
  if (!all.ok()) return all.status();
  const Choice choice = Choice::parse(names.empty() ? std::string_view("^docker,lo") : names);
  std::vector<Interface> chosen;
  for (const Interface& each : *all)
    if (choice.has(each.name)) chosen.push_back(each);
  if (chosen.empty() && names.empty())
    for (const Interface& each : *all)
      if (each.loopback) chosen.push_back(each);
  if (!chosen.empty()) return chosen;
  std::string text =
      "NCCL_SOCKET_IFNAME=\"" + names + "\" names no interface that is up; there are";
  for (const Interface& each : *all) text += " " + each.name;
  return Status(Code::not_found, Scope::process, std::move(text));
}

int speed_of(const std::vector<Interface>& interfaces) {
  int sum = 0;
  for (const Interface& each : interfaces) {
    int speed = -1;
    std::ifstream("/sys/class/net/" + each.name + "/speed") >> speed;
    sum += speed > 0 ? speed : kUnknownSpeed;
  }
  return sum;
}

std::string pci_path_of(const Interface& interface) {
  std::error_code error;
  const auto path =
      std::filesystem::canonical("/sys/class/net/" + interface.name + "/device", error);
  return error ? std::string() : path.string();
}

}  // namespace linkspan::nccl
