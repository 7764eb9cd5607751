#include "transport/verbs/device.hpp"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "transport/verbs/gid.hpp"

namespace linkspan::transport::verbs {
namespace {

constexpr std::size_t kMaxRails = 16;
constexpr int kMaxEvents = 64;    // that one call handles
constexpr int kMaxEntries = 256;  // of a table that are read

Status failed(const std::string& device, const char* function, int error) {
  return {Code::system, Scope::transport,
          "RDMA device " + device + ": " + describe_error(function, error)};
}

/// Frees the list of devices.
class DeviceList {
 public:
  explicit DeviceList(const Library& library)
      : library_(library), list_(library.get_device_list(&count_)) {}
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;
  ~DeviceList() {
    if (list_ != nullptr) library_.free_device_list(list_);
  }
  std::span<IbvDevice*> all() const {
    return list_ == nullptr || count_ <= 0
               ? std::span<IbvDevice*>()
               : std::span<IbvDevice*>(list_, static_cast<std::size_t>(count_));
  }

 private:
  const Library& library_;
  int count_ = 0;
  IbvDevice** const list_;
};

/// Returns the entry that the settings or the rule choose; nullopt: the table has none.
std::optional<IbvGidEntry> find_gid(const VerbsDevice& device, std::uint8_t port,
                                    const IbvPortAttr& attr, const VerbsSettings& settings) {
  const Library& library = device.library();
  const auto link = static_cast<IbvLinkLayer>(attr.link_layer);
  std::vector<IbvGidEntry> entries;
  const int first = settings.gid_index ? static_cast<int>(*settings.gid_index) : 0;
  const int end = settings.gid_index ? first + 1 : std::min(attr.gid_tbl_len, kMaxEntries);
  for (int i = first; i < std::min(end, attr.gid_tbl_len); ++i) {
    IbvGidEntry entry{};
    if (library.query_gid_entry(device.context(), port, i, entry) != 0) continue;
    if (settings.gid_index) return is_unused(entry.gid) ? std::nullopt : std::optional(entry);
    entries.push_back(entry);
    if (link == kLinkInfiniband) break;
  }
  const IbvGidEntry* best = choose_gid(entries, link);
  return best != nullptr ? std::optional(*best) : std::nullopt;
}

std::optional<std::uint16_t> find_pkey(const VerbsDevice& device, std::uint8_t port,
                                       const IbvPortAttr& attr, std::uint16_t pkey) {
  for (int i = 0; i < std::min<int>(attr.pkey_tbl_len, kMaxEntries); ++i) {
    std::uint16_t found = 0;
    if (device.library().query_pkey(device.context(), port, i, &found) != 0) continue;
    found = static_cast<std::uint16_t>(found >> 8 | found << 8);  // it is in network order
    if ((found & 0x7fff) == (pkey & 0x7fff)) return static_cast<std::uint16_t>(i);
  }
  return std::nullopt;
}

}  // namespace

Result<std::shared_ptr<VerbsDevice>> VerbsDevice::open(const Library& library, IbvDevice* device) {
  const char* const name = library.get_device_name(device);
  errno = 0;
  IbvContext* const context = library.open_device(device);
  if (context == nullptr) return failed(name, "ibv_open_device", errno);
  std::error_code none;
  const auto path =
      std::filesystem::canonical(std::filesystem::path(device->ibdev_path) / "device", none);
  std::shared_ptr<VerbsDevice> made(new VerbsDevice(library, context, name, path.string()));
  if (Status status = made->set_up(); !status.ok()) return status;
  return made;
}

Status VerbsDevice::set_up() {
  if (const int error = library_.query_device(context_, &attributes_); error != 0)
    return failed(name_, "ibv_query_device", error);
  errno = 0;
  pd_ = library_.alloc_pd(context_);
  if (pd_ == nullptr) return failed(name_, "ibv_alloc_pd", errno);
  const int flags = ::fcntl(context_->async_fd, F_GETFL);
  if (flags < 0 || ::fcntl(context_->async_fd, F_SETFL, flags | O_NONBLOCK) != 0)
    return failed(name_, "fcntl", errno);
  return {};
}

VerbsDevice::~VerbsDevice() {
  if (pd_ != nullptr) (void)library_.dealloc_pd(pd_);
  (void)library_.close_device(context_);
}

void VerbsDevice::handle_events() noexcept {
  if (!events_mutex_.try_lock()) return;  // another thread does
  IbvAsyncEvent event{};
  for (int i = 0; i < kMaxEvents && library_.get_async_event(context_, &event) == 0; ++i) {
    handle(event);
    library_.ack_async_event(&event);
  }
  events_mutex_.unlock();
}

void VerbsDevice::handle(const IbvAsyncEvent& event) noexcept {
  const auto bit = [&event] {
    const int port = event.element.port_num;
    return port > 0 && port < 64 ? std::uint64_t{1} << port : 0;
  };
  switch (event.event_type) {
    case kEventDeviceFatal:
      failed_ = true;
      break;
    case kEventPortErr:
      ports_down_ |= bit();
      break;
    case kEventPortActive:
      ports_down_ &= ~bit();
      break;
    default:  // a queue pair's error comes with its completions
      break;
  }
}

Status VerbsDevice::usable(std::uint8_t port) const {
  if (failed_) return {Code::unreachable, Scope::transport, "RDMA device " + name_ + " has failed"};
  if (port < 64 && (ports_down_ >> port & 1) != 0)
    return {Code::unreachable, Scope::transport,
            "port " + std::to_string(port) + " of RDMA device " + name_ + " is down"};
  return {};
}

Result<Rail> find_rail(const std::shared_ptr<VerbsDevice>& device, std::uint8_t port,
                       const VerbsSettings& settings) {
  const std::string name = device->name() + " port " + std::to_string(port);
  const auto unusable = [&name](const std::string& why) {
    return Status(Code::not_found, Scope::transport, "RDMA device " + name + " " + why);
  };
  IbvPortAttr attr{};
  if (const int error = device->library().query_port(device->context(), port, attr); error != 0)
    return failed(name, "ibv_query_port", error);
  if (attr.state != kPortActive) return unusable("is not active: look at `ibv_devinfo`");
  Rail rail{.device = device,
            .port = port,
            .lid = attr.lid,
            .link = static_cast<IbvLinkLayer>(attr.link_layer),
            .mtu = std::min(attr.active_mtu, settings.mtu.value_or(attr.active_mtu)),
            .max_message = attr.max_msg_sz};
  if (attr.link_layer != kLinkInfiniband && attr.link_layer != kLinkEthernet)
    return unusable("is neither InfiniBand nor Ethernet");
  if (attr.active_mtu < kMtu256 || attr.active_mtu > kMtu4096 || attr.max_msg_sz < 4096)
    return unusable("has an MTU of number " + std::to_string(attr.active_mtu) +
                    " and messages of " + std::to_string(attr.max_msg_sz) + " bytes at most");
  const auto gid = find_gid(*device, port, attr, settings);
  if (!gid)
    return unusable(settings.gid_index ? "has no GID " + std::to_string(*settings.gid_index) +
                                             ": set verbs.gid_index as `show_gids` lists them"
                                       : "has no GID: give its network interface an address");
  rail.gid = gid->gid;
  rail.gid_index = static_cast<std::uint8_t>(gid->gid_index);
  if (settings.pkey) {
    const auto index = find_pkey(*device, port, attr, *settings.pkey);
    if (!index)
      return unusable("is not in the partition of verbs.pkey: `smpquery pkeys` lists its");
    rail.pkey_index = *index;
  }
  return rail;
}

Result<std::vector<Rail>> open_rails(const Library& library, const VerbsSettings& settings,
                                     const base::Log& log) {
  // For kernels before 5.12, where a fork would take pinned pages away from this process.
  if (const int error = library.fork_init(); error != 0)
    log.write(base::Level::warning, describe_error("ibv_fork_init", error) +
                                        ": do not fork while RDMA devices are in use");
  std::vector<Rail> rails;
  std::vector<std::string> names;
  const DeviceList list(library);
  Status refused;  // why a port that the user named is no rail
  for (IbvDevice* const each : list.all()) {
    names.emplace_back(library.get_device_name(each));
    const auto named = [&](const NamedPort& port) { return port.device == names.back(); };
    if (!settings.ports.empty() && std::ranges::none_of(settings.ports, named)) continue;
    auto device = VerbsDevice::open(library, each);
    if (!device.ok()) {
      if (refused.ok()) refused = device.status();
      log.write(base::Level::warning, device.status().what() + ": it is not used");
      continue;
    }
    for (unsigned port = 1; port <= (*device)->attributes().phys_port_cnt; ++port) {
      const auto number = static_cast<std::uint8_t>(port);
      if (!settings.wants(names.back(), number) || rails.size() == kMaxRails) continue;
      auto rail = find_rail(*device, number, settings);
      if (rail.ok())
        rails.push_back(*std::move(rail));
      else if (refused.ok())
        refused = rail.status();
    }
  }
  for (const NamedPort& port : settings.ports) {
    const bool found = std::ranges::any_of(rails, [&port](const Rail& rail) {
      return rail.device->name() == port.device && port.port.value_or(rail.port) == rail.port;
    });
    if (found) continue;
    if (!refused.ok()) return refused;
    std::string text = "verbs.devices names RDMA device \"" + port.device + "\"" +
                       (port.port ? " with a port " + std::to_string(*port.port) : "") +
                       ", which is not here; found are";
    for (const std::string& name : names) text += " " + name;
    return Status(Code::not_found, Scope::process, names.empty() ? text + " none" : text);
  }
  return rails;
}

}  // namespace linkspan::transport::verbs
