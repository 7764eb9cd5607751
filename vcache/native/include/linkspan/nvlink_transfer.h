/* linkspan/nvlink_transfer.h - copies between GPUs and processes through CUDA IPC handles.
 *
 * Plain C without other headers of linkspan or CUDA, for programs that load libnvlink_transfer.so
 * (nvlink_transfer.dll) by name. The library loads the CUDA driver at the first call that needs it,
 * and also works on a machine without one: calls then return NVLINK_TRANSFER_NO_DRIVER.
 *
 * Codes are CUDA's numbers (cudaError_t, equal to the driver's CUresult); 0 is success. Every
 * failure also sets a text that names the step: nvlink_transfer_last_error().
 *
 * Threads: any thread may call every function. Calls preserve the thread's current context, its
 * capture mode and its cudaGetLastError().
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

/* Codes that this library returns itself. Any other number comes from the driver. */
enum {
  NVLINK_TRANSFER_OK = 0,
  NVLINK_TRANSFER_INVALID_VALUE = 1,           /* out of bounds; a handle beyond 64 bytes; no device
                                                  memory; a handle that does not open */
  NVLINK_TRANSFER_INVALID_DEVICE_POINTER = 17, /* neither a handle nor a pointer */
  NVLINK_TRANSFER_NO_DRIVER = 35,              /* no CUDA driver, or one older than 12.0 */
  NVLINK_TRANSFER_NO_DEVICE = 100,             /* a driver, but no GPU that this process sees */
  NVLINK_TRANSFER_INVALID_DEVICE = 101,        /* no GPU of that ordinal */
  NVLINK_TRANSFER_INVALID_STREAM = 400,        /* a stream of another GPU, or no stream */
  NVLINK_TRANSFER_NOT_READY = 600,             /* the transfer is still running */
  NVLINK_TRANSFER_CAPTURING = 900,             /* the stream is capturing a graph */
  NVLINK_TRANSFER_TIMED_OUT = 909,             /* the transfer ended at its deadline */
  NVLINK_TRANSFER_CANCELED = 20001,            /* the transfer was canceled */
  NVLINK_TRANSFER_FAILED = 999                 /* out of memory, no thread, or a defect */
};

#define NVLINK_TRANSFER_HANDLE_BYTES 64

/* Copies size_bytes bytes from a source to a target, and returns when the copy is complete.
 *
 * A side with a handle (not null, size not 0) is an allocation of another process: this call opens
 * the handle on that side's GPU and ignores the pointer; the bytes begin ..._offset_bytes into the
 * allocation. A handle of fewer than 64 bytes is padded with zeros. CUDA cannot open a handle of
 * this process itself; such a handle stands for the allocation that contains the pointer. A side
 * without a handle begins at pointer + ..._offset_bytes, in device memory of this process. GPUs are
 * ordinals of this process; both may be the same. Closing a handle makes CUDA wait for all work in
 * flight on its GPU, including streams that wait themselves; nvlink_transfer_set_handle_cache()
 * avoids that.
 *
 * The copy runs in `stream`, a cudaStream_t of the source GPU, after the work already in it. Null:
 * the legacy default stream of the source GPU. Without peer access between the GPUs the driver
 * stages the copy through host memory, which is logged once for each pair of GPUs.
 *
 * 0 bytes succeed with any other arguments. An error that comes from the driver leaves the target's
 * bytes undefined; any other error means that no copy was started.
 */
NVLINK_TRANSFER_API int perform_direct_transfer(
    int source_gpu, uint64_t source_ptr, int target_gpu, uint64_t target_ptr, uint64_t size_bytes,
    const void* src_ipc_handle, unsigned src_ipc_handle_size, const void* dst_ipc_handle,
    unsigned dst_ipc_handle_size, uint64_t src_offset_bytes, uint64_t dst_offset_bytes,
    void* stream);

/* ---- asynchronous transfers ------------------------------------------------------------------ */

/* Starts a transfer and returns. It checks and opens as above, then copies in a stream of the
 * library, after the work that is in `stream` now; `stream` does not wait for the copy. After
 * `timeout_ms` the transfer ends as NVLINK_TRANSFER_TIMED_OUT; 0: no timeout. Stores the transfer's
 * id, never 0, in *id, which must not be null. Handles are closed after the end was reported. 16
 * transfers run at once; at most 65536 are kept. */
