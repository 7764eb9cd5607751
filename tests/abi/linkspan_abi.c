/* tests/abi/linkspan_abi.c - pins the C ABI of liblinkspan: every signature, every code, the layout
 * of every struct, on a machine of 64 bits.
 *
 * Plain C99, pedantic: nothing runs, it compiles or it does not. A change of a line here breaks
 * programs that are in use. A struct of options may grow at its end: its size here grows with it,
 * and nothing before it moves.
 */
#include <stddef.h>

#include "linkspan/linkspan.h"
#include "tests/abi/pin.h"

PIN_CALL(linkspan_version, const char*, (void));
PIN_CALL(linkspan_code_name, const char*, (int));
PIN_CALL(linkspan_last_error, const char*, (void));
PIN_CALL(linkspan_last_scope, int, (void));
PIN_CALL(linkspan_text_free, void, (char*));
PIN_CALL(linkspan_engine_free, void, (linkspan_engine*));
PIN_CALL(linkspan_peer_free, void, (linkspan_peer*));
PIN_CALL(linkspan_region_free, void, (linkspan_region*));
PIN_CALL(linkspan_remote_region_free, void, (linkspan_remote_region*));
PIN_CALL(linkspan_region_set_free, void, (linkspan_region_set*));
PIN_CALL(linkspan_prepared_free, void, (linkspan_prepared*));
PIN_CALL(linkspan_captured_transfer_free, void, (linkspan_captured_transfer*));
PIN_CALL(linkspan_transfer_free, void, (linkspan_transfer*));
PIN_CALL(linkspan_completion_queue_free, void, (linkspan_completion_queue*));
PIN_CALL(linkspan_notifications_free, void, (linkspan_notifications*));
PIN_CALL(linkspan_explanation_free, void, (linkspan_explanation*));
PIN_CALL(linkspan_engine_open, int, (const linkspan_engine_options*, linkspan_engine**));
PIN_CALL(linkspan_engine_close, int, (linkspan_engine*, int64_t));
PIN_CALL(linkspan_engine_listen, int, (linkspan_engine*, const char*));
PIN_CALL(linkspan_engine_connect, int, (linkspan_engine*, const char*, int64_t, linkspan_peer**));
PIN_CALL(linkspan_engine_connect_with, int,
         (linkspan_engine*, const char*, const linkspan_connect_options*, linkspan_peer**));
PIN_CALL(linkspan_engine_accept, int, (linkspan_engine*, int64_t, linkspan_peer**));
PIN_CALL(linkspan_engine_progress, int, (linkspan_engine*, size_t*));
PIN_CALL(linkspan_engine_notifications, int, (linkspan_engine*, int64_t, linkspan_notifications**));
PIN_CALL(linkspan_engine_address, int, (linkspan_engine*, char**));
PIN_CALL(linkspan_engine_dump, int, (linkspan_engine*, char**));
PIN_CALL(linkspan_engine_metrics, int, (linkspan_engine*, char**));
PIN_CALL(linkspan_notifications_count, size_t, (const linkspan_notifications*));
PIN_CALL(linkspan_notifications_at, int,
         (const linkspan_notifications*, size_t, uint64_t*, const void**, size_t*));
PIN_CALL(linkspan_engine_register_memory, int,
         (linkspan_engine*, void*, uint64_t, const linkspan_region_options*, linkspan_region**));
PIN_CALL(linkspan_engine_allocate_shared, int,
         (linkspan_engine*, uint64_t, const linkspan_region_options*, linkspan_region**));
PIN_CALL(linkspan_engine_deregister, int, (linkspan_engine*, const linkspan_region*, int64_t));
PIN_CALL(linkspan_engine_invalidate, int, (linkspan_engine*, const linkspan_region*, int64_t));
PIN_CALL(linkspan_engine_publish, int, (linkspan_engine*, const char*, const linkspan_region*));
PIN_CALL(linkspan_engine_publish_set, int,
         (linkspan_engine*, const char*, const linkspan_region* const*, size_t, uint64_t*));
