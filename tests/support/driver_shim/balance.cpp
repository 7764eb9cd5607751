#include "tests/support/driver_shim/balance.hpp"

#include <atomic>
#include <cstring>
#include <iterator>

namespace linkspan::cuda::shim {

struct Account {
  const char* entry;
  unsigned kind;
  int change;
};

namespace {

enum Kind : unsigned {
  kContexts,
  kPushed,
  kStreams,
  kEvents,
  kModules,
  kDeviceMemory,
  kHostMemory,
  kRegistrations,
  kIpc,
  kHandles,
  kReservations,
  kPools,
  kKinds
};
constexpr const char* kNames[] = {"contexts retained",
                                  "contexts pushed",
                                  "streams",
                                  "events",
                                  "modules",
                                  "device allocations",
                                  "host allocations",
                                  "host registrations",
                                  "IPC handles opened",
                                  "VMM handles",
                                  "VMM reservations",
                                  "pools"};
static_assert(std::size(kNames) == kKinds);

// Mappings are not counted, because one cuMemUnmap ends a row of mappings and each row has one
// reservation. Entries outside the library's table do not pass the shim, so their lines mean
// nothing.
constexpr Account kAccounts[] = {{"cuDevicePrimaryCtxRetain", kContexts, 1},
                                 {"cuDevicePrimaryCtxRelease", kContexts, -1},
                                 {"cuCtxPushCurrent", kPushed, 1},
                                 {"cuCtxPopCurrent", kPushed, -1},
                                 {"cuStreamCreateWithPriority", kStreams, 1},
                                 {"cuStreamDestroy", kStreams, -1},
                                 {"cuEventCreate", kEvents, 1},
                                 {"cuEventDestroy", kEvents, -1},
                                 {"cuModuleLoadData", kModules, 1},
                                 {"cuModuleUnload", kModules, -1},
                                 {"cuMemAlloc", kDeviceMemory, 1},
                                 {"cuMemAllocManaged", kDeviceMemory, 1},
                                 {"cuMemAllocFromPoolAsync", kDeviceMemory, 1},
                                 {"cuMemPoolImportPointer", kDeviceMemory, 1},
                                 {"cuMemFree", kDeviceMemory, -1},
                                 {"cuMemFreeAsync", kDeviceMemory, -1},
                                 {"cuMemHostAlloc", kHostMemory, 1},
                                 {"cuMemFreeHost", kHostMemory, -1},
                                 {"cuMemHostRegister", kRegistrations, 1},
                                 {"cuMemHostUnregister", kRegistrations, -1},
                                 {"cuIpcOpenMemHandle", kIpc, 1},
                                 {"cuIpcCloseMemHandle", kIpc, -1},
                                 {"cuMemCreate", kHandles, 1},
                                 {"cuMemRetainAllocationHandle", kHandles, 1},
                                 {"cuMemImportFromShareableHandle", kHandles, 1},
                                 {"cuMemRelease", kHandles, -1},
                                 {"cuMemAddressReserve", kReservations, 1},
                                 {"cuMemAddressFree", kReservations, -1},
                                 {"cuMemPoolCreate", kPools, 1},
                                 {"cuMemPoolImportFromShareableHandle", kPools, 1},
                                 {"cuMemPoolDestroy", kPools, -1}};

std::atomic<long long> counts[kKinds];

}  // namespace

const Account* account_of(const char* entry) {
  for (const Account& account : kAccounts)
    if (std::strcmp(account.entry, entry) == 0) return &account;
  return nullptr;
}

void settle(const Account& account, bool failed_by_order) {
  if (!failed_by_order || account.change < 0) counts[account.kind] += account.change;
}

const char* balance(unsigned i, long long* count) {
  if (i >= kKinds) return nullptr;
  *count = counts[i];
  return kNames[i];
}

}  // namespace linkspan::cuda::shim
