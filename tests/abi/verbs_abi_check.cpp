// tests/abi/verbs_abi_check.cpp - transport/verbs/abi.hpp and library.hpp against rdma-core's own
// header.
//
// Nothing runs: it compiles or it does not, against infiniband/verbs.h of libibverbs-dev. Structs
// are held by their size, the offset and the size of each member; functions by their signatures.
// The numbers are in verbs_numbers_check.cpp.
#include <infiniband/verbs.h>

#include <cstddef>
#include <type_traits>

#include "transport/verbs/library.hpp"

namespace linkspan::transport::verbs {

#define LINKSPAN_STRUCT(ours, theirs)              \
  static_assert(sizeof(ours) == sizeof(::theirs)); \
  static_assert(alignof(ours) == alignof(::theirs));
#define LINKSPAN_AT(ours, our_field, theirs, their_field)                       \
  static_assert(offsetof(ours, our_field) == offsetof(::theirs, their_field) && \
                    sizeof(ours::our_field) == sizeof(::theirs::their_field),   \
                #their_field);
#define LINKSPAN_FIELD(ours, theirs, field) LINKSPAN_AT(ours, field, theirs, field)

LINKSPAN_STRUCT(IbvGidEntry, ibv_gid_entry)
LINKSPAN_FIELD(IbvGidEntry, ibv_gid_entry, gid)
LINKSPAN_FIELD(IbvGidEntry, ibv_gid_entry, gid_index)
LINKSPAN_FIELD(IbvGidEntry, ibv_gid_entry, port_num)
LINKSPAN_FIELD(IbvGidEntry, ibv_gid_entry, gid_type)
LINKSPAN_FIELD(IbvGidEntry, ibv_gid_entry, ndev_ifindex)
LINKSPAN_STRUCT(IbvDevice, ibv_device)
LINKSPAN_FIELD(IbvDevice, ibv_device, node_type)
LINKSPAN_FIELD(IbvDevice, ibv_device, transport_type)
LINKSPAN_FIELD(IbvDevice, ibv_device, name)
LINKSPAN_FIELD(IbvDevice, ibv_device, dev_name)
LINKSPAN_FIELD(IbvDevice, ibv_device, dev_path)
LINKSPAN_FIELD(IbvDevice, ibv_device, ibdev_path)
LINKSPAN_STRUCT(IbvDeviceAttr, ibv_device_attr)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, fw_ver)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, node_guid)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, sys_image_guid)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_mr_size)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, page_size_cap)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, vendor_id)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, vendor_part_id)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, hw_ver)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_qp)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_qp_wr)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, device_cap_flags)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_sge)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_sge_rd)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_cq)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_cqe)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_mr)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_pd)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_qp_rd_atom)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_ee_rd_atom)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_res_rd_atom)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_qp_init_rd_atom)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_ee_init_rd_atom)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, atomic_cap)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_ee)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_rdd)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_mw)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_raw_ipv6_qp)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_raw_ethy_qp)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_mcast_grp)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_mcast_qp_attach)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_total_mcast_qp_attach)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_ah)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_fmr)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_map_per_fmr)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_srq)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_srq_wr)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_srq_sge)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, max_pkeys)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, local_ca_ack_delay)
LINKSPAN_FIELD(IbvDeviceAttr, ibv_device_attr, phys_port_cnt)
LINKSPAN_STRUCT(IbvPortAttr, ibv_port_attr)
LINKSPAN_FIELD(IbvPortAttr, ibv_port_attr, state)
LINKSPAN_FIELD(IbvPortAttr, ibv_port_attr, max_mtu)
LINKSPAN_FIELD(IbvPortAttr, ibv_port_attr, active_mtu)
LINKSPAN_FIELD(IbvPortAttr, ibv_port_attr, gid_tbl_len)
LINKSPAN_FIELD(IbvPortAttr, ibv_port_attr, port_cap_flags)
LINKSPAN_FIELD(IbvPortAttr, ibv_port_attr, max_msg_sz)
LINKSPAN_FIELD(IbvPortAttr, ibv_port_attr, bad_pkey_cntr)
LINKSPAN_FIELD(IbvPortAttr, ibv_port_attr, qkey_viol_cntr)
LINKSPAN_FIELD(IbvPortAttr, ibv_port_attr, pkey_tbl_len)
LINKSPAN_FIELD(IbvPortAttr, ibv_port_attr, lid)
LINKSPAN_FIELD(IbvPortAttr, ibv_port_attr, sm_lid)
LINKSPAN_FIELD(IbvPortAttr, ibv_port_attr, lmc)
LINKSPAN_FIELD(IbvPortAttr, ibv_port_attr, max_vl_num)
LINKSPAN_FIELD(IbvPortAttr, ibv_port_attr, sm_sl)
LINKSPAN_FIELD(IbvPortAttr, ibv_port_attr, subnet_timeout)
LINKSPAN_FIELD(IbvPortAttr, ibv_port_attr, init_type_reply)
LINKSPAN_FIELD(IbvPortAttr, ibv_port_attr, active_width)
LINKSPAN_FIELD(IbvPortAttr, ibv_port_attr, active_speed)
LINKSPAN_FIELD(IbvPortAttr, ibv_port_attr, phys_state)
LINKSPAN_FIELD(IbvPortAttr, ibv_port_attr, link_layer)
LINKSPAN_FIELD(IbvPortAttr, ibv_port_attr, flags)
LINKSPAN_FIELD(IbvPortAttr, ibv_port_attr, port_cap_flags2)
LINKSPAN_STRUCT(IbvAsyncEvent, ibv_async_event)
LINKSPAN_FIELD(IbvAsyncEvent, ibv_async_event, element)
LINKSPAN_FIELD(IbvAsyncEvent, ibv_async_event, event_type)
LINKSPAN_STRUCT(IbvWc, ibv_wc)
LINKSPAN_FIELD(IbvWc, ibv_wc, wr_id)
LINKSPAN_FIELD(IbvWc, ibv_wc, status)
LINKSPAN_FIELD(IbvWc, ibv_wc, opcode)
LINKSPAN_FIELD(IbvWc, ibv_wc, vendor_err)
LINKSPAN_FIELD(IbvWc, ibv_wc, byte_len)
LINKSPAN_FIELD(IbvWc, ibv_wc, qp_num)
LINKSPAN_FIELD(IbvWc, ibv_wc, src_qp)
LINKSPAN_FIELD(IbvWc, ibv_wc, wc_flags)
LINKSPAN_FIELD(IbvWc, ibv_wc, pkey_index)
LINKSPAN_FIELD(IbvWc, ibv_wc, slid)
LINKSPAN_FIELD(IbvWc, ibv_wc, sl)
LINKSPAN_FIELD(IbvWc, ibv_wc, dlid_path_bits)
LINKSPAN_STRUCT(IbvPd, ibv_pd)
LINKSPAN_FIELD(IbvPd, ibv_pd, context)
LINKSPAN_FIELD(IbvPd, ibv_pd, handle)
LINKSPAN_STRUCT(IbvMr, ibv_mr)
LINKSPAN_FIELD(IbvMr, ibv_mr, context)
LINKSPAN_FIELD(IbvMr, ibv_mr, pd)
LINKSPAN_FIELD(IbvMr, ibv_mr, addr)
LINKSPAN_FIELD(IbvMr, ibv_mr, length)
LINKSPAN_FIELD(IbvMr, ibv_mr, handle)
LINKSPAN_FIELD(IbvMr, ibv_mr, lkey)
LINKSPAN_FIELD(IbvMr, ibv_mr, rkey)
LINKSPAN_STRUCT(IbvGlobalRoute, ibv_global_route)
LINKSPAN_FIELD(IbvGlobalRoute, ibv_global_route, dgid)
LINKSPAN_FIELD(IbvGlobalRoute, ibv_global_route, flow_label)
LINKSPAN_FIELD(IbvGlobalRoute, ibv_global_route, sgid_index)
LINKSPAN_FIELD(IbvGlobalRoute, ibv_global_route, hop_limit)
LINKSPAN_FIELD(IbvGlobalRoute, ibv_global_route, traffic_class)
LINKSPAN_STRUCT(IbvAhAttr, ibv_ah_attr)
LINKSPAN_FIELD(IbvAhAttr, ibv_ah_attr, grh)
LINKSPAN_FIELD(IbvAhAttr, ibv_ah_attr, dlid)
LINKSPAN_FIELD(IbvAhAttr, ibv_ah_attr, sl)
LINKSPAN_FIELD(IbvAhAttr, ibv_ah_attr, src_path_bits)
LINKSPAN_FIELD(IbvAhAttr, ibv_ah_attr, static_rate)
LINKSPAN_FIELD(IbvAhAttr, ibv_ah_attr, is_global)
LINKSPAN_FIELD(IbvAhAttr, ibv_ah_attr, port_num)
LINKSPAN_STRUCT(IbvQpCap, ibv_qp_cap)
LINKSPAN_FIELD(IbvQpCap, ibv_qp_cap, max_send_wr)
LINKSPAN_FIELD(IbvQpCap, ibv_qp_cap, max_recv_wr)
LINKSPAN_FIELD(IbvQpCap, ibv_qp_cap, max_send_sge)
LINKSPAN_FIELD(IbvQpCap, ibv_qp_cap, max_recv_sge)
LINKSPAN_FIELD(IbvQpCap, ibv_qp_cap, max_inline_data)
LINKSPAN_STRUCT(IbvQpInitAttr, ibv_qp_init_attr)
LINKSPAN_FIELD(IbvQpInitAttr, ibv_qp_init_attr, qp_context)
LINKSPAN_FIELD(IbvQpInitAttr, ibv_qp_init_attr, send_cq)
LINKSPAN_FIELD(IbvQpInitAttr, ibv_qp_init_attr, recv_cq)
LINKSPAN_FIELD(IbvQpInitAttr, ibv_qp_init_attr, srq)
LINKSPAN_FIELD(IbvQpInitAttr, ibv_qp_init_attr, cap)
LINKSPAN_FIELD(IbvQpInitAttr, ibv_qp_init_attr, qp_type)
LINKSPAN_FIELD(IbvQpInitAttr, ibv_qp_init_attr, sq_sig_all)
LINKSPAN_STRUCT(IbvQpAttr, ibv_qp_attr)
LINKSPAN_FIELD(IbvQpAttr, ibv_qp_attr, qp_state)
LINKSPAN_FIELD(IbvQpAttr, ibv_qp_attr, cur_qp_state)
LINKSPAN_FIELD(IbvQpAttr, ibv_qp_attr, path_mtu)
LINKSPAN_FIELD(IbvQpAttr, ibv_qp_attr, path_mig_state)
LINKSPAN_FIELD(IbvQpAttr, ibv_qp_attr, qkey)
LINKSPAN_FIELD(IbvQpAttr, ibv_qp_attr, rq_psn)
LINKSPAN_FIELD(IbvQpAttr, ibv_qp_attr, sq_psn)
LINKSPAN_FIELD(IbvQpAttr, ibv_qp_attr, dest_qp_num)
LINKSPAN_FIELD(IbvQpAttr, ibv_qp_attr, qp_access_flags)
LINKSPAN_FIELD(IbvQpAttr, ibv_qp_attr, cap)
LINKSPAN_FIELD(IbvQpAttr, ibv_qp_attr, ah_attr)
LINKSPAN_FIELD(IbvQpAttr, ibv_qp_attr, alt_ah_attr)
LINKSPAN_FIELD(IbvQpAttr, ibv_qp_attr, pkey_index)
LINKSPAN_FIELD(IbvQpAttr, ibv_qp_attr, alt_pkey_index)
LINKSPAN_FIELD(IbvQpAttr, ibv_qp_attr, en_sqd_async_notify)
LINKSPAN_FIELD(IbvQpAttr, ibv_qp_attr, sq_draining)
LINKSPAN_FIELD(IbvQpAttr, ibv_qp_attr, max_rd_atomic)
LINKSPAN_FIELD(IbvQpAttr, ibv_qp_attr, max_dest_rd_atomic)
LINKSPAN_FIELD(IbvQpAttr, ibv_qp_attr, min_rnr_timer)
LINKSPAN_FIELD(IbvQpAttr, ibv_qp_attr, port_num)
LINKSPAN_FIELD(IbvQpAttr, ibv_qp_attr, timeout)
LINKSPAN_FIELD(IbvQpAttr, ibv_qp_attr, retry_cnt)
LINKSPAN_FIELD(IbvQpAttr, ibv_qp_attr, rnr_retry)
LINKSPAN_FIELD(IbvQpAttr, ibv_qp_attr, alt_port_num)
LINKSPAN_FIELD(IbvQpAttr, ibv_qp_attr, alt_timeout)
LINKSPAN_FIELD(IbvQpAttr, ibv_qp_attr, rate_limit)
LINKSPAN_STRUCT(IbvSge, ibv_sge)
LINKSPAN_FIELD(IbvSge, ibv_sge, addr)
LINKSPAN_FIELD(IbvSge, ibv_sge, length)
LINKSPAN_FIELD(IbvSge, ibv_sge, lkey)
LINKSPAN_STRUCT(IbvSendWr, ibv_send_wr)
LINKSPAN_FIELD(IbvSendWr, ibv_send_wr, wr_id)
LINKSPAN_FIELD(IbvSendWr, ibv_send_wr, next)
LINKSPAN_FIELD(IbvSendWr, ibv_send_wr, sg_list)
LINKSPAN_FIELD(IbvSendWr, ibv_send_wr, num_sge)
LINKSPAN_FIELD(IbvSendWr, ibv_send_wr, opcode)
LINKSPAN_FIELD(IbvSendWr, ibv_send_wr, send_flags)
LINKSPAN_FIELD(IbvSendWr, ibv_send_wr, wr)
LINKSPAN_STRUCT(IbvRecvWr, ibv_recv_wr)
LINKSPAN_FIELD(IbvRecvWr, ibv_recv_wr, wr_id)
LINKSPAN_FIELD(IbvRecvWr, ibv_recv_wr, next)
LINKSPAN_FIELD(IbvRecvWr, ibv_recv_wr, sg_list)
LINKSPAN_FIELD(IbvRecvWr, ibv_recv_wr, num_sge)
LINKSPAN_STRUCT(IbvQp, ibv_qp)
LINKSPAN_FIELD(IbvQp, ibv_qp, context)
LINKSPAN_FIELD(IbvQp, ibv_qp, qp_context)
LINKSPAN_FIELD(IbvQp, ibv_qp, pd)
LINKSPAN_FIELD(IbvQp, ibv_qp, send_cq)
LINKSPAN_FIELD(IbvQp, ibv_qp, recv_cq)
LINKSPAN_FIELD(IbvQp, ibv_qp, srq)
LINKSPAN_FIELD(IbvQp, ibv_qp, handle)
LINKSPAN_FIELD(IbvQp, ibv_qp, qp_num)
LINKSPAN_FIELD(IbvQp, ibv_qp, state)
LINKSPAN_FIELD(IbvQp, ibv_qp, qp_type)
LINKSPAN_FIELD(IbvQp, ibv_qp, mutex)
LINKSPAN_FIELD(IbvQp, ibv_qp, cond)
LINKSPAN_FIELD(IbvQp, ibv_qp, events_completed)
LINKSPAN_STRUCT(IbvCompChannel, ibv_comp_channel)
LINKSPAN_FIELD(IbvCompChannel, ibv_comp_channel, context)
LINKSPAN_FIELD(IbvCompChannel, ibv_comp_channel, fd)
LINKSPAN_FIELD(IbvCompChannel, ibv_comp_channel, refcnt)
LINKSPAN_STRUCT(IbvCq, ibv_cq)
LINKSPAN_FIELD(IbvCq, ibv_cq, context)
LINKSPAN_FIELD(IbvCq, ibv_cq, channel)
LINKSPAN_FIELD(IbvCq, ibv_cq, cq_context)
LINKSPAN_FIELD(IbvCq, ibv_cq, handle)
LINKSPAN_FIELD(IbvCq, ibv_cq, cqe)
LINKSPAN_FIELD(IbvCq, ibv_cq, mutex)
LINKSPAN_FIELD(IbvCq, ibv_cq, cond)
LINKSPAN_FIELD(IbvCq, ibv_cq, comp_events_completed)
LINKSPAN_FIELD(IbvCq, ibv_cq, async_events_completed)
LINKSPAN_STRUCT(IbvContextOps, ibv_context_ops)
LINKSPAN_FIELD(IbvContextOps, ibv_context_ops, poll_cq)
LINKSPAN_FIELD(IbvContextOps, ibv_context_ops, req_notify_cq)
LINKSPAN_FIELD(IbvContextOps, ibv_context_ops, post_srq_recv)
LINKSPAN_FIELD(IbvContextOps, ibv_context_ops, post_send)
LINKSPAN_FIELD(IbvContextOps, ibv_context_ops, post_recv)
LINKSPAN_STRUCT(IbvContext, ibv_context)
LINKSPAN_FIELD(IbvContext, ibv_context, device)
LINKSPAN_FIELD(IbvContext, ibv_context, ops)
LINKSPAN_FIELD(IbvContext, ibv_context, cmd_fd)
LINKSPAN_FIELD(IbvContext, ibv_context, async_fd)
LINKSPAN_FIELD(IbvContext, ibv_context, num_comp_vectors)
LINKSPAN_FIELD(IbvContext, ibv_context, mutex)
LINKSPAN_FIELD(IbvContext, ibv_context, abi_compat)
LINKSPAN_STRUCT(IbvExtendedContext, verbs_context)
LINKSPAN_FIELD(IbvExtendedContext, verbs_context, query_port)
LINKSPAN_FIELD(IbvExtendedContext, verbs_context, sz)
LINKSPAN_FIELD(IbvExtendedContext, verbs_context, context)
static_assert(sizeof(IbvGid) == sizeof(::ibv_gid) && alignof(IbvGid) == alignof(::ibv_gid));
LINKSPAN_AT(IbvDevice, ops, ibv_device, _ops)
LINKSPAN_AT(IbvWc, imm_data, ibv_wc, imm_data)
LINKSPAN_AT(IbvSendWr, imm_data, ibv_send_wr, imm_data)
LINKSPAN_AT(IbvSendWr, xrc_remote_srqn, ibv_send_wr, qp_type)
LINKSPAN_AT(IbvSendWr, unused, ibv_send_wr, bind_mw)
#undef LINKSPAN_AT
static_assert(offsetof(IbvSendWr, wr.rdma.rkey) == offsetof(::ibv_send_wr, wr.rdma.rkey));
#undef LINKSPAN_FIELD
#undef LINKSPAN_STRUCT

