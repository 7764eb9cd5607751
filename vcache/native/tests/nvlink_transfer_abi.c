/* vcache/native/tests/nvlink_transfer_abi.c - pins the ABI of libnvlink_transfer: every signature,
 * every code, the layout of the struct.
 *
 * Plain C99, pedantic: nothing runs, it compiles or it does not. A change of a line here breaks
 * programs that are in use.
 */
#include <stddef.h>

#include "linkspan/nvlink_transfer.h"
#include "tests/abi/pin.h"

typedef int (*transfer_type)(int, uint64_t, int, uint64_t, uint64_t, const void*, unsigned,
                             const void*, unsigned, uint64_t, uint64_t, void*);
typedef int (*begin_type)(int, uint64_t, int, uint64_t, uint64_t, const void*, unsigned,
                          const void*, unsigned, uint64_t, uint64_t, void*, uint32_t, uint64_t*);
typedef int (*test_type)(uint64_t, uint64_t*);
typedef int (*wait_type)(uint64_t, uint32_t);
typedef int (*cancel_type)(uint64_t);
typedef const char* (*text_type)(void);
typedef const char* (*text_of_code_type)(int);
typedef void (*log_type)(int, const char*, void*);
typedef void (*set_log_callback_type)(log_type, void*);
typedef int (*set_handle_cache_type)(unsigned);
typedef int (*stats_type)(nvlink_transfer_stats_t*);

extern const transfer_type pinned_transfer;
extern const begin_type pinned_begin;
extern const test_type pinned_test;
extern const wait_type pinned_wait;
extern const cancel_type pinned_cancel;
extern const text_type pinned_version, pinned_last_error;
extern const text_of_code_type pinned_error_string, pinned_runtime_error_string;
extern const set_log_callback_type pinned_set_log_callback;
extern const set_handle_cache_type pinned_set_handle_cache;
extern const stats_type pinned_stats;

const transfer_type pinned_transfer = perform_direct_transfer;
const begin_type pinned_begin = nvlink_transfer_begin;
const test_type pinned_test = nvlink_transfer_test;
const wait_type pinned_wait = nvlink_transfer_wait;
const cancel_type pinned_cancel = nvlink_transfer_cancel;
const text_type pinned_version = nvlink_transfer_version;
const text_type pinned_last_error = nvlink_transfer_last_error;
const text_of_code_type pinned_error_string = nvlink_transfer_error_string;
const text_of_code_type pinned_runtime_error_string = cudaGetErrorString;
const set_log_callback_type pinned_set_log_callback = nvlink_transfer_set_log_callback;
const set_handle_cache_type pinned_set_handle_cache = nvlink_transfer_set_handle_cache;
const stats_type pinned_stats = nvlink_transfer_stats;

PIN(NVLINK_TRANSFER_OK == 0);
PIN(NVLINK_TRANSFER_INVALID_VALUE == 1);
PIN(NVLINK_TRANSFER_INVALID_DEVICE_POINTER == 17);
PIN(NVLINK_TRANSFER_NO_DRIVER == 35);
PIN(NVLINK_TRANSFER_NO_DEVICE == 100);
PIN(NVLINK_TRANSFER_INVALID_DEVICE == 101);
PIN(NVLINK_TRANSFER_INVALID_STREAM == 400);
PIN(NVLINK_TRANSFER_NOT_READY == 600);
PIN(NVLINK_TRANSFER_CAPTURING == 900);
PIN(NVLINK_TRANSFER_TIMED_OUT == 909);
PIN(NVLINK_TRANSFER_CANCELED == 20001);
PIN(NVLINK_TRANSFER_FAILED == 999);
PIN(NVLINK_TRANSFER_HANDLE_BYTES == 64);

PIN(sizeof(nvlink_transfer_stats_t) == 64);
PIN(offsetof(nvlink_transfer_stats_t, size) == 0);
PIN(offsetof(nvlink_transfer_stats_t, cached_handles) == 4);
PIN(offsetof(nvlink_transfer_stats_t, transfers) == 8);
PIN(offsetof(nvlink_transfer_stats_t, bytes) == 16);
PIN(offsetof(nvlink_transfer_stats_t, failures) == 24);
PIN(offsetof(nvlink_transfer_stats_t, opens) == 32);
PIN(offsetof(nvlink_transfer_stats_t, cache_hits) == 40);
PIN(offsetof(nvlink_transfer_stats_t, staged) == 48);
PIN(offsetof(nvlink_transfer_stats_t, open_handles) == 56);
