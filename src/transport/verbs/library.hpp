// transport/verbs/library.hpp - loads libibverbs.so.1 and has its functions as members.
//
// It is opened with dlopen(), never linked, and stays loaded until the process ends. A machine
// without it is nothing unusual: get() says so in a Status and prints nothing.
// LINKSPAN_VERBS_LIBRARY names another file, for tests.
// Threads: any thread; immutable after load().
// Invariants: the required members are not null.
#pragma once

#include <string>

#include "linkspan/status.hpp"
#include "transport/verbs/abi.hpp"

namespace linkspan::transport::verbs {

// X(name, result, parameters): each function of libibverbs without its prefix ibv_.
#define LINKSPAN_VERBS_REQUIRED(X)                                                               \
  X(get_device_list, IbvDevice**, (int* count))                                                  \
  X(free_device_list, void, (IbvDevice * *list))                                                 \
  X(get_device_name, const char*, (IbvDevice * device))                                          \
  X(open_device, IbvContext*, (IbvDevice * device))                                              \
  X(close_device, int, (IbvContext * context))                                                   \
  X(query_device, int, (IbvContext * context, IbvDeviceAttr * attr))                             \
  X(query_gid, int, (IbvContext * context, std::uint8_t port_num, int index, IbvGid* gid))       \
  X(query_pkey, int,                                                                             \
    (IbvContext * context, std::uint8_t port_num, int index, std::uint16_t* pkey))               \
  X(alloc_pd, IbvPd*, (IbvContext * context))                                                    \
  X(dealloc_pd, int, (IbvPd * pd))                                                               \
  X(reg_mr, IbvMr*, (IbvPd * pd, void* addr, std::size_t length, int access))                    \
  X(dereg_mr, int, (IbvMr * mr))                                                                 \
  X(create_comp_channel, IbvCompChannel*, (IbvContext * context))                                \
  X(destroy_comp_channel, int, (IbvCompChannel * channel))                                       \
  X(create_cq, IbvCq*,                                                                           \
    (IbvContext * context, int cqe, void* cq_context, IbvCompChannel* channel, int comp_vector)) \
  X(destroy_cq, int, (IbvCq * cq))                                                               \
  X(get_cq_event, int, (IbvCompChannel * channel, IbvCq * *cq, void** cq_context))               \
  X(ack_cq_events, void, (IbvCq * cq, unsigned count))                                           \
  X(create_qp, IbvQp*, (IbvPd * pd, IbvQpInitAttr * attr))                                       \
  X(modify_qp, int, (IbvQp * qp, IbvQpAttr * attr, int mask))                                    \
  X(query_qp, int, (IbvQp * qp, IbvQpAttr * attr, int mask, IbvQpInitAttr* init))                \
  X(destroy_qp, int, (IbvQp * qp))                                                               \
  X(get_async_event, int, (IbvContext * context, IbvAsyncEvent * event))                         \
  X(ack_async_event, void, (IbvAsyncEvent * event))                                              \
  X(fork_init, int, (void))                                                                      \
  X(wc_status_str, const char*, (IbvWcStatus status))                                            \
  X(event_type_str, const char*, (IbvEventType type))

// Null where the library is older: IBVERBS_1.8 and 1.12.
#define LINKSPAN_VERBS_OPTIONAL(X)                                                     \
  X(reg_mr_iova2, IbvMr*,                                                              \
    (IbvPd * pd, void* addr, std::size_t length, std::uint64_t iova, unsigned access)) \
  X(reg_dmabuf_mr, IbvMr*,                                                             \
    (IbvPd * pd, std::uint64_t offset, std::size_t length, std::uint64_t iova, int fd, \
     int access))

struct Library {
#define LINKSPAN_MEMBER(name, result, parameters) result(*name) parameters = nullptr;
  LINKSPAN_VERBS_REQUIRED(LINKSPAN_MEMBER)
  LINKSPAN_VERBS_OPTIONAL(LINKSPAN_MEMBER)
#undef LINKSPAN_MEMBER

  /// Opens `file`, or libibverbs.so.1 if it is null or empty. unsupported: there is no such library
  /// or it lacks a function; the text has the loader's reason or the names.
  static Result<Library> load(const char* file);

  /// Returns the process's library, which is loaded by the first call. Errors as load().
  static Result<const Library*> get();

  /// Fills `attr` whole, also where the symbol ibv_query_port would leave its last fields out.
  int query_port(IbvContext* context, std::uint8_t port_num, IbvPortAttr& attr) const noexcept;

  /// Reads an entry of the port's table of GIDs, with its type. Returns 0 or an errno: ENODATA for
  /// an entry that is not in use. Libraries before IBVERBS_1.11 do not know the type; it is read
  /// from sysfs then, and ndev_ifindex is 0.
  int query_gid_entry(IbvContext* context, std::uint8_t port_num, int index,
                      IbvGidEntry& entry) const;

 private:
  int (*query_port_)(IbvContext* context, std::uint8_t port_num, IbvPortAttr* attr) = nullptr;
  int (*query_gid_ex_)(IbvContext* context, std::uint32_t port_num, std::uint32_t index,
                       IbvGidEntry* entry, std::uint32_t flags, std::size_t bytes) = nullptr;
};

/// Returns a text such as "ibv_reg_mr: Cannot allocate memory (errno 12)".
std::string describe_error(const char* function, int error);

}  // namespace linkspan::transport::verbs
