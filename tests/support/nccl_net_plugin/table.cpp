// tests/support/nccl_net_plugin/table.cpp - the exported table of one version: compiled for each
// module with its NCCL_NET_VERSION.
#include "tests/support/nccl_net_plugin/plugin.hpp"
#include "tests/support/nccl_net_plugin/versioned_abi.hpp"

namespace linkspan::nccl_test {

#ifndef NCCL_NET_TAKES_GPUS
#define NCCL_NET_TAKES_GPUS true
#endif

constexpr std::size_t kMiB = std::size_t{1} << 20;
const Kind kKind{.version = NCCL_NET_VERSION,
                 .unpacks = NCCL_NET_VERSION == 7,
                 .takes_gpus = NCCL_NET_TAKES_GPUS,
                 .requests = NCCL_NET_VERSION < 7    ? 8u
                             : NCCL_NET_VERSION == 7 ? 16u
                                                     : 32u,
                 .most_bytes = NCCL_NET_VERSION == 7  ? 4 * kMiB
                               : NCCL_NET_VERSION < 9 ? 1024 * kMiB
                                                      : 64 * kMiB};

namespace {

namespace abi = NCCL_NET_NAMESPACE;

char device_name[] = "linkspan-test";

int get_properties(int device, abi::Properties* properties) {
  if (const int failure = ordered_failure("getProperties"); failure != kOk) return failure;
  if (device != 0 || properties == nullptr)
    return refuse(kInvalidArgument, "getProperties of device " + std::to_string(device));
  *properties = {};
  properties->name = device_name;
  properties->pciPath = nullptr;  // of no card
  properties->guid = 1;
  properties->ptrSupport = pointer_support();
  properties->speed = 10000;
  properties->port = 1;
  properties->maxComms = 1024;
  properties->maxRecvs = 1;
#if NCCL_NET_VERSION >= 7
  properties->netDeviceType = kKind.unpacks ? kUnpackDevice : kHostDevice;
  properties->netDeviceVersion = kKind.unpacks ? kUnpackVersion : 0;
#endif
#if NCCL_NET_VERSION >= 9
  properties->vProps.ndevs = 1;
  properties->maxP2pBytes = kKind.most_bytes;
  properties->maxCollBytes = kKind.most_bytes;
#endif
#if NCCL_NET_VERSION >= 11
  properties->maxMultiRequestSize = 1;
#endif
  return kOk;
}

#if NCCL_NET_VERSION >= 11
int init_of_version(void** context, std::uint64_t, Config* config, Logger logger, Profiler) {
  const int result = init(logger);
  if (result != kOk) return result;
  if (config == nullptr) return refuse(kInvalidUsage, "init without a config");
  return make_context(context);
}
constexpr auto kListen = listen;
constexpr auto kConnect = connect;
constexpr auto kAccept = accept;
#else
#if NCCL_NET_VERSION >= 10
int init_of_version(Logger logger, Profiler) { return init(logger); }
#else
int init_of_version(Logger logger) { return init(logger); }
#endif
constexpr auto kListen = [](int device, void* handle, void** comm) {
  return listen(nullptr, device, handle, comm);
};
#if NCCL_NET_VERSION >= 10
constexpr auto kConnect = [](int device, Config* config, void* handle, void** comm,
                             NetDeviceHandle** kernels) {
  if (config == nullptr) return refuse(kInvalidUsage, "connect without a config");
  return connect(nullptr, device, handle, comm, kernels);
};
constexpr auto kAccept = accept;
#elif NCCL_NET_VERSION >= 7
constexpr auto kConnect = [](int device, void* handle, void** comm, NetDeviceHandle** kernels) {
  return connect(nullptr, device, handle, comm, kernels);
};
constexpr auto kAccept = accept;
#else
constexpr auto kConnect = [](int device, void* handle, void** comm) {
  return connect(nullptr, device, handle, comm, nullptr);
};
constexpr auto kAccept = [](void* listening, void** comm) {
  return accept(listening, comm, nullptr);
};
#endif
#endif

int reg_mr(void* comm, void* data, abi::MrSize bytes, int type, void** memory) {
  return register_memory(comm, data, static_cast<std::size_t>(bytes), type, memory);
}

#if NCCL_NET_VERSION >= 10
int isend(void* comm, void* data, std::size_t bytes, int tag, void* memory, void*, void** request) {
  return send(comm, data, bytes, tag, memory, request);
}
int irecv(void* comm, int n, void** data, std::size_t* bytes, int* tags, void** memories, void**,
          void** request) {
  return receive(comm, n, data[0], bytes[0], tags[0], memories[0], request);
}
#else
int isend(void* comm, void* data, abi::MessageSize bytes, int tag, void* memory, void** request) {
  return send(comm, data, static_cast<std::size_t>(bytes), tag, memory, request);
}
int irecv(void* comm, int n, void** data, abi::MessageSize* bytes, int* tags, void** memories,
          void** request) {
  return receive(comm, n, data[0], static_cast<std::size_t>(bytes[0]), tags[0], memories[0],
                 request);
}
#endif

int iflush(void* comm, int n, void** data, int*, void** memories, void** request) {
  return flush(comm, n, data, memories, request);
}

}  // namespace

#define NCCL_NET_SYMBOL NCCL_NET_JOIN_VALUES(ncclNetPlugin_v, NCCL_NET_VERSION)

extern "C" __attribute__((visibility("default"))) const abi::Net NCCL_NET_SYMBOL;
const abi::Net NCCL_NET_SYMBOL = {
    .name = "linkspan-test",
    .init = init_of_version,
    .devices = devices,
    .getProperties = get_properties,
    .listen = kListen,
    .connect = kConnect,
    .accept = kAccept,
    .regMr = reg_mr,
#if NCCL_NET_VERSION >= 6
    .regMrDmaBuf = nullptr,
#endif
    .deregMr = deregister,
    .isend = isend,
    .irecv = irecv,
    .iflush = iflush,
    .test = test,
    .closeSend = close_send,
    .closeRecv = close_receive,
    .closeListen = close_listen,
#if NCCL_NET_VERSION >= 7
    .getDeviceMr = nullptr,
    .irecvConsumed = NCCL_NET_VERSION == 7 ? consumed : nullptr,
#endif
#if NCCL_NET_VERSION >= 9
    .makeVDevice = nullptr,
#endif
#if NCCL_NET_VERSION >= 11
    .finalize = finalize,
    .setNetAttr = nullptr,
#endif
};

}  // namespace linkspan::nccl_test
