// cuda/driver_abi.hpp - declares what this library calls of the CUDA driver, and no more.
//
// Replaces cuda.h, so that the library builds where no CUDA is installed. Types, numbers and
// signatures are the driver's ABI, which never changes for a given entry at a given version;
// tests/abi/driver_abi_check.cpp compares them with cuda.h of CUDA 12.8 and 13.0. 64-bit only.
// Threads: declarations.
#pragma once

#include <cstddef>
#include <cstdint>

namespace linkspan::cuda {

struct OpaqueContext;
struct OpaqueStream;
struct OpaqueEvent;
struct OpaqueModule;
struct OpaqueFunction;
struct OpaqueMemoryPool;
struct OpaqueGraph;
struct OpaqueGraphNode;
struct OpaqueUserObject;

using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUmemGenericAllocationHandle = unsigned long long;
using CUcontext = OpaqueContext*;
using CUstream = OpaqueStream*;
using CUevent = OpaqueEvent*;
using CUmodule = OpaqueModule*;
using CUfunction = OpaqueFunction*;
using CUmemoryPool = OpaqueMemoryPool*;
using CUgraph = OpaqueGraph*;
using CUgraphNode = OpaqueGraphNode*;
using CUuserObject = OpaqueUserObject*;
using CUhostFn = void (*)(void* data);

struct CUuuid {
  char bytes[16];
};
struct CUipcMemHandle {
  char reserved[64];
};
struct CUmemLocation {
  unsigned type;  // CU_MEM_LOCATION_TYPE_DEVICE
  int id;
};
struct CUmemAccessDesc {
  CUmemLocation location;
  unsigned flags;  // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
};
struct CUmemPoolPtrExportData {
  unsigned char reserved[64];
};

/// The results that the library distinguishes; a driver may return any number.
enum CUresult : unsigned {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_IMAGE = 200,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_ALREADY_MAPPED = 208,
  CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
  CUDA_ERROR_ECC_UNCORRECTABLE = 214,
  CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
  CUDA_ERROR_NVLINK_UNCORRECTABLE = 220,
  CUDA_ERROR_CONTAINED = 226,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_LAUNCH_TIMEOUT = 702,
  CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
  CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
  CUDA_ERROR_ASSERT = 710,
  CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
  CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
  CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
  CUDA_ERROR_ILLEGAL_INSTRUCTION = 715,
  CUDA_ERROR_MISALIGNED_ADDRESS = 716,
  CUDA_ERROR_INVALID_ADDRESS_SPACE = 717,
  CUDA_ERROR_INVALID_PC = 718,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_TENSOR_MEMORY_LEAK = 721,
  CUDA_ERROR_NOT_PERMITTED = 800,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_MPS_CLIENT_TERMINATED = 810,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
  CUDA_ERROR_EXTERNAL_DEVICE = 911,
  CUDA_ERROR_UNKNOWN = 999,
};

enum CUdevice_attribute : unsigned {
  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT = 40,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED = 116,
  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS = 117,  // bit 0: the call below
  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING = 118,       // 0: none, 100, 200: as below
  CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124,
};

enum CUdevice_P2PAttribute : unsigned {
  CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED = 3,
};

enum CUpointer_attribute : unsigned {
  CU_POINTER_ATTRIBUTE_CONTEXT = 1,                      // CUcontext; null for VMM and pool memory
  CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,                  // unsigned, a CUmemorytype
  CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,               // CUdeviceptr
  CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,                    // unsigned long long
  CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,                   // unsigned, 0 or 1
  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,               // int
  CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,  // unsigned, 0 or 1
  CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,            // CUdeviceptr
  CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,                  // std::size_t
  CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,              // CUmemoryPool; null: not in a pool
};

enum CUmemorytype : unsigned {
  CU_MEMORYTYPE_HOST = 1,
  CU_MEMORYTYPE_DEVICE = 2,
};

enum CUfunction_attribute : unsigned {
  CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0,
};

enum CUstreamCaptureMode : unsigned {
  CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
  CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
  CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};

enum CUstreamCaptureStatus : unsigned {
  CU_STREAM_CAPTURE_STATUS_NONE = 0,
  CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
  CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2,
};

enum CUdriverProcAddressQueryResult : unsigned {
  CU_GET_PROC_ADDRESS_SUCCESS = 0,
  CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
  CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2,
};

/// Flags, which are `unsigned` in the signatures.
enum : unsigned {
  CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1,
  CU_STREAM_NON_BLOCKING = 1,
  CU_STREAM_WRITE_VALUE_DEFAULT = 0,
  CU_STREAM_WAIT_VALUE_GEQ = 0,  // (signed) (*address - value) >= 0
  CU_EVENT_DISABLE_TIMING = 2,
  CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1,
  CU_MEM_ATTACH_GLOBAL = 1,
  CU_MEMHOSTALLOC_PORTABLE = 1,
  CU_MEMHOSTALLOC_DEVICEMAP = 2,
  CU_MEMHOSTREGISTER_PORTABLE = 1,
  CU_MEMHOSTREGISTER_DEVICEMAP = 2,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
  CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1,
  CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX = 0,
  CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER = 100,
  CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES = 200,
  CU_MEM_LOCATION_TYPE_DEVICE = 1,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
  CU_USER_OBJECT_NO_DESTRUCTOR_SYNC = 1,
  CU_GRAPH_USER_OBJECT_MOVE = 1,
};

/// The only symbol that is looked up by name (dlsym "cuGetProcAddress_v2").
using GetProcAddress = CUresult (*)(const char* symbol, void** function, int version,
                                    std::uint64_t flags, CUdriverProcAddressQueryResult* found);

// X(name, version, parameters): each entry, the version at which it is asked for, which is what
// fixes its signature, and that signature. All answer a CUresult.
#define LINKSPAN_DRIVER_REQUIRED(X)                                                              \
  X(cuInit, 2000, (unsigned flags))                                                              \
  X(cuDriverGetVersion, 2020, (int* version))                                                    \
  X(cuGetErrorName, 6000, (CUresult error, const char** text))                                   \
  X(cuGetErrorString, 6000, (CUresult error, const char** text))                                 \
  X(cuDeviceGetCount, 2000, (int* count))                                                        \
  X(cuDeviceGet, 2000, (CUdevice * device, int ordinal))                                         \
  X(cuDeviceGetName, 2000, (char* name, int bytes, CUdevice device))                             \
  X(cuDeviceGetUuid, 11040, (CUuuid * uuid, CUdevice device))                                    \
  X(cuDeviceGetAttribute, 2000, (int* value, CUdevice_attribute attribute, CUdevice device))     \
  X(cuDeviceGetPCIBusId, 4010, (char* bus_id, int bytes, CUdevice device))                       \
  X(cuDeviceTotalMem, 3020, (std::size_t * bytes, CUdevice device))                              \
  X(cuDeviceCanAccessPeer, 4000, (int* can, CUdevice device, CUdevice peer))                     \
  X(cuDeviceGetP2PAttribute, 8000,                                                               \
    (int* value, CUdevice_P2PAttribute attribute, CUdevice device, CUdevice peer))               \
  X(cuDevicePrimaryCtxRetain, 7000, (CUcontext * context, CUdevice device))                      \
  X(cuDevicePrimaryCtxRelease, 11000, (CUdevice device))                                         \
  X(cuCtxPushCurrent, 4000, (CUcontext context))                                                 \
  X(cuCtxPopCurrent, 4000, (CUcontext * context))                                                \
  X(cuCtxGetCurrent, 4000, (CUcontext * context))                                                \
  X(cuCtxEnablePeerAccess, 4000, (CUcontext peer, unsigned flags))                               \
  X(cuCtxSynchronize, 2000, (void))                                                              \
  X(cuThreadExchangeStreamCaptureMode, 10010, (CUstreamCaptureMode * mode))                      \
  X(cuStreamCreateWithPriority, 5050, (CUstream * stream, unsigned flags, int priority))         \
  X(cuStreamDestroy, 4000, (CUstream stream))                                                    \
  X(cuStreamSynchronize, 2000, (CUstream stream))                                                \
  X(cuStreamQuery, 2000, (CUstream stream))                                                      \
  X(cuStreamWaitEvent, 3020, (CUstream stream, CUevent event, unsigned flags))                   \
  X(cuStreamGetCtx, 9020, (CUstream stream, CUcontext * context))                                \
  X(cuStreamIsCapturing, 10000, (CUstream stream, CUstreamCaptureStatus * status))               \
  X(cuStreamGetCaptureInfo, 11030,                                                               \
    (CUstream stream, CUstreamCaptureStatus * status, std::uint64_t * id, CUgraph * graph,       \
     const CUgraphNode** dependencies, std::size_t* count))                                      \
  X(cuUserObjectCreate, 11030,                                                                   \
    (CUuserObject * object, void* data, CUhostFn destroy, unsigned references, unsigned flags))  \
  X(cuUserObjectRelease, 11030, (CUuserObject object, unsigned references))                      \
  X(cuGraphRetainUserObject, 11030,                                                              \
    (CUgraph graph, CUuserObject object, unsigned references, unsigned flags))                   \
  X(cuStreamWriteValue32, 11070,                                                                 \
    (CUstream stream, CUdeviceptr address, std::uint32_t value, unsigned flags))                 \
  X(cuStreamWriteValue64, 11070,                                                                 \
    (CUstream stream, CUdeviceptr address, std::uint64_t value, unsigned flags))                 \
  X(cuStreamWaitValue64, 11070,                                                                  \
    (CUstream stream, CUdeviceptr address, std::uint64_t value, unsigned flags))                 \
  X(cuEventCreate, 2000, (CUevent * event, unsigned flags))                                      \
  X(cuEventDestroy, 4000, (CUevent event))                                                       \
  X(cuEventRecord, 2000, (CUevent event, CUstream stream))                                       \
  X(cuEventQuery, 2000, (CUevent event))                                                         \
  X(cuMemAlloc, 3020, (CUdeviceptr * address, std::size_t bytes))                                \
  X(cuMemFree, 3020, (CUdeviceptr address))                                                      \
  X(cuMemAllocManaged, 6000, (CUdeviceptr * address, std::size_t bytes, unsigned flags))         \
  X(cuMemHostAlloc, 2020, (void** memory, std::size_t bytes, unsigned flags))                    \
  X(cuMemFreeHost, 2000, (void* memory))                                                         \
  X(cuMemHostRegister, 6050, (void* memory, std::size_t bytes, unsigned flags))                  \
  X(cuMemHostUnregister, 4000, (void* memory))                                                   \
  X(cuMemHostGetDevicePointer, 3020, (CUdeviceptr * address, void* memory, unsigned flags))      \
  X(cuMemcpyAsync, 4000, (CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream)) \
  X(cuMemcpyPeerAsync, 4000,                                                                     \
    (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,             \
     std::size_t bytes, CUstream stream))                                                        \
  X(cuMemsetD8Async, 3020,                                                                       \
    (CUdeviceptr to, unsigned char value, std::size_t bytes, CUstream stream))                   \
  X(cuPointerGetAttribute, 4000,                                                                 \
    (void* value, CUpointer_attribute attribute, CUdeviceptr pointer))                           \
  X(cuPointerGetAttributes, 7000,                                                                \
    (unsigned count, CUpointer_attribute* attributes, void** values, CUdeviceptr pointer))       \
  X(cuMemGetAddressRange, 3020, (CUdeviceptr * base, std::size_t * bytes, CUdeviceptr pointer))  \
  X(cuIpcGetMemHandle, 4010, (CUipcMemHandle * handle, CUdeviceptr address))                     \
  X(cuIpcOpenMemHandle, 11000, (CUdeviceptr * base, CUipcMemHandle handle, unsigned flags))      \
  X(cuIpcCloseMemHandle, 4010, (CUdeviceptr base))                                               \
  X(cuModuleLoadData, 2000, (CUmodule * module, const void* image))                              \
  X(cuModuleUnload, 2000, (CUmodule module))                                                     \
  X(cuModuleGetFunction, 2000, (CUfunction * function, CUmodule module, const char* name))       \
  X(cuFuncGetAttribute, 2020, (int* value, CUfunction_attribute attribute, CUfunction function)) \
  X(cuLaunchKernel, 4000,                                                                        \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,   \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,                 \
     void** parameters, void** extra))