NVLINK_TRANSFER_API int nvlink_transfer_begin(
    int source_gpu, uint64_t source_ptr, int target_gpu, uint64_t target_ptr, uint64_t size_bytes,
    const void* src_ipc_handle, unsigned src_ipc_handle_size, const void* dst_ipc_handle,
    unsigned dst_ipc_handle_size, uint64_t src_offset_bytes, uint64_t dst_offset_bytes,
    void* stream, uint32_t timeout_ms, uint64_t* id);
/* Returns NVLINK_TRANSFER_NOT_READY while the transfer runs, then its final code once; after that
 * the id is invalid. Stores in *done_bytes, if not null, how many bytes are in place.
 * INVALID_VALUE: no such id. After any code but NOT_READY the transfer no longer touches memory. */
NVLINK_TRANSFER_API int nvlink_transfer_test(uint64_t id, uint64_t* done_bytes);
/* Waits at most timeout_ms for the transfer, then returns what nvlink_transfer_test() returns. */
NVLINK_TRANSFER_API int nvlink_transfer_wait(uint64_t id, uint32_t timeout_ms);
/* Requests an early end. The transfer runs until test() or wait() returns its final code: a copy
 * engine finishes what it has begun, at most 64 MiB. INVALID_VALUE: no such id. */
NVLINK_TRANSFER_API int nvlink_transfer_cancel(uint64_t id);

/* ---- errors, log, cache, statistics -----------------------------------------------------------*/

/* Returns "0.1.0". */
NVLINK_TRANSFER_API const char* nvlink_transfer_version(void);
/* Returns a static text, never null: "CUDA_ERROR_INVALID_DEVICE: invalid device ordinal". */
NVLINK_TRANSFER_API const char* nvlink_transfer_error_string(int code);
/* Returns the text of this thread's last failure: the step, its object, the cause and the remedy.
 * "" without a failure. At most 1023 bytes, valid until the thread's next call. */
NVLINK_TRANSFER_API const char* nvlink_transfer_last_error(void);

/* Receives the log. level: 0 debug, 1 info, 2 warning, 3 error. Runs on any thread, one call at a
 * time. It may call this library, also to set another callback; log lines of those calls are
 * dropped. */
typedef void (*nvlink_transfer_log)(int level, const char* text, void* user);
/* Sets the log callback. Null, the initial state, disables the log. When this returns, the old
 * callback is not running. */
NVLINK_TRANSFER_API void nvlink_transfer_set_log_callback(nvlink_transfer_log callback, void* user);

/* Sets how many handles stay open, the most recently used ones; at most 65536. 0, the initial
 * value, closes each handle in the call that opened it. An open handle keeps the exporter's memory
 * from being freed. A new allocation has a different handle, so a cached mapping never stands for
 * new memory. Lowering the number closes the rest, which waits for the work in flight on those
 * GPUs. */
NVLINK_TRANSFER_API int nvlink_transfer_set_handle_cache(unsigned max);

/* NOLINTNEXTLINE(readability-identifier-naming) */
typedef struct nvlink_transfer_stats_t {
  uint32_t size;              /* of this struct; set by the caller */
  uint32_t cached_handles;    /* handles in the cache now */
  uint64_t transfers, bytes;  /* that succeeded */
  uint64_t failures;          /* including timed out and canceled transfers */
  uint64_t opens, cache_hits; /* of handles */
  uint64_t staged;            /* transfers without peer access */
  uint64_t open_handles;      /* now: cached handles, and those of transfers */
} nvlink_transfer_stats_t;
/* Stores the counts since the library was loaded. INVALID_VALUE: null, or a size below 8. */
NVLINK_TRANSFER_API int nvlink_transfer_stats(nvlink_transfer_stats_t* stats);

/* ---- for engines that expect this symbol here ------------------------------------------------
 * A weak symbol where the platform has them: a process with the CUDA runtime uses its own. */
/* NOLINTNEXTLINE(readability-identifier-naming) */
NVLINK_TRANSFER_API const char* cudaGetErrorString(int code);

#ifdef __cplusplus
}
#endif
#endif