PIN_CALL(linkspan_region_bytes, uint64_t, (const linkspan_region*));
PIN_CALL(linkspan_region_kind, int, (const linkspan_region*));
PIN_CALL(linkspan_region_data, void*, (const linkspan_region*));
PIN_CALL(linkspan_region_gpu, void, (const linkspan_region*, uint8_t[16]));
PIN_CALL(linkspan_remote_region_bytes, uint64_t, (const linkspan_remote_region*));
PIN_CALL(linkspan_remote_region_kind, int, (const linkspan_remote_region*));
PIN_CALL(linkspan_remote_region_peer, uint64_t, (const linkspan_remote_region*));
PIN_CALL(linkspan_remote_region_name, int, (const linkspan_remote_region*, char**));
PIN_CALL(linkspan_peer_id, uint64_t, (const linkspan_peer*));
PIN_CALL(linkspan_peer_state, int, (const linkspan_peer*));
PIN_CALL(linkspan_peer_name, int, (const linkspan_peer*, char**));
PIN_CALL(linkspan_peer_close, int, (const linkspan_peer*, int64_t));
PIN_CALL(linkspan_peer_lookup, int,
         (const linkspan_peer*, const char*, int64_t, linkspan_remote_region**));
PIN_CALL(linkspan_peer_lookup_set, int,
         (const linkspan_peer*, const char*, int64_t, linkspan_region_set**));
PIN_CALL(linkspan_peer_await_version, int,
         (const linkspan_peer*, const char*, uint64_t, int64_t, uint64_t*));
PIN_CALL(linkspan_peer_notify, int, (const linkspan_peer*, const void*, size_t));
PIN_CALL(linkspan_region_set_version, uint64_t, (const linkspan_region_set*));
PIN_CALL(linkspan_region_set_count, size_t, (const linkspan_region_set*));
PIN_CALL(linkspan_region_set_at, int,
         (const linkspan_region_set*, size_t, linkspan_remote_region**));
PIN_CALL(linkspan_peer_submit, int,
         (const linkspan_peer*, int, const linkspan_region*, const linkspan_remote_region*,
          const linkspan_shape*, const linkspan_transfer_options*, linkspan_transfer**));
PIN_CALL(linkspan_peer_submit_parts, int,
         (const linkspan_peer*, int, const linkspan_transfer_part*, size_t,
          const linkspan_transfer_options*, linkspan_transfer**));
PIN_CALL(linkspan_peer_submit_regions, int,
         (const linkspan_peer*, int, const linkspan_region* const*,
          const linkspan_remote_region* const*, size_t, const linkspan_shape*,
          const linkspan_transfer_options*, linkspan_transfer**));
PIN_CALL(linkspan_engine_write_to_all, int,
         (linkspan_engine*, const linkspan_region*, const linkspan_remote_region* const*, size_t,
          const linkspan_shape*, const linkspan_transfer_options*, int*, linkspan_transfer**));
PIN_CALL(linkspan_peer_prepare, int,
         (const linkspan_peer*, int, const linkspan_region*, const linkspan_remote_region*,
          const linkspan_shape*, linkspan_prepared**));
PIN_CALL(linkspan_peer_prepare_parts, int,
         (const linkspan_peer*, int, const linkspan_transfer_part*, size_t, linkspan_prepared**));
PIN_CALL(linkspan_peer_prepare_regions, int,
         (const linkspan_peer*, int, const linkspan_region* const*,
          const linkspan_remote_region* const*, size_t, const linkspan_shape*,
          linkspan_prepared**));
PIN_CALL(linkspan_prepared_bytes, uint64_t, (const linkspan_prepared*));
PIN_CALL(linkspan_prepared_post, int,
         (const linkspan_prepared*, const linkspan_transfer_options*, linkspan_transfer**));
PIN_CALL(linkspan_prepared_post_some, int,
         (const linkspan_prepared*, const uint32_t*, size_t, const linkspan_transfer_options*,
          linkspan_transfer**));
PIN_CALL(linkspan_prepared_post_pairs, int,
         (const linkspan_prepared*, const uint32_t*, size_t, const linkspan_transfer_options*,
          linkspan_transfer**));
PIN_CALL(linkspan_prepared_capture, int,
         (const linkspan_prepared*, const linkspan_stream*, const linkspan_capture_options*,
          linkspan_captured_transfer**));
PIN_CALL(linkspan_captured_transfer_bytes, uint64_t, (const linkspan_captured_transfer*));
PIN_CALL(linkspan_captured_transfer_completed, uint64_t, (const linkspan_captured_transfer*));
PIN_CALL(linkspan_captured_transfer_refused, uint64_t, (const linkspan_captured_transfer*));
PIN_CALL(linkspan_captured_transfer_wait, int,
         (const linkspan_captured_transfer*, uint64_t, int64_t));
