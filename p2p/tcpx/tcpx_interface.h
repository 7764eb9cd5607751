/* tcpx_interface.h - GPUDirect-TCPX, or any network plugin of NCCL's, by plain C calls.
 *
 * Thin: each call is one of the plugin's, of whatever version it is (5 to 12). What each returns is
 * the plugin's number: 0 success, 1 unhandled CUDA error, 2 system error (test: also "the peer has
 * closed"), 3 internal error, 4 invalid argument, 5 invalid usage, 6 remote error, 7 in progress.
 * Before the first call nothing is loaded; which plugin: LINKSPAN_NCCL_NET_PLUGIN, else
 * NCCL_NET_PLUGIN, else TCPX's own place below /usr/local/tcpx. The calls that need one return 2
 * where none can be loaded, and tcpx_last_error() says why.
 *
 * The plugin's rules hold: one thread a comm, with the GPU current; a null comm or request means
 * "again"; requests are tested in order, never after they were done; at most 16 in flight.
 * Threads: any, but for the rules above.
 */
#ifndef LINKSPAN_P2P_TCPX_INTERFACE_H
#define LINKSPAN_P2P_TCPX_INTERFACE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TCPX_HANDLE_BYTES = 128, TCPX_PTR_HOST = 1, TCPX_PTR_CUDA = 2 };

/* The number of devices; -1: there is no plugin. */
int tcpx_get_device_count(void);
/* Of what failed last in this thread; never null. */
const char* tcpx_last_error(void);

/* `handle`: room for TCPX_HANDLE_BYTES, which tcpx_connect_v5() on the other side takes. */
int tcpx_listen(int device, void* handle, void** listen_comm);
/* Neither waits: a null comm means that the other side has not come so far; call again, with the
 * same bytes of `handle` at the same place. `device_handle`, which may be null: what kernels need
 * to unpack, null where there is nothing to unpack. */
int tcpx_accept_v5(void* listen_comm, void** receive_comm, void** device_handle);
int tcpx_connect_v5(int device, void* handle, void** send_comm, void** device_handle);

/* `type`: TCPX_PTR_HOST or TCPX_PTR_CUDA. 3: CUDA memory that does not begin at a multiple of 4096
 * bytes, where the plugin unpacks; or the plugin could not register it. */
int tcpx_reg_mr(void* comm, void* data, size_t bytes, int type, void** registration);
int tcpx_dereg_mr(void* comm, void* registration);

int tcpx_isend(void* send_comm, void* data, int bytes, int tag, void* registration, void** request);
/* `count`: 1. */
int tcpx_irecv(void* receive_comm, int count, void** data, int* bytes, int* tags,
               void** registrations, void** request);
int tcpx_irecv_consumed(void* receive_comm, int count, void* request);
int tcpx_test(void* request, int* done, int* bytes);

int tcpx_close_send(void* send_comm);
int tcpx_close_recv(void* receive_comm);
int tcpx_close_listen(void* listen_comm);

#ifdef __cplusplus
}
#endif
#endif
