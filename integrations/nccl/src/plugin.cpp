// nccl/plugin.cpp - the tables of functions that NCCL loads, versions 6 to 12, over one Net.
//
// Threads: as Net; init() any thread, once at a time.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <string>
#include <utility>

#include "base/environment.hpp"
#include "base/mutex.hpp"
#include "integrations/nccl/src/net.hpp"

namespace linkspan::nccl {
namespace {

namespace abi = transport::nccl_net::abi;

constexpr unsigned long kNetLog = 16;  // NCCL_NET among the kinds of lines
constexpr int kMaxComms = 65536;
// The chunks of NCCL's send/recv between hosts. Its 128 KiB keep a few data connections busy at
// most. Eight of these fill its default buffer.
constexpr const char *kChunkVariable = "NCCL_P2P_NET_CHUNKSIZE", *kChunk = "524288";

std::atomic<abi::Logger> logger{nullptr};

void say(abi::LogLevel level, const std::string& text) {
  if (const abi::Logger to = logger.load(); to != nullptr)
    to(level, kNetLog, "linkspan", 0, "NET/linkspan: %s", text.c_str());
}

std::atomic<Net*> the_net{nullptr};  // once init() has opened it; never destroyed (net.hpp)

/// Sets larger chunks, unless the user chose. NCCL reads the variable after init(), and sets those
/// of its configuration file in the same way.
void set_chunk() {
  if (base::environment(kChunkVariable) != nullptr) return;
  if (::setenv(kChunkVariable, kChunk, 0) == 0)  // NOLINT(concurrency-mt-unsafe): as NCCL does
    say(abi::kInfo, std::string(kChunkVariable) + " is set to " + kChunk);
}

/// Returns the Net, or opens it. An error is forgotten, so that NCCL may try again.
Result<Net*> open_net() {
  static base::Mutex mutex;
  const base::MutexLock lock(mutex);
  if (Net* const open = the_net) return open;
  auto made = Net::open([](LogLevel level, std::string_view text) {
    say(level >= LogLevel::warning ? abi::kWarn : abi::kInfo, std::string(text));
  });
  if (!made.ok()) return made.status();
  the_net = made->release();
  return the_net.load();
}

int result_of(const Status& status) {
  switch (status.code()) {
    case Code::ok:
      return abi::kSuccess;
    case Code::invalid_argument:
      return abi::kInvalidArgument;
    case Code::truncated:
      return abi::kInvalidUsage;
    case Code::disconnected:
    case Code::timed_out:
    case Code::corrupt:
      return abi::kRemote;
    default:
      return abi::kSystem;
  }
}

int refuse(const Status& status) {
  say(abi::kWarn, status.to_string());
  return result_of(status);
}

/// Calls `act(net)` for NCCL, which takes no exceptions.
template <class Act>
int call(const Act& act) noexcept {
  try {
    Net* const net = the_net;
    if (net == nullptr)
      return refuse({Code::invalid_argument, Scope::process, "a call before init"});
    return act(*net);
  } catch (const std::exception& error) {
    say(abi::kWarn, error.what());
    return abi::kSystem;
  }
}

/// Returns what NCCL gets of a pointer.
int give(const Result<void*>& result, void** out) {
  *out = result.ok() ? *result : nullptr;
  return result.ok() ? int{abi::kSuccess} : refuse(result.status());
}

// ---- the functions ------------------------------------------------------------------------------
// Where versions differ they are overloaded, and the table's type chooses.

int init(abi::Logger log) {
  logger = log;
  try {
    const auto net = open_net();
    if (!net.ok()) return refuse(net.status());
    std::string names;
    for (const Interface& each : (*net)->facts().interfaces)
      names += " " + each.name + " " + each.address;
    set_chunk();
    say(abi::kInfo, "over" + names);
    return abi::kSuccess;
  } catch (const std::exception& error) {
    say(abi::kWarn, error.what());
    return abi::kSystem;
  }
}
int init(abi::Logger log, abi::Profiler) { return init(log); }
int init(void** context, std::uint64_t, abi::Config*, abi::Logger log, abi::Profiler) {
  static int any = 0;
  *context = &any;  // one Net for all
  return init(log);
}

int devices(int* count) {
  *count = 0;
  return call([&](const Net& net) {
    *count = net.facts().devices;
    return int{abi::kSuccess};
  });
}

Status no_device(int device, const Net& net) {
  return {Code::invalid_argument, Scope::request,
          "device " + std::to_string(device) + ": there are " +
              std::to_string(net.facts().devices) + ", from 0"};
}
bool is_device(int device, const Net& net) { return device >= 0 && device < net.facts().devices; }

template <class Properties>
int get_properties(int device, Properties* properties) {
  return call([&](Net& net) {
    if (!is_device(device, net) || properties == nullptr) return refuse(no_device(device, net));
    const std::vector<Interface>& interfaces = net.facts().interfaces;
    static std::string& name = *new std::string(interfaces.front().name);
    static std::string& pci_path = *new std::string(pci_path_of(interfaces.front()));
    *properties = {};
    properties->name = name.data();
    properties->pci_path = pci_path.empty() ? nullptr : pci_path.data();
    properties->guid = static_cast<std::uint64_t>(device) + 1;
    properties->pointer_support = abi::kHost;
    properties->speed = speed_of(interfaces) / net.facts().devices;
    properties->max_comms = kMaxComms;
    properties->max_receives = 1;
    if constexpr (requires { properties->registration_is_global; })
      properties->registration_is_global = 0;
    if constexpr (requires { properties->virtual_device; }) {
      properties->virtual_device.count = 1;
      properties->max_p2p_bytes = properties->max_collective_bytes = abi::kMaxBytes;
    }
    if constexpr (requires { properties->max_multi_request_size; })
      properties->max_multi_request_size = 1;
    if constexpr (requires { properties->rail_id; })
      properties->rail_id = properties->plane_id = -1;
    return int{abi::kSuccess};
  });
}

int listen(int device, void* handle, void** comm) {
  return call([&](Net& net) {
    if (!is_device(device, net)) return refuse(no_device(device, net));
    Handle made;
    const int result = give(net.listen(made), comm);
    std::memcpy(handle, &made, sizeof made);
    return result;
  });
}
int listen(void*, int device, void* handle, void** comm) { return listen(device, handle, comm); }

int connect(int, void* handle, void** comm) {
  return call([&](Net& net) {
    Handle at;
    std::memcpy(&at, handle, sizeof at);
    const int result = give(net.connect(at), comm);
    std::memcpy(handle, &at, sizeof at);
    return result;
  });
}
int connect(int device, void* handle, void** comm, abi::DeviceHandle** kernels) {
  if (kernels != nullptr) *kernels = nullptr;
  return connect(device, handle, comm);
}
int connect(int device, abi::Config*, void* handle, void** comm, abi::DeviceHandle** kernels) {
  return connect(device, handle, comm, kernels);
}
int connect(void*, int device, void* handle, void** comm, abi::DeviceHandle** kernels) {
  return connect(device, handle, comm, kernels);
}

int accept(void* listener, void** comm) {
  return call([&](Net& net) { return give(net.accept(listener), comm); });
}
int accept(void* listener, void** comm, abi::DeviceHandle** kernels) {
  if (kernels != nullptr) *kernels = nullptr;
  return accept(listener, comm);
}

int reg_mr(void* comm, void* data, std::size_t bytes, int type, void** memory) {
  return call([&](Net& net) {
    if (type != abi::kHost)
      return refuse({Code::invalid_argument, Scope::request,
                     "regMr of type " + std::to_string(type) + ": host memory only"});
    return give(net.register_memory(comm, data, bytes), memory);
  });
}
int reg_mr(void* comm, void* data, int bytes, int type, void** memory) {
  return reg_mr(comm, data, static_cast<std::size_t>(bytes), type, memory);
}
int reg_mr_dma_buf(void*, void*, std::size_t, int, std::uint64_t, int, void** memory) {
  *memory = nullptr;
  return refuse({Code::invalid_argument, Scope::request, "regMrDmaBuf: host memory only"});
}
int dereg_mr(void* comm, void* memory) {
  return call([&](Net& net) {
    const Status status = net.deregister(comm, memory);
    return status.ok() ? int{abi::kSuccess} : refuse(status);
  });
}

int isend(void* comm, void* data, std::size_t bytes, int, void* memory, void*, void** request) {
  return call([&](Net& net) { return give(net.send(comm, data, bytes, memory), request); });
}
int isend(void* comm, void* data, std::size_t bytes, int tag, void* memory, void** request) {
  return isend(comm, data, bytes, tag, memory, nullptr, request);
}
int isend(void* comm, void* data, int bytes, int tag, void* memory, void** request) {
  return isend(comm, data, static_cast<std::size_t>(bytes), tag, memory, nullptr, request);
}

int irecv(void* comm, int count, void** data, std::size_t* bytes, int*, void** memories, void**,
          void** request) {
  return call([&](Net& net) {
    *request = nullptr;
    if (count != 1)
      return refuse({Code::invalid_argument, Scope::request,
                     "irecv of " + std::to_string(count) + " at once: maxRecvs is 1"});
    return give(net.receive(comm, data[0], bytes[0], memories[0]), request);
  });
}
int irecv(void* comm, int count, void** data, std::size_t* bytes, int* tags, void** memories,
          void** request) {
  return irecv(comm, count, data, bytes, tags, memories, nullptr, request);
}
int irecv(void* comm, int count, void** data, int* bytes, int* tags, void** memories,
          void** request) {
  std::size_t size = count > 0 ? static_cast<std::size_t>(bytes[0]) : 0;
  return irecv(comm, count, data, &size, tags, memories, nullptr, request);
}

/// Gives no request: data in host memory is visible once test() has told its end.
int iflush(void*, int, void**, int*, void**, void** request) {
  *request = nullptr;
  return abi::kSuccess;
}

int test(void* request, int* done, int* sizes) {
  return call([&](Net& net) {
    *done = 0;
    const auto tested = net.test(request);
    if (!tested.ok()) return refuse(tested.status());
    *done = tested->done ? 1 : 0;
    if (tested->done && sizes != nullptr)
      *sizes = static_cast<int>(std::min<std::uint64_t>(tested->bytes, 0x7fffffff));
    return int{abi::kSuccess};
  });
}

int close_comm(void* comm) {
  return call([&](Net& net) {
    const Status status = net.close_comm(comm);
    return status.ok() ? int{abi::kSuccess} : refuse(status);
  });
}
int close_listen(void* listener) {
  return call([&](Net& net) {
    const Status status = net.close_listener(listener);
    return status.ok() ? int{abi::kSuccess} : refuse(status);
  });
}

int finalize(void*) { return abi::kSuccess; }
int set_net_attr(void*, abi::Attributes*) { return abi::kSuccess; }

template <class Table>
constexpr Table table() noexcept {
  Table made{};
  made.name = "LINKSPAN";
  made.init = init;
  made.devices = devices;
  made.get_properties = get_properties;
  made.listen = listen;
  made.connect = connect;
  made.accept = accept;
  made.reg_mr = reg_mr;
  made.reg_mr_dma_buf = reg_mr_dma_buf;
  made.dereg_mr = dereg_mr;
  made.isend = isend;
  made.irecv = irecv;
  made.iflush = iflush;
  made.test = test;
  made.close_send = made.close_receive = close_comm;
  made.close_listen = close_listen;
  if constexpr (requires { made.finalize; }) {
    made.finalize = finalize;
    made.set_net_attr = set_net_attr;
  }
  return made;
}

}  // namespace
}  // namespace linkspan::nccl

#define LINKSPAN_EXPORT(version)                                                                 \
  extern "C" __attribute__((visibility("default")))                                              \
  const linkspan::transport::nccl_net::abi::TableV##version ncclNetPlugin_v##version;            \
  constinit const linkspan::transport::nccl_net::abi::TableV##version ncclNetPlugin_v##version = \
      linkspan::nccl::table<linkspan::transport::nccl_net::abi::TableV##version>();

LINKSPAN_EXPORT(6)
LINKSPAN_EXPORT(7)
LINKSPAN_EXPORT(8)
LINKSPAN_EXPORT(9)
LINKSPAN_EXPORT(10)
LINKSPAN_EXPORT(11)
LINKSPAN_EXPORT(12)
