#include "base/pci.hpp"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <system_error>

namespace linkspan::base {

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

}  // namespace linkspan::base
