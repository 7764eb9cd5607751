// tests/support/fake_verbs/device.cpp - the list of devices, contexts, ports and GIDs.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/support/fake_verbs/fake_verbs.hpp"

namespace linkspan::transport::verbs::fake {
namespace {

constexpr std::size_t kOldPortAttrBytes = offsetof(IbvPortAttr, port_cap_flags2);
constexpr std::uint32_t kGenerations = 15;  // that a GID tells apart

std::uint64_t guid_of(std::uint32_t host, std::uint32_t device) {
  return __builtin_bswap64(0x0200'00ff'fe00'0000U | std::uint64_t{device} << 16 | host);
}

int query_port_whole(IbvContext* context, std::uint8_t port_num, IbvPortAttr* attr,
                     std::size_t bytes) {
  const ContextObject& c = object(context);
  if (gone() || c.lost()) return EIO;
  if (port_num != kPorts) return EINVAL;
  const Settings& s = settings();
  IbvPortAttr port{};
  port.state = c.device->port_down != 0 ? kPortDown : kPortActive;
  port.max_mtu = kMtu4096;
  port.active_mtu = kMtu256;
  for (std::int64_t mtu = 256; mtu < s.mtu && port.active_mtu < kMtu4096; mtu *= 2)
    port.active_mtu = static_cast<IbvMtu>(port.active_mtu + 1);
  port.gid_tbl_len = kGids;
  port.max_msg_sz = 1U << 30;
  port.pkey_tbl_len = 1;
  port.active_width = 2;   // 4 lanes
  port.active_speed = 64;  // 50 Gb/s each
  port.phys_state = c.device->port_down != 0 ? 3 : 5;
  port.link_layer = s.infiniband != 0 ? kLinkInfiniband : kLinkEthernet;
  if (s.infiniband != 0)
    port.lid = static_cast<std::uint16_t>(own_segment().number * 16 + 1 + c.device_index);
  port.port_cap_flags2 = 1;
  std::memcpy(attr, &port, std::min(bytes, sizeof port));
  return 0;
}

bool open_pipe(int& read_fd, int& write_fd) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return false;
  fcntl(fds[1], F_SETFL, O_NONBLOCK);
  read_fd = fds[0];
  write_fd = fds[1];
  return true;
}

void start(ContextObject& context) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  context.thread = std::thread([&context] { run(context); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

IbvGid gid_of(const Address& a) {
  IbvGid gid{};
  if (a.ipv4) {
    gid.raw[10] = gid.raw[11] = 0xff;
    gid.raw[12] = 10;
    gid.raw[13] = static_cast<std::uint8_t>(a.device + kDevices * (a.generation % kGenerations));
  } else {
    gid.raw[0] = 0xfe;
    gid.raw[1] = 0x80;
    gid.raw[8] = 2;
    gid.raw[11] = 0xff;
    gid.raw[12] = 0xfe;
    gid.raw[13] = static_cast<std::uint8_t>(a.device);
  }
  gid.raw[14] = static_cast<std::uint8_t>(a.host >> 8);
  gid.raw[15] = static_cast<std::uint8_t>(a.host);
  return gid;
}

bool parse_gid(const IbvGid& gid, Address& a) {
  a.ipv4 = gid.raw[0] == 0;
  a.device = gid.raw[13] % kDevices;
  a.generation = gid.raw[13] / kDevices;
  a.host = static_cast<std::uint32_t>(gid.raw[14] << 8 | gid.raw[15]);
  const IbvGid same = gid_of(a);
  return std::memcmp(same.raw, gid.raw, sizeof same.raw) == 0;
}

bool gid_entry(const ContextObject& context, int index, Address& a, std::uint32_t& type) {
  const bool infiniband = settings().infiniband != 0;
  // RoCE: entries 0 and 1 have the link's address, 2 and 4 the IPv4 one, in versions 1 and 2.
  if (infiniband ? index != 0 : index < 0 || index > 4 || index == 3) return false;
  a = {.host = own_segment().number,
       .device = context.device_index,
       .generation = 0,
       .ipv4 = index >= 2};
  if (a.ipv4) a.generation = context.device->generation % kGenerations;
  type = infiniband ? kGidIb : index == 1 || index == 4 ? kGidRoceV2 : kGidRoceV1;
  return true;
}

std::shared_ptr<Host> find_host(std::uint32_t number) {
  World& w = world();
  const std::lock_guard lock(w.mutex);
  if (number == own_segment().number) return w.host;
  // Forgets objects that have ended and that no queue pair uses.
  std::erase_if(w.others, [](const auto& each) {
    return each.second == nullptr || (each.second.use_count() == 1 && !each.second->alive());
  });
  std::shared_ptr<Host>& known = w.others[number];
  if (known == nullptr || !known->alive()) known = Host::attach(number);
  return known;
}

FAKE_VERBS_EXPORT IbvDevice** ibv_get_device_list(int* count) {
  if (gone()) {
    errno = EIO;
    return nullptr;
  }
  World& w = world();
  const std::lock_guard lock(w.mutex);
  const auto devices =
      static_cast<std::size_t>(std::clamp<std::int64_t>(settings().devices, 0, kDevices));
  while (w.devices.size() < devices) {
    auto made = std::make_unique<DeviceObject>();
    made->node_type = kNodeCa;
    made->transport_type = kTransportIb;
    made->index = static_cast<std::uint32_t>(w.devices.size());
    const std::string number = std::to_string(w.devices.size());
    const char* const sysfs = std::getenv("FAKE_VERBS_SYSFS");
    const std::string root = sysfs != nullptr ? sysfs : "/nonexistent";
    std::strncpy(made->name, ("fake" + number).c_str(), sizeof made->name - 1);
    std::strncpy(made->dev_name, ("uverbs" + number).c_str(), sizeof made->dev_name - 1);
    std::strncpy(made->dev_path, (root + "/infiniband_verbs/uverbs" + number).c_str(),
                 sizeof made->dev_path - 1);
    std::strncpy(made->ibdev_path, (root + "/infiniband/fake" + number).c_str(),
                 sizeof made->ibdev_path - 1);
    w.devices.push_back(std::move(made));
  }
  auto** const list = static_cast<IbvDevice**>(std::calloc(devices + 1, sizeof(IbvDevice*)));
  if (list == nullptr) return nullptr;
  for (std::size_t i = 0; i < devices; ++i) list[i] = w.devices[i].get();
  if (count != nullptr) *count = static_cast<int>(devices);
  return list;
}

FAKE_VERBS_EXPORT void ibv_free_device_list(IbvDevice** list) { std::free(list); }

FAKE_VERBS_EXPORT const char* ibv_get_device_name(IbvDevice* device) { return device->name; }

FAKE_VERBS_EXPORT IbvContext* ibv_open_device(IbvDevice* device) {
  World& w = world();
  const std::lock_guard lock(w.mutex);
  errno = EIO;
  if (gone()) return nullptr;
  if (w.host == nullptr) w.host = Host::claim();
  if (w.host == nullptr) return nullptr;
  Segment& segment = w.host->segment();
  std::uint32_t index = 0;
  while (index < kContexts && segment.contexts[index].events != 0) ++index;
  errno = EMFILE;
  auto made = std::make_unique<ContextObject>();
  if (index == kContexts || !open_pipe(made->context.async_fd, made->events_fd)) return nullptr;
  made->index = index;
  made->serial = ++w.last_serial;
  made->device_index = static_cast<DeviceObject*>(device)->index;
  made->device = &segment.devices[made->device_index];
  made->query_port = query_port_whole;
  made->sz = sizeof(IbvExtendedContext);
  made->context.device = device;
  made->context.cmd_fd = -1;
  made->context.num_comp_vectors = 4;
  made->context.abi_compat = reinterpret_cast<void*>(UINTPTR_MAX);
  made->context.ops.poll_cq = poll_cq;
  made->context.ops.req_notify_cq = req_notify_cq;
  made->context.ops.post_send = post_send;
  made->context.ops.post_recv = post_recv;
  pthread_mutex_init(&made->context.mutex, nullptr);
  made->random = make_random(std::uint64_t{segment.number} << 32 | made->serial);
  ContextShared& shared = segment.contexts[index];
  shared.serial = made->serial;
  shared.events = made->events_fd + 1;
  w.contexts.push_back(made.get());
  start(*made);
  errno = 0;
  return &made.release()->context;
}

FAKE_VERBS_EXPORT int ibv_close_device(IbvContext* context) {
  ContextObject* const c = &object(context);
  if (world().forked) return EIO;
  // The kernel ends what its user has left: nothing lands by it any more.
  while (true) {
    QpObject* left = nullptr;
    {
      const Turns::Call call(c->turns);
      if (!c->qps.empty()) left = c->qps.back();
    }
    if (left == nullptr) break;
    if (const int error = ibv_destroy_qp(left); error != 0) return error;
  }
  c->stop = true;
  world().host->wake(c->index);
  if (c->thread.joinable()) c->thread.join();
  World& w = world();
  const std::lock_guard lock(w.mutex);
  std::erase(w.contexts, c);
  own_segment().contexts[c->index].events = 0;
  close(context->async_fd);
  close(c->events_fd);
  pthread_mutex_destroy(&context->mutex);
  delete c;
  return 0;
}

FAKE_VERBS_EXPORT int ibv_query_device(IbvContext* context, IbvDeviceAttr* attr) {
  const ContextObject& c = object(context);
  if (gone() || c.lost()) return EIO;
  const Settings& s = settings();
  *attr = {};
  std::strncpy(attr->fw_ver, "simulated", sizeof attr->fw_ver - 1);
  attr->node_guid = attr->sys_image_guid = guid_of(own_segment().number, c.device_index);
  attr->max_mr_size = static_cast<std::uint64_t>(s.max_mr_size.load());
  attr->page_size_cap = 0xfffff000;
  attr->max_qp = kQps;
  attr->max_qp_wr = static_cast<int>(s.max_qp_wr);
  attr->max_sge = attr->max_sge_rd = static_cast<int>(s.max_sge);
  attr->max_cq = kCqs;
  attr->max_cqe = static_cast<int>(s.max_cqe);
  attr->max_mr = kMrs;
  attr->max_pd = 1 << 20;
  attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = static_cast<int>(s.max_rd_atomic);
  attr->max_res_rd_atom = attr->max_qp_rd_atom * attr->max_qp;
  attr->max_pkeys = 1;
  attr->local_ca_ack_delay = 16;
  attr->phys_port_cnt = kPorts;
  return 0;
}

FAKE_VERBS_EXPORT int ibv_query_port(IbvContext* context, std::uint8_t port_num,
                                     IbvPortAttr* attr) {
  return query_port_whole(context, port_num, attr, kOldPortAttrBytes);
}

FAKE_VERBS_EXPORT int _ibv_query_gid_ex(IbvContext* context, std::uint32_t port_num,
                                        std::uint32_t index, IbvGidEntry* entry,
                                        std::uint32_t flags, std::size_t bytes) {
  const ContextObject& c = object(context);
  if (gone() || c.lost()) return EIO;
  if (port_num != kPorts || index >= kGids || flags != 0 || bytes < sizeof *entry) return EINVAL;
  Address address{};
  std::uint32_t type = 0;
  if (!gid_entry(c, static_cast<int>(index), address, type)) return ENODATA;
  *entry = {gid_of(address), index, port_num, type, type == kGidIb ? 0 : 2 + c.device_index};
  return 0;
}

FAKE_VERBS_EXPORT int ibv_query_gid(IbvContext* context, std::uint8_t port_num, int index,
                                    IbvGid* gid) {
  IbvGidEntry entry{};
  const int error = _ibv_query_gid_ex(context, port_num, static_cast<std::uint32_t>(index), &entry,
                                      0, sizeof entry);
  if (error != 0 && error != ENODATA) {
    errno = error;
    return -1;
  }
  *gid = entry.gid;  // zeros for an entry that is not in use
  return 0;
}

FAKE_VERBS_EXPORT int ibv_query_pkey(IbvContext* context, std::uint8_t port_num, int index,
                                     std::uint16_t* pkey) {
  if (gone() || object(context).lost() || port_num != kPorts || index != 0) return -1;
  *pkey = 0xffff;
  return 0;
}

}  // namespace linkspan::transport::verbs::fake
