/* linkspan/linkspan.h - the C interface of linkspan, its only stable binary interface.
 *
 *   linkspan_engine* engine = NULL;
 *   if (linkspan_engine_open(NULL, &engine) != LINKSPAN_OK) puts(linkspan_last_error());
 *
 * Each function is documented at the C++ member of the same name in linkspan/{engine,peer,region,
 * transfer,prepared,captured_transfer,descriptor,future,completion_queue}.hpp. This header adds the
 * conventions of C:
 *
 * - The name of a function begins with the type of its first argument: linkspan_peer_send() is
 *   Peer::send(). C adds a suffix where C++ has an overload, as in linkspan_engine_publish_set().
 *   linkspan_ipc_...() keep the names of another project.
 * - A function that may fail returns a code; LINKSPAN_OK is 0. linkspan_last_error() then returns
 *   the text, which belongs to the calling thread until its next failure.
 * - A function stores what it creates through its last parameter, or NULL on an error. The caller
 *   owns it and frees it with the function of its type, which accepts NULL.
 * - Handles are counted references: a peer, a region or a transfer may be freed before or after
 *   its Engine. Freeing a handle ends nothing, except linkspan_engine_free(), which closes.
 * - A struct of options begins with its size: start from LINKSPAN_..._INIT. NULL instead of a
 *   struct means the same. A larger struct of a later release is accepted if the members that this
 *   release does not know are zero.
 * - Times are nanoseconds. A negative one is LINKSPAN_INVALID_ARGUMENT.
 * - Strings are UTF-8 and zero-terminated. The caller frees a returned char* with
 *   linkspan_text_free().
 *
 * Threads: any thread may call every function. A handle must not be freed while another thread
 * uses it.
 */
#ifndef LINKSPAN_LINKSPAN_H
#define LINKSPAN_LINKSPAN_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__) && !defined(_WIN32)
#define LINKSPAN_C_API __attribute__((visibility("default")))
#else
#define LINKSPAN_C_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* NOLINTBEGIN(readability-identifier-naming): as C spells types */

/* ---- codes and texts ------------------------------------------------------------------------ */

enum {
  LINKSPAN_OK = 0,
  LINKSPAN_INVALID_ARGUMENT = 1,
  LINKSPAN_UNSUPPORTED = 2,
  LINKSPAN_NO_RESOURCE = 3, /* not started; try again after progress */
  LINKSPAN_BUSY = 4,
  LINKSPAN_PENDING = 5,
  LINKSPAN_TIMED_OUT = 6,
  LINKSPAN_CANCELED = 7,
  LINKSPAN_NOT_FOUND = 8,
  LINKSPAN_PERMISSION_DENIED = 9,
  LINKSPAN_TRUNCATED = 10,
  LINKSPAN_UNREACHABLE = 11,
  LINKSPAN_DISCONNECTED = 12,
  LINKSPAN_CORRUPT = 13,
  LINKSPAN_CUDA = 14,
  LINKSPAN_SYSTEM = 15,
  LINKSPAN_INTERNAL = 16
};

/* The largest thing that can no longer be used. */
enum {
  LINKSPAN_SCOPE_REQUEST = 0,
  LINKSPAN_SCOPE_PEER = 1,
  LINKSPAN_SCOPE_TRANSPORT = 2,
  LINKSPAN_SCOPE_PROCESS = 3
};

LINKSPAN_C_API const char* linkspan_version(void);       /* "0.1.0" */
LINKSPAN_C_API const char* linkspan_code_name(int code); /* "timed_out"; "unknown" */
LINKSPAN_C_API const char* linkspan_last_error(void);    /* "": no failure yet */
LINKSPAN_C_API int linkspan_last_scope(void);            /* LINKSPAN_SCOPE_... of that failure */
LINKSPAN_C_API void linkspan_text_free(char* text);

/* ---- handles -------------------------------------------------------------------------------- */

