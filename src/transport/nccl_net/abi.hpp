// transport/nccl_net/abi.hpp - our own declaration of the ABI of NCCL's network plugins, versions 5
// to 12; no header of NCCL is needed.
//
// A plugin exports a table of functions as the data symbol ncclNetPlugin_vN. The order of fields
// and arguments is the ABI. Sizes are asserted below, offsets in tests/unit/nccl_net_abi_test.cpp.
// New were: in 6 (NCCL 2.13) DMA-BUFs; in 7 (2.19) device handles and irecvConsumed, for TCPX; in 8
// (2.20) 64-bit sizes of registrations; in 9 (2.24) those of messages, their maximum, virtual
// devices; in 10 (2.26) connect()'s configuration, hints, a profiler; in 11 (2.28) contexts,
// finalize; in 12 (2.30) eight devices of a virtual one, rails.
// Threads: declarations only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace linkspan::transport::nccl_net::abi {

constexpr int kOldest = 5, kNewest = 12;
constexpr std::size_t kHandleBytes = 128;
constexpr std::size_t kMaxBytes = std::size_t{1} << 40;  ///< Maximum size of a message.

/// Result of every function.
enum Result : int {
  kSuccess = 0,
  kUnhandledCuda = 1,
  kSystem = 2,
  kInternal = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemote = 6,
  kInProgress = 7,
};
enum PointerType : int { kHost = 1, kCuda = 2, kDmaBuf = 4 };
enum DeviceType : int { kDeviceHost = 0, kDeviceUnpack = 1 };
enum LogLevel : int { kNone, kVersion, kWarn, kInfo, kAbort, kTrace };

using Logger = void (*)(int level, unsigned long flags, const char* file, int line,
                        const char* format, ...);
using Profiler = int (*)(void** event, int type, void* parent, std::int64_t id, void* data);

/// Holds what a device gives kernels for a comm; lies in the plugin's memory.
struct DeviceHandle {
  int type;
  int version;
  void* handle;
  std::size_t size;
  int needs_proxy_progress;
};
static_assert(sizeof(DeviceHandle) == 32);

/// From version 10 on. -1: undefined.
struct Config {
  int traffic_class = -1;
};

template <int N>
struct VirtualDevice {
  int count;
  int devices[N];
};

struct Attributes;  // of setNetAttr, which is not called

struct PropertiesV5 {  // and V6
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int pointer_support;
  int speed;  // Mb/s
  int port;
  float latency;  // us
  int max_comms;
  int max_receives;
};
struct PropertiesV7 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int pointer_support;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_receives;
  int device_type;
  int device_version;
};
struct PropertiesV8 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_receives;
  int device_type;
  int device_version;
};
struct PropertiesV9 {  // and V10
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int force_flush;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_receives;
  int device_type;
  int device_version;
  VirtualDevice<4> virtual_device;
  std::size_t max_p2p_bytes;
  std::size_t max_collective_bytes;
};
struct PropertiesV11 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int force_flush;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_receives;
  int device_type;
  int device_version;
  VirtualDevice<4> virtual_device;
  std::size_t max_p2p_bytes;
  std::size_t max_collective_bytes;
  int max_multi_request_size;
};
struct PropertiesV12 {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int force_flush;
  int speed;
  int port;
  float latency;
  int max_comms;
  int max_receives;
  int device_type;
  int device_version;
  VirtualDevice<8> virtual_device;
  std::size_t max_p2p_bytes;
  std::size_t max_collective_bytes;
  int max_multi_request_size;
  std::int16_t rail_id;
  std::int16_t plane_id;
};
static_assert(sizeof(PropertiesV5) == 48);
static_assert(sizeof(PropertiesV7) == 56);
static_assert(sizeof(PropertiesV8) == 64);
static_assert(sizeof(PropertiesV9) == 104);
static_assert(sizeof(PropertiesV11) == 112);
static_assert(sizeof(PropertiesV12) == 128);