PIN_CALL(linkspan_captured_transfer_status, int, (const linkspan_captured_transfer*));
PIN_CALL(linkspan_captured_transfer_close, int, (const linkspan_captured_transfer*, int64_t));
PIN_CALL(linkspan_peer_send, int,
         (const linkspan_peer*, uint64_t, const void*, uint64_t, const linkspan_transfer_options*,
          linkspan_transfer**));
PIN_CALL(linkspan_peer_recv, int,
         (const linkspan_peer*, uint64_t, void*, uint64_t, const linkspan_transfer_options*,
          linkspan_transfer**));
PIN_CALL(linkspan_ipc_send, int, (linkspan_engine*, uint64_t, const void*, size_t, int64_t));
PIN_CALL(linkspan_ipc_recv, int, (linkspan_engine*, uint64_t, void*, size_t, int64_t));
PIN_CALL(linkspan_ipc_send_async, int,
         (linkspan_engine*, uint64_t, const void*, size_t, int64_t, linkspan_transfer**));
PIN_CALL(linkspan_ipc_recv_async, int,
         (linkspan_engine*, uint64_t, void*, size_t, int64_t, linkspan_transfer**));
PIN_CALL(linkspan_transfer_wait, int, (const linkspan_transfer*, int64_t));
PIN_CALL(linkspan_transfer_done, int, (const linkspan_transfer*));
PIN_CALL(linkspan_transfer_status, int, (const linkspan_transfer*));
PIN_CALL(linkspan_transfer_cancel, int, (const linkspan_transfer*));
PIN_CALL(linkspan_transfer_bytes, uint64_t, (const linkspan_transfer*));
PIN_CALL(linkspan_transfer_id, uint64_t, (const linkspan_transfer*));
PIN_CALL(linkspan_future_free, void, (linkspan_future*));
PIN_CALL(linkspan_engine_connect_async, int,
         (linkspan_engine*, const char*, const linkspan_connect_options*, linkspan_future**));
PIN_CALL(linkspan_engine_deregister_async, int,
         (linkspan_engine*, const linkspan_region*, int64_t, linkspan_future**));
PIN_CALL(linkspan_engine_invalidate_async, int,
         (linkspan_engine*, const linkspan_region*, int64_t, linkspan_future**));
PIN_CALL(linkspan_peer_lookup_async, int,
         (const linkspan_peer*, const char*, int64_t, linkspan_future**));
PIN_CALL(linkspan_peer_lookup_set_async, int,
         (const linkspan_peer*, const char*, const linkspan_region_set*, int64_t,
          linkspan_future**));
PIN_CALL(linkspan_future_done, int, (const linkspan_future*));
PIN_CALL(linkspan_future_wait, int, (const linkspan_future*, int64_t));
PIN_CALL(linkspan_future_cancel, int, (const linkspan_future*));
PIN_CALL(linkspan_future_peer, int, (const linkspan_future*, linkspan_peer**));
PIN_CALL(linkspan_future_remote_region, int, (const linkspan_future*, linkspan_remote_region**));
PIN_CALL(linkspan_future_region_set, int, (const linkspan_future*, linkspan_region_set**));
PIN_CALL(linkspan_completion_queue_create, int, (linkspan_completion_queue**));
PIN_CALL(linkspan_completion_queue_fd, int, (const linkspan_completion_queue*));
PIN_CALL(linkspan_completion_queue_add, int,
         (linkspan_completion_queue*, const linkspan_transfer*, uint64_t));
PIN_CALL(linkspan_completion_queue_add_future, int,
         (linkspan_completion_queue*, const linkspan_future*, uint64_t));
PIN_CALL(linkspan_completion_queue_take, int,
         (linkspan_completion_queue*, uint64_t*, size_t, size_t*));
PIN_CALL(linkspan_peer_explain, int,
         (const linkspan_peer*, int, const linkspan_region*, const linkspan_remote_region*,
          uint64_t, uint64_t, const linkspan_transfer_options*, linkspan_explanation**));
PIN_CALL(linkspan_explanation_path, const char*, (const linkspan_explanation*));
PIN_CALL(linkspan_explanation_executor, const char*, (const linkspan_explanation*));
PIN_CALL(linkspan_explanation_reason, const char*, (const linkspan_explanation*));
PIN_CALL(linkspan_explanation_gbps, double, (const linkspan_explanation*));
PIN_CALL(linkspan_explanation_refused_count, size_t, (const linkspan_explanation*));
PIN_CALL(linkspan_explanation_refused_path, const char*, (const linkspan_explanation*, size_t));
PIN_CALL(linkspan_explanation_refused_reason, const char*, (const linkspan_explanation*, size_t));

