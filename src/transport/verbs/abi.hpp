// transport/verbs/abi.hpp - our own declaration of what is used of the ABI of libibverbs.
//
// No header of rdma-core is needed to build. The order and the size of fields are the ABI, which is
// kept since IBVERBS_1.1; tests/abi/verbs_abi_check.cpp compares all of it with infiniband/verbs.h.
// 64-bit only.
// Four calls are no symbols of the library. A device's code is reached by the table in its
// IbvContext: post_send(), post_recv(), poll_cq() and req_notify_cq() below. All other calls are
// members of Library. A call that returns an int returns 0 or an errno; one that returns null sets
// errno. Threads: declarations. The device's code locks queue pairs and completion queues.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <cstdint>

#include "transport/verbs/abi_types.hpp"

namespace linkspan::transport::verbs {

struct IbvMw;
struct IbvMwBind;

enum IbvWrOpcode : int {
  kWrRdmaWrite = 0,
  kWrRdmaWriteWithImm = 1,
  kWrSend = 2,
  kWrSendWithImm = 3,
  kWrRdmaRead = 4,
};
enum IbvSendFlags : unsigned {
  kSendFence = 1 << 0,
  kSendSignaled = 1 << 1,
  kSendSolicited = 1 << 2,
  kSendInline = 1 << 3,
};
struct IbvSge {
  std::uint64_t addr;
  std::uint32_t length;
  std::uint32_t lkey;
};
struct IbvSendWr {
  std::uint64_t wr_id;
  IbvSendWr* next;
  IbvSge* sg_list;
  int num_sge;
  IbvWrOpcode opcode;
  unsigned send_flags;
  std::uint32_t imm_data;  // in network order
  union {
    struct {
      std::uint64_t remote_addr;
      std::uint32_t rkey;
    } rdma;
    struct {
      std::uint64_t remote_addr;
      std::uint64_t compare_add;
      std::uint64_t swap;
      std::uint32_t rkey;
    } atomic;
    struct {
      IbvAh* ah;
      std::uint32_t remote_qpn;
      std::uint32_t remote_qkey;
    } ud;
  } wr;
  std::uint32_t xrc_remote_srqn;
  struct {  // memory windows and segmentation offload, which are not used
    void* pointer;
    std::uint64_t words[5];
  } unused;
};
struct IbvRecvWr {
  std::uint64_t wr_id;
  IbvRecvWr* next;
  IbvSge* sg_list;
  int num_sge;
};

struct IbvQp {
  IbvContext* context;
  void* qp_context;
  IbvPd* pd;
  IbvCq* send_cq;
  IbvCq* recv_cq;
  IbvSrq* srq;
  std::uint32_t handle;
  std::uint32_t qp_num;
  IbvQpState state;
  IbvQpType qp_type;
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  std::uint32_t events_completed;
};
struct IbvCompChannel {
  IbvContext* context;
  int fd;  // readable when an event waits
  int refcnt;
};
struct IbvCq {
  IbvContext* context;
  IbvCompChannel* channel;
  void* cq_context;
  std::uint32_t handle;
  int cqe;
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  std::uint32_t comp_events_completed;
  std::uint32_t async_events_completed;
};

/// Stands where a pointer to a function is that this library does not call.
using IbvUncalled = void (*)();

struct IbvContextOps {
  IbvUncalled compat_first[7];
  IbvUncalled memory_windows[3];
  IbvUncalled compat_create_cq;
  int (*poll_cq)(IbvCq* cq, int num_entries, IbvWc* wc);
  int (*req_notify_cq)(IbvCq* cq, int solicited_only);
  IbvUncalled compat_queues[7];
  IbvUncalled post_srq_recv;
  IbvUncalled compat_qp[4];
  int (*post_send)(IbvQp* qp, IbvSendWr* wr, IbvSendWr** bad_wr);
  int (*post_recv)(IbvQp* qp, IbvRecvWr* wr, IbvRecvWr** bad_wr);
  IbvUncalled compat_last[5];
};
struct IbvContext {
  IbvDevice* device;
  IbvContextOps ops;
  int cmd_fd;
  int async_fd;  // readable when get_async_event() has an event
  int num_comp_vectors;
  pthread_mutex_t mutex;
  void* abi_compat;  // all bits set: this is the last member of an IbvExtendedContext
};

/// struct verbs_context: grows at its front, so a member is there if `sz` reaches back to it.
struct IbvExtendedContext {
  int (*query_port)(IbvContext* context, std::uint8_t port_num, IbvPortAttr* attr,
                    std::size_t bytes);
  IbvUncalled uncalled[37];
  std::uint64_t placeholder;
  std::size_t sz;
  IbvContext context;
};

/// Returns the extended context around `context`, or null if the library is too old to have one.
inline IbvExtendedContext* extended(IbvContext* context) noexcept {
  if (reinterpret_cast<std::uintptr_t>(context->abi_compat) != UINTPTR_MAX) return nullptr;
  return reinterpret_cast<IbvExtendedContext*>(reinterpret_cast<std::byte*>(context) -
                                               offsetof(IbvExtendedContext, context));
}

/// Passes a chain of requests to the device, with one doorbell. After an error `*bad` is the first
/// request that was not posted; those before it were.
inline int post_send(IbvQp* qp, IbvSendWr* chain, IbvSendWr** bad) {
  return qp->context->ops.post_send(qp, chain, bad);
}
inline int post_recv(IbvQp* qp, IbvRecvWr* chain, IbvRecvWr** bad) {
  return qp->context->ops.post_recv(qp, chain, bad);
}
/// Takes up to `count` completions; returns their number, or a negative number after an error.
inline int poll_cq(IbvCq* cq, int count, IbvWc* into) {
  return cq->context->ops.poll_cq(cq, count, into);
}
/// Asks for one event on the queue's channel when the next completion is added. Completions that
/// were added before cause none, so poll once more after this.
inline int req_notify_cq(IbvCq* cq, bool solicited_only = false) {
  return cq->context->ops.req_notify_cq(cq, solicited_only ? 1 : 0);
}

#if defined(__linux__) && defined(__x86_64__)
static_assert(sizeof(IbvDevice) == 664 && sizeof(IbvDeviceAttr) == 232 &&
              sizeof(IbvPortAttr) == 52);
static_assert(sizeof(IbvSendWr) == 128 && sizeof(IbvRecvWr) == 32 && sizeof(IbvWc) == 48);
static_assert(sizeof(IbvQpAttr) == 144 && sizeof(IbvQpInitAttr) == 64 &&
              sizeof(IbvAsyncEvent) == 16);
static_assert(sizeof(IbvQp) == 160 && sizeof(IbvCq) == 128 && sizeof(IbvMr) == 48);
static_assert(sizeof(IbvContextOps) == 256 && sizeof(IbvContext) == 328);
static_assert(sizeof(IbvExtendedContext) == 648 && offsetof(IbvExtendedContext, context) == 320);
#endif

}  // namespace linkspan::transport::verbs
