/* linkspan/nvlink_transfer.h - copies between GPUs and processes through CUDA IPC handles.
 *
 * Plain C, no other header of linkspan, no CUDA header: for programs that load
 * libnvlink_transfer.so (nvlink_transfer.dll) by name. The library finds the CUDA driver when the
 * first call needs it; it loads, and answers, on a machine without one.
 *
 * Codes are CUDA's own numbers (cudaError_t, which the driver's CUresult shares), and 0 is success.
 * Every failure also leaves a text in nvlink_transfer_last_error() that names the step.
 *
 * Threads: every function from any thread, unless it says otherwise. The caller's current context,
 * its capture mode and its cudaGetLastError() are as they were before.
 */
#ifndef LINKSPAN_NVLINK_TRANSFER_H
#define LINKSPAN_NVLINK_TRANSFER_H

#include <stdint.h>

#if defined(_WIN32)
#if defined(NVLINK_TRANSFER_BUILD)
#define NVLINK_TRANSFER_API __declspec(dllexport)
#else
#define NVLINK_TRANSFER_API __declspec(dllimport)
#endif
#elif defined(__GNUC__)
#define NVLINK_TRANSFER_API __attribute__((visibility("default")))
#else
#define NVLINK_TRANSFER_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What this library answers by itself. Any other number comes from the driver. */
enum {
  NVLINK_TRANSFER_OK = 0,
  NVLINK_TRANSFER_INVALID_VALUE = 1,           /* out of bounds; a handle beyond 64 bytes; no device
                                                  memory; a handle that does not open */
  NVLINK_TRANSFER_INVALID_DEVICE_POINTER = 17, /* neither a handle nor a pointer */
  NVLINK_TRANSFER_NO_DRIVER = 35,              /* no CUDA driver, or one older than 12.0 */
  NVLINK_TRANSFER_NO_DEVICE = 100,             /* a driver, but no GPU that this process sees */
  NVLINK_TRANSFER_INVALID_DEVICE = 101,        /* no GPU of that ordinal */
  NVLINK_TRANSFER_INVALID_STREAM = 400,        /* a stream of another GPU, or none at all */
  NVLINK_TRANSFER_NOT_READY = 600,             /* a transfer that was begun goes on */
  NVLINK_TRANSFER_CAPTURING = 900,             /* the stream records a graph */
  NVLINK_TRANSFER_TIMED_OUT = 909,             /* a transfer ended at its deadline */
  NVLINK_TRANSFER_CANCELED = 20001,            /* a transfer ended at nvlink_transfer_cancel() */
  NVLINK_TRANSFER_FAILED = 999                 /* out of memory, no thread, or a defect */
};

#define NVLINK_TRANSFER_HANDLE_BYTES 64

/* Copies size_bytes bytes from a source to a target, and returns when they are there.
 *
 * A side with a handle (not null, size not 0) is an allocation of another process: the handle is
 * opened on that side's GPU for this call, the pointer is ignored, and the bytes begin
 * ..._offset_bytes into the allocation. A handle of fewer than 64 bytes is filled up with zeros. A
 * handle of this very process, which CUDA refuses to open, stands for the allocation that the
 * pointer lies in. A side without a handle begins ..._offset_bytes behind the pointer, which is
 * device memory of this process. GPUs are ordinals as this process counts them; both may be the
 * same. To close a handle waits for all that is in flight on its GPU, a stream that stands still
 * too: that is CUDA's doing, and nvlink_transfer_set_handle_cache() spares it.
 *
 * The copy runs in `stream`, a cudaStream_t of the source GPU; null: the legacy default stream of
 * the source GPU. It comes after the work that is in the stream, and the call returns when the
 * stream is done with it. Without peer access between the GPUs the driver stages the copy through
 * host memory, and the log callback is told so, once for each pair.
 *
 * Answers 0 for 0 bytes, whatever the rest. On an error the target's bytes are undefined, unless
 * nothing was begun: all but the driver's own errors say that nothing was.
 */
NVLINK_TRANSFER_API int perform_direct_transfer(
    int source_gpu, uint64_t source_ptr, int target_gpu, uint64_t target_ptr, uint64_t size_bytes,
    const void* src_ipc_handle, unsigned src_ipc_handle_size, const void* dst_ipc_handle,
    unsigned dst_ipc_handle_size, uint64_t src_offset_bytes, uint64_t dst_offset_bytes,
    void* stream);