/// Null in the table when the driver is too old for them.
#define LINKSPAN_DRIVER_OPTIONAL(X)                                                             \
  X(cuFuncLoad, 12040, (CUfunction function))                                                   \
  X(cuMemRetainAllocationHandle, 11000, (CUmemGenericAllocationHandle * handle, void* address)) \
  X(cuMemGetHandleForAddressRange, 11070,                                                       \
    (void* handle, CUdeviceptr address, std::size_t bytes, unsigned type,                       \
     unsigned long long flags))                                                                 \
  X(cuFlushGPUDirectRDMAWrites, 11030, (unsigned target, unsigned scope))                       \
  X(cuMemRelease, 10020, (CUmemGenericAllocationHandle handle))                                 \
  X(cuMemAddressReserve, 10020,                                                                 \
    (CUdeviceptr * address, std::size_t bytes, std::size_t alignment, CUdeviceptr wish,         \
     unsigned long long flags))                                                                 \
  X(cuMemAddressFree, 10020, (CUdeviceptr address, std::size_t bytes))                          \
  X(cuMemMap, 10020,                                                                            \
    (CUdeviceptr address, std::size_t bytes, std::size_t offset,                                \
     CUmemGenericAllocationHandle handle, unsigned long long flags))                            \
  X(cuMemUnmap, 10020, (CUdeviceptr address, std::size_t bytes))                                \
  X(cuMemSetAccess, 10020,                                                                      \
    (CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* access, std::size_t count)) \
  X(cuMemExportToShareableHandle, 10020,                                                        \
    (void* shareable, CUmemGenericAllocationHandle handle, unsigned type,                       \
     unsigned long long flags))                                                                 \
  X(cuMemImportFromShareableHandle, 10020,                                                      \
    (CUmemGenericAllocationHandle * handle, void* shareable, unsigned type))                    \
  X(cuMemPoolExportToShareableHandle, 11020,                                                    \
    (void* shareable, CUmemoryPool pool, unsigned type, unsigned long long flags))              \
  X(cuMemPoolImportFromShareableHandle, 11020,                                                  \
    (CUmemoryPool * pool, void* shareable, unsigned type, unsigned long long flags))            \
  X(cuMemPoolExportPointer, 11020, (CUmemPoolPtrExportData * data, CUdeviceptr address))        \
  X(cuMemPoolImportPointer, 11020,                                                              \
    (CUdeviceptr * address, CUmemoryPool pool, CUmemPoolPtrExportData * data))                  \
  X(cuMemPoolSetAccess, 11020,                                                                  \
    (CUmemoryPool pool, const CUmemAccessDesc* access, std::size_t count))                      \
  X(cuMemPoolDestroy, 11020, (CUmemoryPool pool))

}  // namespace linkspan::cuda
