// tests/support/nccl_net_plugin/versioned_abi.hpp - Properties and Net of the version that
// NCCL_NET_VERSION says, in namespace linkspan::nccl_test::v5 to v12.
//
// To be included once for each version, each time with another NCCL_NET_VERSION: so there is no
// #pragma once, and abi.hpp comes before it. Written as what each version has changed.
// Threads: declarations only.

#ifndef NCCL_NET_NAMESPACE
#define NCCL_NET_JOIN(a, b) a##b
#define NCCL_NET_JOIN_VALUES(a, b) NCCL_NET_JOIN(a, b)
#define NCCL_NET_NAMESPACE NCCL_NET_JOIN_VALUES(v, NCCL_NET_VERSION)
#endif

namespace linkspan::nccl_test::NCCL_NET_NAMESPACE {

#if NCCL_NET_VERSION >= 9
struct VProps {
  int ndevs;
#if NCCL_NET_VERSION >= 12
  int devs[8];
#else
  int devs[4];
#endif
};
#endif

struct Properties {
  char* name;
  char* pciPath;
  std::uint64_t guid;
  int ptrSupport;
#if NCCL_NET_VERSION >= 8
  int regIsGlobal;
#endif
#if NCCL_NET_VERSION >= 9
  int forceFlush;
#endif
  int speed;  // Mb/s
  int port;
  float latency;  // us
  int maxComms;
  int maxRecvs;
#if NCCL_NET_VERSION >= 7
  int netDeviceType;
  int netDeviceVersion;
#endif
#if NCCL_NET_VERSION >= 9
  VProps vProps;
  std::size_t maxP2pBytes;
  std::size_t maxCollBytes;
#endif
#if NCCL_NET_VERSION >= 11
  int maxMultiRequestSize;
#endif
#if NCCL_NET_VERSION >= 12
  std::int16_t railId;
  std::int16_t planeId;
#endif
};

#if NCCL_NET_VERSION >= 8
using MrSize = std::size_t;
#else
using MrSize = int;
#endif
#if NCCL_NET_VERSION >= 9
using MessageSize = std::size_t;
#else
using MessageSize = int;
#endif

struct Net {
  const char* name;
#if NCCL_NET_VERSION >= 11
  int (*init)(void** ctx, std::uint64_t commId, Config* config, Logger logger, Profiler profiler);
#elif NCCL_NET_VERSION >= 10
  int (*init)(Logger logger, Profiler profiler);
#else
  int (*init)(Logger logger);
#endif
  int (*devices)(int* ndev);
  int (*getProperties)(int dev, Properties* props);
#if NCCL_NET_VERSION >= 11
  int (*listen)(void* ctx, int dev, void* handle, void** listenComm);
#else
  int (*listen)(int dev, void* handle, void** listenComm);
#endif
#if NCCL_NET_VERSION >= 11
  int (*connect)(void* ctx, int dev, void* handle, void** sendComm, NetDeviceHandle** devHandle);
#elif NCCL_NET_VERSION >= 10
  int (*connect)(int dev, Config* config, void* handle, void** sendComm,
                 NetDeviceHandle** devHandle);
#elif NCCL_NET_VERSION >= 7
  int (*connect)(int dev, void* handle, void** sendComm, NetDeviceHandle** devHandle);
#else
  int (*connect)(int dev, void* handle, void** sendComm);
#endif
#if NCCL_NET_VERSION >= 7
  int (*accept)(void* listenComm, void** recvComm, NetDeviceHandle** devHandle);
#else
  int (*accept)(void* listenComm, void** recvComm);
#endif
  int (*regMr)(void* comm, void* data, MrSize size, int type, void** mhandle);
#if NCCL_NET_VERSION >= 6
  int (*regMrDmaBuf)(void* comm, void* data, std::size_t size, int type, std::uint64_t offset,
                     int fd, void** mhandle);
#endif
  int (*deregMr)(void* comm, void* mhandle);
#if NCCL_NET_VERSION >= 10
  int (*isend)(void* sendComm, void* data, MessageSize size, int tag, void* mhandle, void* phandle,
               void** request);
  int (*irecv)(void* recvComm, int n, void** data, MessageSize* sizes, int* tags, void** mhandles,
               void** phandles, void** request);
#else
  int (*isend)(void* sendComm, void* data, MessageSize size, int tag, void* mhandle,
               void** request);
  int (*irecv)(void* recvComm, int n, void** data, MessageSize* sizes, int* tags, void** mhandles,
               void** request);
#endif
  int (*iflush)(void* recvComm, int n, void** data, int* sizes, void** mhandles, void** request);
  int (*test)(void* request, int* done, int* sizes);
  int (*closeSend)(void* sendComm);
  int (*closeRecv)(void* recvComm);
  int (*closeListen)(void* listenComm);
#if NCCL_NET_VERSION >= 7
  int (*getDeviceMr)(void* comm, void* mhandle, void** dptr_mhandle);
  int (*irecvConsumed)(void* recvComm, int n, void* request);
#endif
#if NCCL_NET_VERSION >= 9
  int (*makeVDevice)(int* d, VProps* props);
#endif
#if NCCL_NET_VERSION >= 11
  int (*finalize)(void* ctx);
  int (*setNetAttr)(void* ctx, void* netAttr);
#endif
};

}  // namespace linkspan::nccl_test::NCCL_NET_NAMESPACE