typedef struct linkspan_engine linkspan_engine;
typedef struct linkspan_peer linkspan_peer;
typedef struct linkspan_region linkspan_region;               /* memory of this process */
typedef struct linkspan_remote_region linkspan_remote_region; /* memory of a peer */
typedef struct linkspan_region_set linkspan_region_set;       /* one version of a peer's set */
typedef struct linkspan_prepared linkspan_prepared;
typedef struct linkspan_captured_transfer linkspan_captured_transfer; /* in a CUDA graph */
typedef struct linkspan_transfer linkspan_transfer;
typedef struct linkspan_future linkspan_future; /* the result of a call that returned at once */
typedef struct linkspan_completion_queue linkspan_completion_queue;
typedef struct linkspan_notifications linkspan_notifications;
typedef struct linkspan_explanation linkspan_explanation;

LINKSPAN_C_API void linkspan_engine_free(linkspan_engine* engine); /* closes, with 5 s */
LINKSPAN_C_API void linkspan_peer_free(linkspan_peer* peer);
LINKSPAN_C_API void linkspan_region_free(linkspan_region* region);
LINKSPAN_C_API void linkspan_remote_region_free(linkspan_remote_region* region);
LINKSPAN_C_API void linkspan_region_set_free(linkspan_region_set* set);
LINKSPAN_C_API void linkspan_prepared_free(linkspan_prepared* prepared);
LINKSPAN_C_API void linkspan_captured_transfer_free(linkspan_captured_transfer* captured);
LINKSPAN_C_API void linkspan_transfer_free(linkspan_transfer* transfer);
LINKSPAN_C_API void linkspan_future_free(linkspan_future* future); /* the call goes on */
LINKSPAN_C_API void linkspan_completion_queue_free(linkspan_completion_queue* queue);
LINKSPAN_C_API void linkspan_notifications_free(linkspan_notifications* notifications);
LINKSPAN_C_API void linkspan_explanation_free(linkspan_explanation* explanation);

/* ---- the Engine ----------------------------------------------------------------------------- */

enum {
  LINKSPAN_LOG_DEBUG = 0,
  LINKSPAN_LOG_INFO = 1,
  LINKSPAN_LOG_WARNING = 2,
  LINKSPAN_LOG_ERROR = 3,
  LINKSPAN_LOG_OFF = 4
};

/* How TCP is protected (Security in types.hpp). */
enum {
  LINKSPAN_SECURITY_LOOPBACK_ONLY = 0,
  LINKSPAN_SECURITY_INSECURE = 1,
  LINKSPAN_SECURITY_AUTHENTICATED = 2, /* needs a secret, as does the next */
  LINKSPAN_SECURITY_ENCRYPTED = 3
};

/* An option of a transport, such as {"tcp.interfaces", "eth1,eth2"} (EngineOptions::transport). */
typedef struct linkspan_transport_option {
  const char* key;
  const char* value;
} linkspan_transport_option;

typedef struct linkspan_engine_options {
  size_t size;
  const char* name;       /* null: "pid N" */
  const char* socket_dir; /* null: the default */
  /* Receives a whole line of `bytes` bytes that is not zero-terminated. Runs on a thread that does
   * nothing else, so it may block and call linkspan. Null: stderr. */
  void (*log)(void* log_user, int level, const char* line, size_t bytes);
  void* log_user;
  int64_t transfer_deadline; /* 0: the default */
  uint32_t cpu_threads;      /* 0: the default */
  int32_t copy_ctas;         /* -1: the default */
  int32_t relay_gpus;        /* -1: the default */
  int32_t calibrate;         /* 0, 1, or -1: the default */
  int32_t any_uid;           /* 0 or 1 */
  int32_t use_gpu;           /* 0 or 1 */
  int32_t security;          /* LINKSPAN_SECURITY_..., or -1: the default */
  int32_t reserved;          /* 0 */
  const char* secret_file;   /* shared with peers over TCP; null: the default */
  /* Null: the defaults. */
  const linkspan_transport_option* transport;
  size_t transport_count;
  const char* secret; /* the secret itself, in the place of a file; null: the default */
  size_t secret_bytes;
} linkspan_engine_options;

