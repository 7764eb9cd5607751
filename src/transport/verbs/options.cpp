#include "transport/verbs/options.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "transport/factory.hpp"
#include "transport/verbs/gid.hpp"
#include "transport/verbs/nearest.hpp"
#include "transport/verbs/verbs_transport.hpp"

namespace linkspan::transport::verbs {
namespace {

constexpr base::OptionInfo kOptions[] = {
    {"verbs.devices", "LINKSPAN_VERBS_DEVICES", "auto, none, or names by comma",
     "auto where security is authenticated or insecure, else none",
     "RDMA devices (InfiniBand, RoCE) by which remote peers are reached, such as mlx5_0 or port 2 "
     "of it as mlx5_0:2. auto: all with an active port. none: no bytes go by RDMA. Their packets "
     "are not encrypted: with LINKSPAN_SECURITY=encrypted they are used only where this is set."},
    {"verbs.gid_index", "LINKSPAN_VERBS_GID_INDEX", "0 to 255",
     "RoCE: v2 with an IPv4 address if there is one; InfiniBand: 0",
     "Entry of each port's table of GIDs, as show_gids lists them."},
    {"verbs.traffic_class", "LINKSPAN_VERBS_TRAFFIC_CLASS", "0 to 255", "0",
     "Traffic class of RoCE packets: four times the DSCP by which switches choose their queue."},
    {"verbs.sl", "LINKSPAN_VERBS_SL", "0 to 15", "0", "Service level of InfiniBand packets."},
    {"verbs.pkey", "LINKSPAN_VERBS_PKEY", "0x1 to 0xffff", "the first of the port's table",
     "Partition of an InfiniBand fabric that both sides are in."},
    {"verbs.mtu", "LINKSPAN_VERBS_MTU", "256, 512, 1024, 2048 or 4096",
     "the smaller one of both ports", "Bytes of an RDMA packet at most."},
};
constexpr const base::OptionInfo& kDevices = kOptions[0];
constexpr const base::OptionInfo& kGidIndex = kOptions[1];
constexpr const base::OptionInfo& kTrafficClass = kOptions[2];
constexpr const base::OptionInfo& kServiceLevel = kOptions[3];
constexpr const base::OptionInfo& kPkey = kOptions[4];
constexpr const base::OptionInfo& kMtu = kOptions[5];
constexpr const char* kDevicesRemedy =
    "set auto, none, or devices as `ibv_devices` lists them, such as mlx5_0,mlx5_1:2";

constexpr const char* kAcsRemedy =
    "turn ACS redirection of these bridges off (in the BIOS, or by setpci), unless virtual "
    "machines "
    "need it: GPUs and RDMA devices below one switch reach each other directly then";

template <class Number>
std::optional<Number> parse(std::string_view text, int base) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

Result<std::vector<NamedPort>> parse_ports(const base::Setting& set) {
  std::vector<NamedPort> all;
  std::string_view left = set.value;
  while (true) {
    const std::size_t comma = left.find(',');
    const std::string_view each = left.substr(0, comma);
    const std::size_t colon = each.find(':');
    NamedPort named{.device = std::string(each.substr(0, colon))};
    if (colon != each.npos) named.port = parse<std::uint8_t>(each.substr(colon + 1), 10);
    const bool bad_port = colon != each.npos && named.port.value_or(0) == 0;
    if (named.device.empty() || bad_port) return set.refused(kDevicesRemedy);
    all.push_back(std::move(named));
    if (comma == left.npos) return all;
    left.remove_prefix(comma + 1);
  }
}

/// Reads a hexadecimal number with or without 0x.
Status read_pkey(const base::Setting& set, std::optional<std::uint16_t>& into) {
  if (set.value.empty()) return {};
  std::string_view digits = set.value;
  if (digits.starts_with("0x") || digits.starts_with("0X")) digits.remove_prefix(2);
  into = parse<std::uint16_t>(digits, 16);
  // The highest bit says full member; 0 is no partition.
  if (!into || (*into & 0x7fff) == 0)
    return set.refused("set a number that the port's table has, such as 0xffff");
  return {};
}

Status read_mtu(const base::Setting& set, std::optional<IbvMtu>& into) {
  if (set.value.empty()) return {};
  for (const IbvMtu mtu : {kMtu256, kMtu512, kMtu1024, kMtu2048, kMtu4096})
    if (set.value == std::to_string(bytes_of(mtu))) into = mtu;
  return into ? Status() : set.refused("set 256, 512, 1024, 2048 or 4096");
}

template <class Number>
Status read_small(const base::Setting& set, std::uint64_t max, Number& into) {
  std::uint64_t number = 0;
  if (set.value.empty()) return {};
  if (Status status = set.read_number(0, max, number); !status.ok()) return status;
  into = static_cast<std::uint8_t>(number);
  return {};
}

/// Returns whether devices are used that the user has not asked for. Packets are not encrypted, and
/// an Engine that does not leave its host would pin memory for nothing.
bool is_wanted(const base::Options& options) noexcept {
  return options.security != Security::encrypted && options.security != Security::loopback_only;
}

/// Lists the active ports, and what keeps memory from being registered.
Finding find(const base::Options& options) {
  Finding out{.area = "rdma", .name = "devices", .found = {}, .remedy = {}};
  const auto settings = VerbsSettings::read(options);
  if (!settings.ok()) return out;
  const auto library = Library::get();
  if (!library.ok()) {
    out.found = "none: " + library.status().what();
    return out;
  }
  const base::Log quiet(base::Level::off, base::stderr_sink());
  const auto rails = open_rails(**library, *settings, quiet);
  if (!rails.ok()) {
    out.found = rails.status().what();
    out.remedy = kDevicesRemedy;
    return out;
  }
  std::vector<PlacedDevice> placed;
  for (const Rail& rail : *rails) {
    placed.push_back({rail.name(), rail.device->pci_path()});
    out.found += (out.found.empty() ? "" : ", ") + rail.name() +
                 (rail.link == kLinkInfiniband ? " (InfiniBand, GID " : " (RoCE, GID ") +
                 to_string(rail.gid) + ", MTU " + std::to_string(bytes_of(rail.mtu)) + ")";
  }
  out.present = !rails->empty();
  if (!out.present) {
    out.found = "none with an active port";
    return out;
  }
  if (settings->none || (!settings->asked && !is_wanted(options)))
    out.found += "; not used: verbs.devices is none";
  out.found += ::access("/sys/module/nvidia_peermem", F_OK) == 0
                   ? "; GPU memory by DMA-BUF or nvidia-peermem"
                   : "; GPU memory by DMA-BUF: nvidia-peermem is not loaded";
  const Nearest near = find_nearest(placed);
  if (!near.text.empty()) out.found += "; nearest to " + near.text;
  if (near.redirected) out.remedy = kAcsRemedy;
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return out;
  out.found += "; this process may lock " + std::to_string(limit.rlim_cur) + " bytes";
  out.remedy += out.remedy.empty() ? "" : "; ";
  out.remedy +=
      "raise RLIMIT_MEMLOCK by `ulimit -l unlimited`, LimitMEMLOCK of systemd or --ulimit "
      "memlock=-1 of docker";
  return out;
}

Status check(const base::Options& options) { return VerbsSettings::read(options).status(); }

Result<std::unique_ptr<Transport>> create(const Context& context) {
  const auto settings = VerbsSettings::read(*context.options);
  if (!settings.ok()) return settings.status();
  if (settings->none || (!settings->asked && !is_wanted(*context.options)))
    return std::unique_ptr<Transport>();
  const auto library = Library::get();
  if (!library.ok())
    return settings->ports.empty() ? Result<std::unique_ptr<Transport>>(nullptr) : library.status();
  auto rails = open_rails(**library, *settings, *context.log);
  if (!rails.ok()) return rails.status();
  if (rails->empty()) return std::unique_ptr<Transport>();
  return std::unique_ptr<Transport>(
      std::make_unique<VerbsTransport>(VerbsOptions{.rails = *std::move(rails),
                                                    .settings = *settings,
                                                    .topology = context.topology,
                                                    .incarnation = context.incarnation}));
}

}  // namespace

bool VerbsSettings::wants(std::string_view device, std::uint8_t port) const {
  return ports.empty() || std::ranges::any_of(ports, [&](const NamedPort& each) {
           return each.device == device && each.port.value_or(port) == port;
         });
}

Result<VerbsSettings> VerbsSettings::read(const base::Options& options) {
  VerbsSettings out;
  const base::Setting devices = options.setting_of(kDevices);
  out.none = devices.value == "none";
  out.asked = !devices.value.empty();
  if (!devices.value.empty() && devices.value != "auto" && !out.none) {
    auto ports = parse_ports(devices);
    if (!ports.ok()) return ports.status();
    out.ports = *std::move(ports);
  }
  const auto set = [&options](const base::OptionInfo& info) { return options.setting_of(info); };
  if (Status s = read_small(set(kGidIndex), 255, out.gid_index); !s.ok()) return s;
  if (Status s = read_small(set(kTrafficClass), 255, out.traffic_class); !s.ok()) return s;
  if (Status s = read_small(set(kServiceLevel), 15, out.service_level); !s.ok()) return s;
  if (Status s = read_pkey(set(kPkey), out.pkey); !s.ok()) return s;
  if (Status s = read_mtu(set(kMtu), out.mtu); !s.ok()) return s;
  return out;
}

extern constinit const Factory factory{
    .options = kOptions, .check = check, .create = create, .find = find};

}  // namespace linkspan::transport::verbs