/// rdma-core's type in our words. What is not listed is the same type in both, or the check fails.
template <class T>
struct Ours {
  using type = T;
};
template <class T>
struct Ours<T*> {
  using type = typename Ours<T>::type*;
};
template <class R, class... A>
struct Ours<R (*)(A...)> {
  using type = typename Ours<R>::type (*)(typename Ours<A>::type...);
};

#define LINKSPAN_TYPE(theirs, ours) \
  template <>                       \
  struct Ours<::theirs> {           \
    using type = ours;              \
  };
LINKSPAN_TYPE(ibv_async_event, IbvAsyncEvent)
LINKSPAN_TYPE(ibv_comp_channel, IbvCompChannel)
LINKSPAN_TYPE(ibv_context, IbvContext)
LINKSPAN_TYPE(ibv_cq, IbvCq)
LINKSPAN_TYPE(ibv_device, IbvDevice)
LINKSPAN_TYPE(ibv_device_attr, IbvDeviceAttr)
LINKSPAN_TYPE(ibv_event_type, IbvEventType)
LINKSPAN_TYPE(ibv_gid, IbvGid)
LINKSPAN_TYPE(ibv_mr, IbvMr)
LINKSPAN_TYPE(ibv_pd, IbvPd)
LINKSPAN_TYPE(ibv_port_attr, IbvPortAttr)
LINKSPAN_TYPE(ibv_qp, IbvQp)
LINKSPAN_TYPE(ibv_qp_attr, IbvQpAttr)
LINKSPAN_TYPE(ibv_qp_init_attr, IbvQpInitAttr)
LINKSPAN_TYPE(ibv_recv_wr, IbvRecvWr)
LINKSPAN_TYPE(ibv_send_wr, IbvSendWr)
LINKSPAN_TYPE(ibv_wc, IbvWc)
LINKSPAN_TYPE(ibv_wc_status, IbvWcStatus)
#undef LINKSPAN_TYPE