LINKSPAN_C_API int linkspan_engine_open(const linkspan_engine_options* options,
                                        linkspan_engine** engine);
LINKSPAN_C_API int linkspan_engine_close(linkspan_engine* engine, int64_t timeout);
/* A null `address` makes up a name. */
LINKSPAN_C_API int linkspan_engine_listen(linkspan_engine* engine, const char* address);
LINKSPAN_C_API int linkspan_engine_connect(linkspan_engine* engine, const char* address,
                                           int64_t timeout, linkspan_peer** peer);
typedef struct linkspan_connect_options {
  size_t size;
  int64_t timeout;
  const char* expect; /* required name of the peer's Engine; null: any */
  /* The secret of the Engine that listens, of 16 to 4096 bytes, for this connection by TCP
   * (ConnectOptions::secret). Null: that of this Engine. */
  const char* secret;
  size_t secret_bytes;
} linkspan_connect_options;

LINKSPAN_C_API int linkspan_engine_connect_with(linkspan_engine* engine, const char* address,
                                                const linkspan_connect_options* options,
                                                linkspan_peer** peer);
LINKSPAN_C_API int linkspan_engine_accept(linkspan_engine* engine, int64_t timeout,
                                          linkspan_peer** peer);
LINKSPAN_C_API int linkspan_engine_find_peer(linkspan_engine* engine, const char* name,
                                             linkspan_peer** peer);
/* Stores new handles of at most `room` connected peers, which the caller frees, and in `count` how
 * many are connected. */
LINKSPAN_C_API int linkspan_engine_peers(linkspan_engine* engine, linkspan_peer** peers,
                                         size_t room, size_t* count);
/* Stores in `ended`, if not null, how many transfers became quiet by this call. */
LINKSPAN_C_API int linkspan_engine_progress(linkspan_engine* engine, size_t* ended);
/* Stores the notifications that arrived since the last call, and waits for the first. None before
 * the timeout: LINKSPAN_OK and an empty list. */
LINKSPAN_C_API int linkspan_engine_notifications(linkspan_engine* engine, int64_t timeout,
                                                 linkspan_notifications** notifications);
LINKSPAN_C_API int linkspan_engine_address(linkspan_engine* engine, char** text);
LINKSPAN_C_API int linkspan_engine_addresses(linkspan_engine* engine, char** text);
LINKSPAN_C_API int linkspan_engine_dump(linkspan_engine* engine, char** text);
LINKSPAN_C_API int linkspan_engine_metrics(linkspan_engine* engine, char** text);

LINKSPAN_C_API size_t linkspan_notifications_count(const linkspan_notifications* notifications);
/* The list owns `message`. */
LINKSPAN_C_API int linkspan_notifications_at(const linkspan_notifications* notifications,
                                             size_t index, uint64_t* peer_id, const void** message,
                                             size_t* bytes);

/* ---- memory --------------------------------------------------------------------------------- */

enum {
  LINKSPAN_MEMORY_HOST = 0,
  LINKSPAN_MEMORY_PINNED = 1,
  LINKSPAN_MEMORY_SHARED = 2,
  LINKSPAN_MEMORY_DEVICE = 3,
  LINKSPAN_MEMORY_MANAGED = 4
};

typedef struct linkspan_region_options {
  size_t size;
  int32_t peers_read, peers_write, exclusive; /* 0 or 1 */
  int32_t pin;                                /* 0 or 1 */
} linkspan_region_options;

LINKSPAN_C_API int linkspan_engine_register_memory(linkspan_engine* engine, void* pointer,
                                                   uint64_t bytes,
                                                   const linkspan_region_options* options,
                                                   linkspan_region** region);
LINKSPAN_C_API int linkspan_engine_allocate_shared(linkspan_engine* engine, uint64_t bytes,
                                                   const linkspan_region_options* options,
                                                   linkspan_region** region);
LINKSPAN_C_API int linkspan_engine_deregister(linkspan_engine* engine,
                                              const linkspan_region* region, int64_t timeout);
