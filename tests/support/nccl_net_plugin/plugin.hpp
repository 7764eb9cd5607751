// tests/support/nccl_net_plugin/plugin.hpp - a network plugin for NCCL over plain TCP, for tests.
//
// Any program that uses network plugins can load it. libnccl-net-linkspan-test.so has version 7 and
// behaves as GPUDirect-TCPX does: device type UNPACK, fragments in a bounce pool on the GPU, lists
// of them in mapped host memory, slots that only irecvConsumed frees.
// libnccl-net-linkspan-test-v5.so to -v12.so have the device type HOST: bytes for GPU memory are
// there after an iflush, not before. Without a CUDA driver all take host memory only;
// libnccl-net-linkspan-test-host.so, of version 12, always does.
// It refuses callers that break the ABI's rules, with a line at WARN that names the rule: tests in
// another order than the begins, tests after done, too many requests, consumed twice or out of
// order, sends larger than their receives, memory that is not registered, of another GPU or not
// aligned, calls for one comm from two threads, a missing config, a handle that has moved between
// tries.
//
// Environment, each name after the prefix LINKSPAN_TEST_PLUGIN_; read by init, and by listen and
// the first connect for the next comm, whose n are counted from 1:
//   ADDRESS       the IPv4 address to listen on (127.0.0.1)
//   SEED          seeds all random choices (1)
//   FRAGMENT      bytes of a fragment at most, up to 4096 (4030)
//   DELAY_US      a request is reported as done that much later (0)
//   CALL_US       each call for a comm takes at least that long (0)
//   NULL_PERCENT  of isend and irecv answer no request, though there is room (0)
//   NULL_COMMS    tries of connect and of accept that answer no comm (0)
//   FAIL          FUNCTION:N:RESULT: the n-th call, or with 0 each, of the table's function of that
//                 name answers RESULT; not those that close or finalize. Counted for each comm;
//                 connect and accept: for each connection; the rest: for the process
//   STALL         FUNCTION:FILE: calls of that function, as FAIL counts them, block while FILE
//                 exists; the first creates FILE.in
//   LIST          FAULT:N: the list of fragments of the n-th receive is wrong: "short" by a byte,
//                 "lost" a fragment, "overlap" of two, "outside" of the pool, "beyond" the message
//   CORRUPT       N: a byte of the n-th message is wrong where it arrives
//   DIE_AFTER     N: the comm's connection is closed after n messages
// Threads: as the ABI says, each comm by one thread at a time. It has no threads of its own: test,
// isend and irecv make all progress.
#pragma once

#include <string>

#include "linkspan/status.hpp"
#include "tests/support/nccl_net_plugin/abi.hpp"

namespace linkspan::nccl_test {

/// Distinguishes the modules; defined by table.cpp.
struct Kind {
  int version;
  bool unpacks;
  bool takes_gpus;
  std::size_t requests;    ///< Limit of a comm's requests in flight.
  std::size_t most_bytes;  ///< Limit of a message.
};
extern const Kind kKind;

// Implement the ABI's functions, without the differences between versions. `context` is null before
// version 11.

int init(Logger logger);
int make_context(void** context);
int finalize(void* context);
int devices(int* count);
/// Returns kHostPointer, and kCudaPointer if the kind takes it and there is a driver.
int pointer_support();
int listen(void* context, int device, void* handle, void** comm);
int connect(void* context, int device, void* handle, void** comm, NetDeviceHandle** kernels);
int accept(void* listening, void** comm, NetDeviceHandle** kernels);
int register_memory(void* comm, void* data, std::size_t bytes, int type, void** memory);
int deregister(void* comm, void* memory);
int send(void* comm, void* data, std::size_t bytes, int tag, void* memory, void** request);
int receive(void* comm, int n, void* data, std::size_t bytes, int tag, void* memory,
            void** request);
int flush(void* comm, int n, void** data, void** memory, void** request);
int test(void* request, int* done, int* bytes);
int consumed(void* comm, int n, void* request);
int close_send(void* comm);
int close_receive(void* comm);
int close_listen(void* comm);

/// Returns the answer to a caller that broke a rule, or after a failure; logs a line at WARN.
int refuse(Answer answer, const std::string& why, Where at = {});
void inform(const std::string& what, Where at = {});
/// Counts this call of `function`. Returns the failure that `fails` orders for it, or kOk.
int ordered_failure(const char* function);

}  // namespace linkspan::nccl_test