template <class T>
using OursT = typename Ours<T>::type;

#define LINKSPAN_SIGNATURE(name, result, parameters) \
  static_assert(std::is_same_v<OursT<decltype(&::ibv_##name)>, result(*) parameters>, #name);
LINKSPAN_VERBS_REQUIRED(LINKSPAN_SIGNATURE)
LINKSPAN_VERBS_OPTIONAL(LINKSPAN_SIGNATURE)
#undef LINKSPAN_SIGNATURE

static_assert(
    std::is_same_v<OursT<decltype(::ibv_context_ops::poll_cq)>, decltype(IbvContextOps::poll_cq)>);
static_assert(std::is_same_v<OursT<decltype(::ibv_context_ops::req_notify_cq)>,
                             decltype(IbvContextOps::req_notify_cq)>);
static_assert(std::is_same_v<OursT<decltype(::ibv_context_ops::post_send)>,
                             decltype(IbvContextOps::post_send)>);
static_assert(std::is_same_v<OursT<decltype(::ibv_context_ops::post_recv)>,
                             decltype(IbvContextOps::post_recv)>);
static_assert(std::is_same_v<OursT<decltype(::verbs_context::query_port)>,
                             decltype(IbvExtendedContext::query_port)>);

// An enum of C has no fixed underlying type; it is passed as the int of its size.
static_assert(sizeof(::ibv_wc_status) == sizeof(IbvWcStatus));
static_assert(sizeof(::ibv_event_type) == sizeof(IbvEventType));

}  // namespace linkspan::transport::verbs