LINKSPAN_C_API int linkspan_engine_invalidate(linkspan_engine* engine,
                                              const linkspan_region* region, int64_t timeout);
LINKSPAN_C_API int linkspan_engine_publish(linkspan_engine* engine, const char* name,
                                           const linkspan_region* region);
LINKSPAN_C_API int linkspan_engine_publish_set(linkspan_engine* engine, const char* name,
                                               const linkspan_region* const* regions, size_t count,
                                               uint64_t* version);

/* Stores the bytes of Descriptor::serialize() in `buffer`, whose room is in `size`, and in `size`
 * their number. A null buffer asks for the number. LINKSPAN_TRUNCATED: the room is too small, and
 * `size` has what is needed. */
LINKSPAN_C_API int linkspan_engine_describe(linkspan_engine* engine, const char* name, void* buffer,
                                            size_t* size);
/* Takes the bytes of a Descriptor, from any language. Stores the peer and its regions; the set has
 * version 0 if one region was described. */
LINKSPAN_C_API int linkspan_engine_lookup_descriptor(linkspan_engine* engine,
                                                     const void* descriptor, size_t size,
                                                     int64_t timeout, linkspan_peer** peer,
                                                     linkspan_region_set** set);

/* For a null handle these return 0, null or LINKSPAN_MEMORY_HOST. */
LINKSPAN_C_API uint64_t linkspan_region_bytes(const linkspan_region* region);
LINKSPAN_C_API int linkspan_region_kind(const linkspan_region* region);
LINKSPAN_C_API void* linkspan_region_data(const linkspan_region* region);
/* Stores the UUID of cuDeviceGetUuid; all zero: the memory is not a GPU's. */
LINKSPAN_C_API void linkspan_region_gpu(const linkspan_region* region, uint8_t uuid[16]);

LINKSPAN_C_API uint64_t linkspan_remote_region_bytes(const linkspan_remote_region* region);
LINKSPAN_C_API int linkspan_remote_region_kind(const linkspan_remote_region* region);
LINKSPAN_C_API uint64_t linkspan_remote_region_peer(const linkspan_remote_region* region);
LINKSPAN_C_API int linkspan_remote_region_name(const linkspan_remote_region* region, char** text);

/* ---- peers ---------------------------------------------------------------------------------- */

enum { LINKSPAN_PEER_UP = 0, LINKSPAN_PEER_LOST = 1, LINKSPAN_PEER_GONE = 2 };

LINKSPAN_C_API uint64_t linkspan_peer_id(const linkspan_peer* peer); /* 0: null */
LINKSPAN_C_API int linkspan_peer_state(const linkspan_peer* peer);
LINKSPAN_C_API int linkspan_peer_name(const linkspan_peer* peer, char** text);
/* Disconnects this peer, for all its handles; each must still be freed. */
LINKSPAN_C_API int linkspan_peer_close(const linkspan_peer* peer, int64_t timeout);
LINKSPAN_C_API int linkspan_peer_lookup(const linkspan_peer* peer, const char* name,
                                        int64_t timeout, linkspan_remote_region** region);
LINKSPAN_C_API int linkspan_peer_lookup_set(const linkspan_peer* peer, const char* name,
                                            int64_t timeout, linkspan_region_set** set);
/* Imports the regions of `count` names; the set has them in that order, and version 0. */
LINKSPAN_C_API int linkspan_peer_lookup_all(const linkspan_peer* peer, const char* const* names,
                                            size_t count, int64_t timeout,
                                            linkspan_region_set** set);
/* As linkspan_peer_lookup_set(), but takes regions that `known` has as well from there. */
LINKSPAN_C_API int linkspan_peer_update_set(const linkspan_peer* peer, const char* name,
                                            const linkspan_region_set* known, int64_t timeout,
                                            linkspan_region_set** set);
LINKSPAN_C_API int linkspan_peer_await_version(const linkspan_peer* peer, const char* name,
                                               uint64_t above, int64_t timeout, uint64_t* version);
LINKSPAN_C_API int linkspan_peer_notify(const linkspan_peer* peer, const void* message,
                                        size_t bytes);