struct TableV5 {
  const char* name;
  int (*init)(Logger);
  int (*devices)(int*);
  int (*get_properties)(int, PropertiesV5*);
  int (*listen)(int, void*, void**);
  int (*connect)(int, void*, void**);
  int (*accept)(void*, void**);
  int (*reg_mr)(void*, void*, int, int, void**);
  int (*dereg_mr)(void*, void*);
  int (*isend)(void*, void*, int, int, void*, void**);
  int (*irecv)(void*, int, void**, int*, int*, void**, void**);
  int (*iflush)(void*, int, void**, int*, void**, void**);
  int (*test)(void*, int*, int*);
  int (*close_send)(void*);
  int (*close_receive)(void*);
  int (*close_listen)(void*);
};
struct TableV6 {
  const char* name;
  int (*init)(Logger);
  int (*devices)(int*);
  int (*get_properties)(int, PropertiesV5*);
  int (*listen)(int, void*, void**);
  int (*connect)(int, void*, void**);
  int (*accept)(void*, void**);
  int (*reg_mr)(void*, void*, int, int, void**);
  int (*reg_mr_dma_buf)(void*, void*, std::size_t, int, std::uint64_t, int, void**);
  int (*dereg_mr)(void*, void*);
  int (*isend)(void*, void*, int, int, void*, void**);
  int (*irecv)(void*, int, void**, int*, int*, void**, void**);
  int (*iflush)(void*, int, void**, int*, void**, void**);
  int (*test)(void*, int*, int*);
  int (*close_send)(void*);
  int (*close_receive)(void*);
  int (*close_listen)(void*);
};
struct TableV7 {
  const char* name;
  int (*init)(Logger);
  int (*devices)(int*);
  int (*get_properties)(int, PropertiesV7*);
  int (*listen)(int, void*, void**);
  int (*connect)(int, void*, void**, DeviceHandle**);
  int (*accept)(void*, void**, DeviceHandle**);
  int (*reg_mr)(void*, void*, int, int, void**);
  int (*reg_mr_dma_buf)(void*, void*, std::size_t, int, std::uint64_t, int, void**);
  int (*dereg_mr)(void*, void*);
  int (*isend)(void*, void*, int, int, void*, void**);
  int (*irecv)(void*, int, void**, int*, int*, void**, void**);
  int (*iflush)(void*, int, void**, int*, void**, void**);
  int (*test)(void*, int*, int*);
  int (*close_send)(void*);
  int (*close_receive)(void*);
  int (*close_listen)(void*);
  int (*get_device_mr)(void*, void*, void**);
  int (*irecv_consumed)(void*, int, void*);
};
struct TableV8 {
  const char* name;
  int (*init)(Logger);
  int (*devices)(int*);
  int (*get_properties)(int, PropertiesV8*);
  int (*listen)(int, void*, void**);
  int (*connect)(int, void*, void**, DeviceHandle**);
  int (*accept)(void*, void**, DeviceHandle**);
  int (*reg_mr)(void*, void*, std::size_t, int, void**);
  int (*reg_mr_dma_buf)(void*, void*, std::size_t, int, std::uint64_t, int, void**);
  int (*dereg_mr)(void*, void*);
  int (*isend)(void*, void*, int, int, void*, void**);
  int (*irecv)(void*, int, void**, int*, int*, void**, void**);
  int (*iflush)(void*, int, void**, int*, void**, void**);
  int (*test)(void*, int*, int*);
  int (*close_send)(void*);
  int (*close_receive)(void*);
  int (*close_listen)(void*);
  int (*get_device_mr)(void*, void*, void**);
  int (*irecv_consumed)(void*, int, void*);
};
struct TableV9 {
  const char* name;
  int (*init)(Logger);
  int (*devices)(int*);
  int (*get_properties)(int, PropertiesV9*);
  int (*listen)(int, void*, void**);
  int (*connect)(int, void*, void**, DeviceHandle**);
  int (*accept)(void*, void**, DeviceHandle**);
  int (*reg_mr)(void*, void*, std::size_t, int, void**);
  int (*reg_mr_dma_buf)(void*, void*, std::size_t, int, std::uint64_t, int, void**);
  int (*dereg_mr)(void*, void*);
  int (*isend)(void*, void*, std::size_t, int, void*, void**);
  int (*irecv)(void*, int, void**, std::size_t*, int*, void**, void**);
  int (*iflush)(void*, int, void**, int*, void**, void**);
  int (*test)(void*, int*, int*);
  int (*close_send)(void*);
  int (*close_receive)(void*);
  int (*close_listen)(void*);
  int (*get_device_mr)(void*, void*, void**);
  int (*irecv_consumed)(void*, int, void*);
  int (*make_virtual_device)(int*, VirtualDevice<4>*);
};
struct TableV10 {
  const char* name;
  int (*init)(Logger, Profiler);
  int (*devices)(int*);
  int (*get_properties)(int, PropertiesV9*);
  int (*listen)(int, void*, void**);
  int (*connect)(int, Config*, void*, void**, DeviceHandle**);
  int (*accept)(void*, void**, DeviceHandle**);
  int (*reg_mr)(void*, void*, std::size_t, int, void**);
  int (*reg_mr_dma_buf)(void*, void*, std::size_t, int, std::uint64_t, int, void**);
  int (*dereg_mr)(void*, void*);
  int (*isend)(void*, void*, std::size_t, int, void*, void*, void**);
  int (*irecv)(void*, int, void**, std::size_t*, int*, void**, void**, void**);
  int (*iflush)(void*, int, void**, int*, void**, void**);
  int (*test)(void*, int*, int*);
  int (*close_send)(void*);
  int (*close_receive)(void*);
  int (*close_listen)(void*);
  int (*get_device_mr)(void*, void*, void**);
  int (*irecv_consumed)(void*, int, void*);
  int (*make_virtual_device)(int*, VirtualDevice<4>*);
};
/// Versions 11 and 12 differ in what they say of devices.
template <class PropertiesType, int DevicesOfOne>
struct TableOfContexts {
  const char* name;
  int (*init)(void**, std::uint64_t, Config*, Logger, Profiler);
  int (*devices)(int*);
  int (*get_properties)(int, PropertiesType*);
  int (*listen)(void*, int, void*, void**);
  int (*connect)(void*, int, void*, void**, DeviceHandle**);
  int (*accept)(void*, void**, DeviceHandle**);
  int (*reg_mr)(void*, void*, std::size_t, int, void**);
  int (*reg_mr_dma_buf)(void*, void*, std::size_t, int, std::uint64_t, int, void**);
  int (*dereg_mr)(void*, void*);
  int (*isend)(void*, void*, std::size_t, int, void*, void*, void**);
  int (*irecv)(void*, int, void**, std::size_t*, int*, void**, void**, void**);
  int (*iflush)(void*, int, void**, int*, void**, void**);
  int (*test)(void*, int*, int*);
  int (*close_send)(void*);
  int (*close_receive)(void*);
  int (*close_listen)(void*);
  int (*get_device_mr)(void*, void*, void**);
  int (*irecv_consumed)(void*, int, void*);
  int (*make_virtual_device)(int*, VirtualDevice<DevicesOfOne>*);
  int (*finalize)(void*);
  int (*set_net_attr)(void*, Attributes*);
};
using TableV11 = TableOfContexts<PropertiesV11, 4>;
using TableV12 = TableOfContexts<PropertiesV12, 8>;
static_assert(sizeof(TableV5) == 16 * sizeof(void*) && sizeof(TableV6) == 17 * sizeof(void*));
static_assert(sizeof(TableV7) == 19 * sizeof(void*) && sizeof(TableV8) == 19 * sizeof(void*));
static_assert(sizeof(TableV9) == 20 * sizeof(void*) && sizeof(TableV10) == 20 * sizeof(void*));
static_assert(sizeof(TableV11) == 22 * sizeof(void*) && sizeof(TableV12) == 22 * sizeof(void*));

}  // namespace linkspan::transport::nccl_net::abi