PIN(LINKSPAN_OK == 0);
PIN(LINKSPAN_INVALID_ARGUMENT == 1);
PIN(LINKSPAN_UNSUPPORTED == 2);
PIN(LINKSPAN_NO_RESOURCE == 3);
PIN(LINKSPAN_BUSY == 4);
PIN(LINKSPAN_PENDING == 5);
PIN(LINKSPAN_TIMED_OUT == 6);
PIN(LINKSPAN_CANCELED == 7);
PIN(LINKSPAN_NOT_FOUND == 8);
PIN(LINKSPAN_PERMISSION_DENIED == 9);
PIN(LINKSPAN_TRUNCATED == 10);
PIN(LINKSPAN_UNREACHABLE == 11);
PIN(LINKSPAN_DISCONNECTED == 12);
PIN(LINKSPAN_CORRUPT == 13);
PIN(LINKSPAN_CUDA == 14);
PIN(LINKSPAN_SYSTEM == 15);
PIN(LINKSPAN_INTERNAL == 16);
PIN(LINKSPAN_SCOPE_REQUEST == 0 && LINKSPAN_SCOPE_PEER == 1);
PIN(LINKSPAN_SCOPE_TRANSPORT == 2 && LINKSPAN_SCOPE_PROCESS == 3);
PIN(LINKSPAN_LOG_DEBUG == 0 && LINKSPAN_LOG_INFO == 1 && LINKSPAN_LOG_WARNING == 2);
PIN(LINKSPAN_LOG_ERROR == 3 && LINKSPAN_LOG_OFF == 4);
PIN(LINKSPAN_MEMORY_HOST == 0 && LINKSPAN_MEMORY_PINNED == 1 && LINKSPAN_MEMORY_SHARED == 2);
PIN(LINKSPAN_MEMORY_DEVICE == 3 && LINKSPAN_MEMORY_MANAGED == 4);
PIN(LINKSPAN_PEER_UP == 0 && LINKSPAN_PEER_LOST == 1 && LINKSPAN_PEER_GONE == 2);
PIN(LINKSPAN_WRITE == 0 && LINKSPAN_READ == 1);
PIN(LINKSPAN_STREAM_NONE == 0 && LINKSPAN_STREAM_CREATED == 1);
PIN(LINKSPAN_STREAM_LEGACY_DEFAULT == 2 && LINKSPAN_STREAM_PER_THREAD_DEFAULT == 3);

PIN(LINKSPAN_SECURITY_LOOPBACK_ONLY == 0 && LINKSPAN_SECURITY_INSECURE == 1);
PIN(LINKSPAN_SECURITY_AUTHENTICATED == 2 && LINKSPAN_SECURITY_ENCRYPTED == 3);

PIN(sizeof(linkspan_engine_options) == 120);
PIN(offsetof(linkspan_engine_options, size) == 0);
PIN(offsetof(linkspan_engine_options, name) == 8);
PIN(offsetof(linkspan_engine_options, socket_dir) == 16);
PIN(offsetof(linkspan_engine_options, log) == 24);
PIN(offsetof(linkspan_engine_options, log_user) == 32);
PIN(offsetof(linkspan_engine_options, transfer_deadline) == 40);
PIN(offsetof(linkspan_engine_options, cpu_threads) == 48);
PIN(offsetof(linkspan_engine_options, copy_ctas) == 52);
PIN(offsetof(linkspan_engine_options, relay_gpus) == 56);
PIN(offsetof(linkspan_engine_options, calibrate) == 60);
PIN(offsetof(linkspan_engine_options, any_uid) == 64);
PIN(offsetof(linkspan_engine_options, use_gpu) == 68);
PIN(offsetof(linkspan_engine_options, security) == 72);
PIN(offsetof(linkspan_engine_options, reserved) == 76);
PIN(offsetof(linkspan_engine_options, secret_file) == 80);
PIN(offsetof(linkspan_engine_options, secret) == 104);
PIN(offsetof(linkspan_engine_options, secret_bytes) == 112);
PIN(offsetof(linkspan_engine_options, transport) == 88);
PIN(offsetof(linkspan_engine_options, transport_count) == 96);

PIN(sizeof(linkspan_transport_option) == 16);
PIN(offsetof(linkspan_transport_option, key) == 0);
PIN(offsetof(linkspan_transport_option, value) == 8);