LINKSPAN_C_API uint64_t linkspan_region_set_version(const linkspan_region_set* set);
LINKSPAN_C_API size_t linkspan_region_set_count(const linkspan_region_set* set);
/* Stores a new handle, which the caller frees. */
LINKSPAN_C_API int linkspan_region_set_at(const linkspan_region_set* set, size_t index,
                                          linkspan_remote_region** region);

/* ---- shapes --------------------------------------------------------------------------------- */

typedef struct linkspan_block {
  uint64_t local_offset, remote_offset, bytes;
} linkspan_block;

typedef struct linkspan_pages {
  uint64_t page_bytes, local_base, remote_base;
  const uint32_t *local_index, *remote_index; /* `count` each */
  size_t count;
  int32_t indices_on_gpu; /* 0 or 1 */
} linkspan_pages;

typedef struct linkspan_strides {
  uint64_t bytes, local_base, remote_base;
  struct {
    uint64_t count, local_step, remote_step;
  } levels[3]; /* a level that is not used has count 1 */
} linkspan_strides;

/* Exactly one of the three is set; none means no block. Everything is read during the call only,
 * except index lists on a GPU. */
typedef struct linkspan_shape {
  size_t size;
  const linkspan_block* blocks;
  size_t block_count;
  const linkspan_pages* pages;
  const linkspan_strides* strides;
} linkspan_shape;

/* ---- transfers ------------------------------------------------------------------------------ */

enum { LINKSPAN_WRITE = 0, LINKSPAN_READ = 1 };

enum {
  LINKSPAN_STREAM_NONE = 0,
  LINKSPAN_STREAM_CREATED = 1, /* `handle` is a cudaStream_t of cudaStreamCreate...() */
  LINKSPAN_STREAM_LEGACY_DEFAULT = 2,
  LINKSPAN_STREAM_PER_THREAD_DEFAULT = 3
};

typedef struct linkspan_stream {
  int32_t kind;    /* LINKSPAN_STREAM_... */
  uint8_t gpu[16]; /* the UUID of cuDeviceGetUuid */
  void* handle;
} linkspan_stream;

typedef struct linkspan_transfer_options {
  size_t size;
  int64_t deadline;         /* 0: the Engine's */
  const void* notification; /* `notification_bytes` bytes */
  size_t notification_bytes;
  const char* require; /* null: any path */
  linkspan_stream after, release;
  int32_t low_latency; /* 0 or 1 */
  int32_t copy_ctas;   /* -1: the Engine's */
  int32_t checksum;    /* 0 or 1 */
  int32_t failover;    /* 0 or 1 */
} linkspan_transfer_options;

/* `op` is LINKSPAN_WRITE or LINKSPAN_READ. */
LINKSPAN_C_API int linkspan_peer_submit(const linkspan_peer* peer, int op,
                                        const linkspan_region* local,
                                        const linkspan_remote_region* remote,
                                        const linkspan_shape* shape,
                                        const linkspan_transfer_options* options,
                                        linkspan_transfer** transfer);

/* A local region, one of the peer's, and what a transfer of several pairs copies between them. */
typedef struct linkspan_transfer_part {
  const linkspan_region* local;
  const linkspan_remote_region* remote;
  const linkspan_shape* shape;
} linkspan_transfer_part;

/* Starts or queues one transfer between `count` pairs of regions (Peer::write of parts). Errors of
 * a pair name its index; nothing was started then. LINKSPAN_INVALID_ARGUMENT also: no pair, more
 * than 65,536, or a null member. */
LINKSPAN_C_API int linkspan_peer_submit_parts(const linkspan_peer* peer, int op,
                                              const linkspan_transfer_part* parts, size_t count,
                                              const linkspan_transfer_options* options,
                                              linkspan_transfer** transfer);
/* Does the same with one shape, which is copied between local[i] and remote[i] for each i below
 * `count`. */