/* ---- the same without waiting ---------------------------------------------------------------- */

/* Begins such a transfer: checks and opens as above, then copies in a stream of the library's that
 * follows `stream` as it stands now; that stream does not wait for the copy. `timeout_ms` from now
 * the transfer ends as NVLINK_TRANSFER_TIMED_OUT; 0: never. *id, not null, becomes its number,
 * which is never 0. Handles are closed after the end was told. 16 run at once, 65536 are
 * kept. */
NVLINK_TRANSFER_API int nvlink_transfer_begin(
    int source_gpu, uint64_t source_ptr, int target_gpu, uint64_t target_ptr, uint64_t size_bytes,
    const void* src_ipc_handle, unsigned src_ipc_handle_size, const void* dst_ipc_handle,
    unsigned dst_ipc_handle_size, uint64_t src_offset_bytes, uint64_t dst_offset_bytes,
    void* stream, uint32_t timeout_ms, uint64_t* id);
/* NVLINK_TRANSFER_NOT_READY while it runs; then how it ended, once: that forgets the number.
 * *done_bytes, if not null: how many bytes are in place. INVALID_VALUE: no such number. After any
 * answer but NOT_READY nothing touches the memory any more. */
NVLINK_TRANSFER_API int nvlink_transfer_test(uint64_t id, uint64_t* done_bytes);
/* The same after waiting for it, at most timeout_ms. */
NVLINK_TRANSFER_API int nvlink_transfer_wait(uint64_t id, uint32_t timeout_ms);
/* Asks it to end early. It is not over before test() or wait() says so: what a copy engine has
 * begun, at most 64 MiB, is finished. 0, or INVALID_VALUE: no such number. */
NVLINK_TRANSFER_API int nvlink_transfer_cancel(uint64_t id);

/* ---- what happened ----------------------------------------------------------------------------*/

/* "0.1.0". */
NVLINK_TRANSFER_API const char* nvlink_transfer_version(void);
/* "CUDA_ERROR_INVALID_DEVICE: invalid device ordinal"; never null. Static text. */
NVLINK_TRANSFER_API const char* nvlink_transfer_error_string(int code);
/* Of this thread's last call that failed: which step, on what, why, and the remedy. "" if none
 * did. Valid until the thread's next call. */
NVLINK_TRANSFER_API const char* nvlink_transfer_last_error(void);

/* 0 debug, 1 info, 2 warning, 3 error. Called from any thread, one call at a time. It may call this
 * library, also to set another callback; what these calls log is dropped. Null: nothing is logged,
 * as at the beginning. When this returns, the old callback is not running. */
typedef void (*nvlink_transfer_log)(int level, const char* text, void* user);
NVLINK_TRANSFER_API void nvlink_transfer_set_log_callback(nvlink_transfer_log callback, void* user);

/* Keeps up to max opened handles open, the most recently used; 0, the beginning: none, each is
 * closed by the call that opened it. A mapping keeps its exporter's memory from being freed; the
 * handle of a new allocation differs from that of the old one, so a kept mapping never stands for
 * new memory. Lowering it closes the rest, which waits for what is in flight on those GPUs. At most
 * 65536. */
NVLINK_TRANSFER_API int nvlink_transfer_set_handle_cache(unsigned max);

/* NOLINTNEXTLINE(readability-identifier-naming) */
typedef struct nvlink_transfer_stats_t {
  uint32_t size;              /* of this struct; set by the caller */
  uint32_t cached_handles;    /* open now */
  uint64_t transfers, bytes;  /* that succeeded */
  uint64_t failures;          /* of any kind, timed out and canceled ones too */
  uint64_t opens, cache_hits; /* of handles */
  uint64_t staged;            /* transfers without peer access */
  uint64_t open_handles;      /* now: cached ones, and those of transfers until they are closed */
} nvlink_transfer_stats_t;
/* Since the library was loaded. INVALID_VALUE: null, or a size below 8. */
NVLINK_TRANSFER_API int nvlink_transfer_stats(nvlink_transfer_stats_t* stats);

/* ---- for engines that look for it here -------------------------------------------------------
 * A weak symbol where the platform has those: a process that has the CUDA runtime keeps its own. */
/* NOLINTNEXTLINE(readability-identifier-naming) */
NVLINK_TRANSFER_API const char* cudaGetErrorString(int code);

#ifdef __cplusplus
}
#endif
#endif