PIN(sizeof(linkspan_connect_options) == 40);
PIN(offsetof(linkspan_connect_options, timeout) == 8);
PIN(offsetof(linkspan_connect_options, expect) == 16);
PIN(offsetof(linkspan_connect_options, secret) == 24);
PIN(offsetof(linkspan_connect_options, secret_bytes) == 32);

PIN(sizeof(linkspan_region_options) == 24);
PIN(offsetof(linkspan_region_options, peers_read) == 8);
PIN(offsetof(linkspan_region_options, peers_write) == 12);
PIN(offsetof(linkspan_region_options, exclusive) == 16);
PIN(offsetof(linkspan_region_options, pin) == 20);

PIN(sizeof(linkspan_block) == 24);
PIN(offsetof(linkspan_block, remote_offset) == 8);
PIN(offsetof(linkspan_block, bytes) == 16);

PIN(sizeof(linkspan_pages) == 56);
PIN(offsetof(linkspan_pages, local_base) == 8);
PIN(offsetof(linkspan_pages, remote_base) == 16);
PIN(offsetof(linkspan_pages, local_index) == 24);
PIN(offsetof(linkspan_pages, remote_index) == 32);
PIN(offsetof(linkspan_pages, count) == 40);
PIN(offsetof(linkspan_pages, indices_on_gpu) == 48);

PIN(sizeof(linkspan_strides) == 96);
PIN(offsetof(linkspan_strides, local_base) == 8);
PIN(offsetof(linkspan_strides, remote_base) == 16);
PIN(offsetof(linkspan_strides, levels) == 24);

PIN(sizeof(linkspan_shape) == 40);
PIN(offsetof(linkspan_shape, blocks) == 8);
PIN(offsetof(linkspan_shape, block_count) == 16);
PIN(offsetof(linkspan_shape, pages) == 24);
PIN(offsetof(linkspan_shape, strides) == 32);

PIN(sizeof(linkspan_transfer_part) == 24);
PIN(offsetof(linkspan_transfer_part, remote) == 8);
PIN(offsetof(linkspan_transfer_part, shape) == 16);

PIN(sizeof(linkspan_stream) == 32);
PIN(offsetof(linkspan_stream, gpu) == 4);
PIN(offsetof(linkspan_stream, handle) == 24);

PIN(sizeof(linkspan_capture_options) == 32);
PIN(offsetof(linkspan_capture_options, notification) == 8);
PIN(offsetof(linkspan_capture_options, notification_bytes) == 16);
PIN(offsetof(linkspan_capture_options, copy_ctas) == 24);
PIN(offsetof(linkspan_capture_options, reserved) == 28);
PIN(sizeof(linkspan_transfer_options) == 120);
PIN(offsetof(linkspan_transfer_options, deadline) == 8);
PIN(offsetof(linkspan_transfer_options, notification) == 16);
PIN(offsetof(linkspan_transfer_options, notification_bytes) == 24);
PIN(offsetof(linkspan_transfer_options, require) == 32);
PIN(offsetof(linkspan_transfer_options, after) == 40);
PIN(offsetof(linkspan_transfer_options, release) == 72);
PIN(offsetof(linkspan_transfer_options, low_latency) == 104);
PIN(offsetof(linkspan_transfer_options, copy_ctas) == 108);
PIN(offsetof(linkspan_transfer_options, checksum) == 112);
PIN(offsetof(linkspan_transfer_options, failover) == 116);

/* The defaults are C99: no warning of a member that they do not name. */
extern const linkspan_engine_options pinned_engine_options;
extern const linkspan_connect_options pinned_connect_options;
extern const linkspan_region_options pinned_region_options;
extern const linkspan_transfer_options pinned_transfer_options;
extern const linkspan_capture_options pinned_capture_options;
extern const linkspan_strides pinned_strides;
extern const linkspan_shape pinned_shape;
const linkspan_engine_options pinned_engine_options = LINKSPAN_ENGINE_OPTIONS_INIT;
const linkspan_connect_options pinned_connect_options = LINKSPAN_CONNECT_OPTIONS_INIT;
const linkspan_region_options pinned_region_options = LINKSPAN_REGION_OPTIONS_INIT;
const linkspan_transfer_options pinned_transfer_options = LINKSPAN_TRANSFER_OPTIONS_INIT;
const linkspan_capture_options pinned_capture_options = LINKSPAN_CAPTURE_OPTIONS_INIT;
const linkspan_strides pinned_strides = LINKSPAN_STRIDES_INIT;
const linkspan_shape pinned_shape = LINKSPAN_SHAPE_INIT;