LINKSPAN_C_API int linkspan_peer_submit_regions(const linkspan_peer* peer, int op,
                                                const linkspan_region* const* local,
                                                const linkspan_remote_region* const* remote,
                                                size_t count, const linkspan_shape* shape,
                                                const linkspan_transfer_options* options,
                                                linkspan_transfer** transfer);
/* Stores the code and the transfer of targets[i] in codes[i] and transfers[i]; each target succeeds
 * or fails alone. Returns the first code that is not LINKSPAN_OK. */
LINKSPAN_C_API int linkspan_engine_write_to_all(linkspan_engine* engine,
                                                const linkspan_region* local,
                                                const linkspan_remote_region* const* targets,
                                                size_t count, const linkspan_shape* shape,
                                                const linkspan_transfer_options* options,
                                                int* codes, linkspan_transfer** transfers);
LINKSPAN_C_API int linkspan_peer_prepare(const linkspan_peer* peer, int op,
                                         const linkspan_region* local,
                                         const linkspan_remote_region* remote,
                                         const linkspan_shape* shape, linkspan_prepared** prepared);
/* Prepares what linkspan_peer_submit_parts() takes. */
LINKSPAN_C_API int linkspan_peer_prepare_parts(const linkspan_peer* peer, int op,
                                               const linkspan_transfer_part* parts, size_t count,
                                               linkspan_prepared** prepared);
/* Prepares what linkspan_peer_submit_regions() takes. */
LINKSPAN_C_API int linkspan_peer_prepare_regions(const linkspan_peer* peer, int op,
                                                 const linkspan_region* const* local,
                                                 const linkspan_remote_region* const* remote,
                                                 size_t count, const linkspan_shape* shape,
                                                 linkspan_prepared** prepared);
LINKSPAN_C_API uint64_t linkspan_prepared_bytes(const linkspan_prepared* prepared);
LINKSPAN_C_API int linkspan_prepared_post(const linkspan_prepared* prepared,
                                          const linkspan_transfer_options* options,
                                          linkspan_transfer** transfer);
/* Posts only the pages at these positions of the prepared lists. */
LINKSPAN_C_API int linkspan_prepared_post_some(const linkspan_prepared* prepared,
                                               const uint32_t* positions, size_t count,
                                               const linkspan_transfer_options* options,
                                               linkspan_transfer** transfer);
/* Posts only the pairs of regions with these indices. */
LINKSPAN_C_API int linkspan_prepared_post_pairs(const linkspan_prepared* prepared,
                                                const uint32_t* indices, size_t count,
                                                const linkspan_transfer_options* options,
                                                linkspan_transfer** transfer);

typedef struct linkspan_capture_options {
  size_t size;
  const void* notification; /* `notification_bytes` bytes, after the data of each launch */
  size_t notification_bytes;
  int32_t copy_ctas; /* -1: the Engine's */
  int32_t reserved;  /* 0 */
} linkspan_capture_options;

/* Makes it a node of the CUDA graph that `stream` captures; each launch of the graph moves it. */
LINKSPAN_C_API int linkspan_prepared_capture(const linkspan_prepared* prepared,
                                             const linkspan_stream* stream,
                                             const linkspan_capture_options* options,
                                             linkspan_captured_transfer** captured);
LINKSPAN_C_API uint64_t
linkspan_captured_transfer_bytes(const linkspan_captured_transfer* captured);
/* How many launches have completed, and how many were refused after the end. */
LINKSPAN_C_API uint64_t
linkspan_captured_transfer_completed(const linkspan_captured_transfer* captured);
LINKSPAN_C_API uint64_t
linkspan_captured_transfer_refused(const linkspan_captured_transfer* captured);
/* LINKSPAN_PENDING: fewer than `n` launches have completed at the timeout. */
LINKSPAN_C_API int linkspan_captured_transfer_wait(const linkspan_captured_transfer* captured,
                                                   uint64_t n, int64_t timeout);
LINKSPAN_C_API int linkspan_captured_transfer_status(const linkspan_captured_transfer* captured);
/* LINKSPAN_PENDING: a launch still copies at the timeout; call again. */
LINKSPAN_C_API int linkspan_captured_transfer_close(const linkspan_captured_transfer* captured,
                                                    int64_t timeout);

LINKSPAN_C_API int linkspan_peer_send(const linkspan_peer* peer, uint64_t tag, const void* data,
                                      uint64_t bytes, const linkspan_transfer_options* options,
                                      linkspan_transfer** transfer);
LINKSPAN_C_API int linkspan_peer_recv(const linkspan_peer* peer, uint64_t tag, void* data,
                                      uint64_t bytes, const linkspan_transfer_options* options,
                                      linkspan_transfer** transfer);
/* Documented in linkspan/compat/ipc.hpp. A `deadline` of 0 is the default. */
LINKSPAN_C_API int linkspan_ipc_send(linkspan_engine* engine, uint64_t conn_id, const void* data,
                                     size_t bytes, int64_t deadline);
LINKSPAN_C_API int linkspan_ipc_recv(linkspan_engine* engine, uint64_t conn_id, void* data,
                                     size_t bytes, int64_t deadline);
LINKSPAN_C_API int linkspan_ipc_send_async(linkspan_engine* engine, uint64_t conn_id,
                                           const void* data, size_t bytes, int64_t deadline,
                                           linkspan_transfer** transfer);
LINKSPAN_C_API int linkspan_ipc_recv_async(linkspan_engine* engine, uint64_t conn_id, void* data,
                                           size_t bytes, int64_t deadline,
                                           linkspan_transfer** transfer);

LINKSPAN_C_API int linkspan_transfer_wait(const linkspan_transfer* transfer, int64_t timeout);
LINKSPAN_C_API int linkspan_transfer_done(const linkspan_transfer* transfer); /* 0 or 1 */
LINKSPAN_C_API int linkspan_transfer_status(const linkspan_transfer* transfer);
LINKSPAN_C_API int linkspan_transfer_cancel(const linkspan_transfer* transfer);
LINKSPAN_C_API uint64_t linkspan_transfer_bytes(const linkspan_transfer* transfer);
LINKSPAN_C_API uint64_t linkspan_transfer_id(const linkspan_transfer* transfer);

/* ---- calls that return at once -------------------------------------------------------------- */

/* These never wait. LINKSPAN_OK: the future has the outcome, also if the call failed at once. Each
 * time counts from the call. A null `options` or `known` is the default. */
LINKSPAN_C_API int linkspan_engine_connect_async(linkspan_engine* engine, const char* address,
                                                 const linkspan_connect_options* options,
                                                 linkspan_future** future);
LINKSPAN_C_API int linkspan_engine_deregister_async(linkspan_engine* engine,
                                                    const linkspan_region* region, int64_t timeout,
                                                    linkspan_future** future);
LINKSPAN_C_API int linkspan_engine_invalidate_async(linkspan_engine* engine,
                                                    const linkspan_region* region, int64_t timeout,
                                                    linkspan_future** future);
LINKSPAN_C_API int linkspan_peer_lookup_async(const linkspan_peer* peer, const char* name,
                                              int64_t timeout, linkspan_future** future);
LINKSPAN_C_API int linkspan_peer_lookup_set_async(const linkspan_peer* peer, const char* name,
                                                  const linkspan_region_set* known, int64_t timeout,
                                                  linkspan_future** future);

LINKSPAN_C_API int linkspan_future_done(const linkspan_future* future); /* 0 or 1 */
/* Returns what the waiting call would have returned, or LINKSPAN_PENDING. */
LINKSPAN_C_API int linkspan_future_wait(const linkspan_future* future, int64_t timeout);
LINKSPAN_C_API int linkspan_future_cancel(const linkspan_future* future);
/* Stores a new handle of the result, which the caller frees, and does not wait. Errors:
 * LINKSPAN_PENDING, that of the call, and LINKSPAN_INVALID_ARGUMENT for a future of another kind.
 */
LINKSPAN_C_API int linkspan_future_peer(const linkspan_future* future, linkspan_peer** peer);
LINKSPAN_C_API int linkspan_future_remote_region(const linkspan_future* future,
                                                 linkspan_remote_region** region);
LINKSPAN_C_API int linkspan_future_region_set(const linkspan_future* future,
                                              linkspan_region_set** set);

/* ---- completion queues, for event loops ----------------------------------------------------- */

LINKSPAN_C_API int linkspan_completion_queue_create(linkspan_completion_queue** queue);
/* Returns -1 for null. */
LINKSPAN_C_API int linkspan_completion_queue_fd(const linkspan_completion_queue* queue);
LINKSPAN_C_API int linkspan_completion_queue_add(linkspan_completion_queue* queue,
                                                 const linkspan_transfer* transfer,
                                                 uint64_t cookie);
LINKSPAN_C_API int linkspan_completion_queue_add_future(linkspan_completion_queue* queue,
                                                        const linkspan_future* future,
                                                        uint64_t cookie);
/* Stores at most `room` cookies and their number in `count`. The descriptor stays readable while
 * some are left. */
LINKSPAN_C_API int linkspan_completion_queue_take(linkspan_completion_queue* queue,
                                                  uint64_t* cookies, size_t room, size_t* count);

/* ---- paths, and why they are chosen --------------------------------------------------------- */

LINKSPAN_C_API int linkspan_peer_explain(const linkspan_peer* peer, int op,
                                         const linkspan_region* local,
                                         const linkspan_remote_region* remote, uint64_t blocks,
                                         uint64_t bytes, const linkspan_transfer_options* options,
                                         linkspan_explanation** explanation);
/* The explanation owns these texts. For null they are "". */
LINKSPAN_C_API const char* linkspan_explanation_path(const linkspan_explanation* explanation);
LINKSPAN_C_API const char* linkspan_explanation_executor(const linkspan_explanation* explanation);
LINKSPAN_C_API const char* linkspan_explanation_reason(const linkspan_explanation* explanation);
LINKSPAN_C_API double linkspan_explanation_gbps(const linkspan_explanation* explanation);
/* Better paths, the best first, and why each is refused. "" for an index beyond the count. */
LINKSPAN_C_API size_t linkspan_explanation_refused_count(const linkspan_explanation* explanation);
LINKSPAN_C_API const char* linkspan_explanation_refused_path(
    const linkspan_explanation* explanation, size_t index);
LINKSPAN_C_API const char* linkspan_explanation_refused_reason(
    const linkspan_explanation* explanation, size_t index);

/* ---- defaults ------------------------------------------------------------------------------- */

/* Each sets the members that it does not name to zero. The pragma keeps g++ -Wextra from a warning
 * of each such member in a C++ program. */
#ifdef __GNUC__
#pragma GCC system_header
#endif

#define LINKSPAN_ENGINE_OPTIONS_INIT                                                             \
  {                                                                                              \
    .size = sizeof(linkspan_engine_options), .copy_ctas = -1, .relay_gpus = -1, .calibrate = -1, \
    .use_gpu = 1, .security = -1                                                                 \
  }

#define LINKSPAN_CONNECT_OPTIONS_INIT \
  { .size = sizeof(linkspan_connect_options), .timeout = INT64_C(10000000000) }

#define LINKSPAN_REGION_OPTIONS_INIT \
  { .size = sizeof(linkspan_region_options), .peers_read = 1, .peers_write = 1 }

#define LINKSPAN_STRIDES_INIT                              \
  {                                                        \
    .levels = { {.count = 1}, {.count = 1}, {.count = 1} } \
  }

#define LINKSPAN_SHAPE_INIT \
  { .size = sizeof(linkspan_shape) }

#define LINKSPAN_TRANSFER_OPTIONS_INIT \
  { .size = sizeof(linkspan_transfer_options), .copy_ctas = -1, .failover = 1 }

#define LINKSPAN_CAPTURE_OPTIONS_INIT \
  { .size = sizeof(linkspan_capture_options), .copy_ctas = -1 }

/* NOLINTEND(readability-identifier-naming) */

#ifdef __cplusplus
}
#endif

#endif
