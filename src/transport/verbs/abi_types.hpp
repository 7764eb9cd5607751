// transport/verbs/abi_types.hpp - the attributes, numbers and plain objects of abi.hpp, which
// includes this and is what others include.
//
// Names of fields are those of libibverbs, so that its manual pages hold.
// tests/abi/verbs_abi_check.cpp compares all of it with infiniband/verbs.h.
// Threads: declarations.
#pragma once

#include <cstddef>
#include <cstdint>

namespace linkspan::transport::verbs {

struct IbvAh;
struct IbvContext;
struct IbvCompChannel;
struct IbvCq;
struct IbvPd;
struct IbvQp;
struct IbvSrq;

/// Identifies a port to its peers; the bytes are in network order.
union IbvGid {
  std::uint8_t raw[16];
  struct {
    std::uint64_t subnet_prefix;
    std::uint64_t interface_id;
  } global;
};
enum IbvGidType : std::uint32_t { kGidIb = 0, kGidRoceV1 = 1, kGidRoceV2 = 2 };
struct IbvGidEntry {
  IbvGid gid;
  std::uint32_t gid_index;
  std::uint32_t port_num;
  std::uint32_t gid_type;  // a IbvGidType
  std::uint32_t ndev_ifindex;
};

enum IbvNodeType : int { kNodeUnknown = -1, kNodeCa = 1, kNodeRnic = 4, kNodeUnspecified = 7 };
enum IbvTransportType : int {
  kTransportUnknown = -1,
  kTransportIb = 0,
  kTransportIwarp = 1,
  kTransportUnspecified = 4,
};
struct IbvDevice {
  void* ops[2];
  IbvNodeType node_type;
  IbvTransportType transport_type;
  char name[64];         // such as mlx5_0
  char dev_name[64];     // such as uverbs0
  char dev_path[256];    // in sysfs
  char ibdev_path[256];  // in sysfs; its link `device` leads to the PCI device
};

struct IbvDeviceAttr {
  char fw_ver[64];
  std::uint64_t node_guid;  // in network order, as the next one
  std::uint64_t sys_image_guid;
  std::uint64_t max_mr_size;
  std::uint64_t page_size_cap;
  std::uint32_t vendor_id;
  std::uint32_t vendor_part_id;
  std::uint32_t hw_ver;
  int max_qp;
  int max_qp_wr;
  unsigned device_cap_flags;
  int max_sge;
  int max_sge_rd;
  int max_cq;
  int max_cqe;
  int max_mr;
  int max_pd;
  int max_qp_rd_atom;
  int max_ee_rd_atom;
  int max_res_rd_atom;
  int max_qp_init_rd_atom;
  int max_ee_init_rd_atom;
  int atomic_cap;
  int max_ee;
  int max_rdd;
  int max_mw;
  int max_raw_ipv6_qp;
  int max_raw_ethy_qp;
  int max_mcast_grp;
  int max_mcast_qp_attach;
  int max_total_mcast_qp_attach;
  int max_ah;
  int max_fmr;
  int max_map_per_fmr;
  int max_srq;
  int max_srq_wr;
  int max_srq_sge;
  std::uint16_t max_pkeys;
  std::uint8_t local_ca_ack_delay;
  std::uint8_t phys_port_cnt;
};

enum IbvMtu : int { kMtu256 = 1, kMtu512 = 2, kMtu1024 = 3, kMtu2048 = 4, kMtu4096 = 5 };
enum IbvPortState : int {
  kPortNop = 0,
  kPortDown = 1,
  kPortInit = 2,
  kPortArmed = 3,
  kPortActive = 4,
  kPortActiveDefer = 5,
};
enum IbvLinkLayer : std::uint8_t { kLinkUnspecified = 0, kLinkInfiniband = 1, kLinkEthernet = 2 };
struct IbvPortAttr {
  IbvPortState state;
  IbvMtu max_mtu;
  IbvMtu active_mtu;
  int gid_tbl_len;
  std::uint32_t port_cap_flags;
  std::uint32_t max_msg_sz;
  std::uint32_t bad_pkey_cntr;
  std::uint32_t qkey_viol_cntr;
  std::uint16_t pkey_tbl_len;
  std::uint16_t lid;
  std::uint16_t sm_lid;
  std::uint8_t lmc;
  std::uint8_t max_vl_num;
  std::uint8_t sm_sl;
  std::uint8_t subnet_timeout;
  std::uint8_t init_type_reply;
  std::uint8_t active_width;
  std::uint8_t active_speed;
  std::uint8_t phys_state;
  std::uint8_t link_layer;  // a IbvLinkLayer
  std::uint8_t flags;
  std::uint16_t port_cap_flags2;  // not written by the symbol ibv_query_port
};

enum IbvEventType : int {
  kEventCqErr = 0,
  kEventQpFatal = 1,
  kEventQpReqErr = 2,
  kEventQpAccessErr = 3,
  kEventCommEst = 4,
  kEventSqDrained = 5,
  kEventPathMig = 6,
  kEventPathMigErr = 7,
  kEventDeviceFatal = 8,
  kEventPortActive = 9,
  kEventPortErr = 10,
  kEventLidChange = 11,
  kEventPkeyChange = 12,
  kEventSmChange = 13,
  kEventSrqErr = 14,
  kEventSrqLimitReached = 15,
  kEventQpLastWqeReached = 16,
  kEventClientReregister = 17,
  kEventGidChange = 18,
  kEventWqFatal = 19,
};
struct IbvAsyncEvent {
  union {
    IbvCq* cq;
    IbvQp* qp;
    IbvSrq* srq;
    int port_num;
  } element;
  IbvEventType event_type;
};

enum IbvWcStatus : int {
  kWcSuccess = 0,
  kWcLocLenErr = 1,
  kWcLocQpOpErr = 2,
  kWcLocProtErr = 4,
  kWcWrFlushErr = 5,
  kWcMwBindErr = 6,
  kWcBadRespErr = 7,
  kWcLocAccessErr = 8,
  kWcRemInvReqErr = 9,
  kWcRemAccessErr = 10,
  kWcRemOpErr = 11,
  kWcRetryExcErr = 12,
  kWcRnrRetryExcErr = 13,
  kWcRemAbortErr = 16,
  kWcFatalErr = 19,
  kWcRespTimeoutErr = 20,
  kWcGeneralErr = 21,
};
enum IbvWcOpcode : int {
  kWcSend = 0,
  kWcRdmaWrite = 1,
  kWcRdmaRead = 2,
  kWcRecv = 128,  // a bit of the opcode of each receive
  kWcRecvRdmaWithImm = 129,
};
enum IbvWcFlags : unsigned { kWcGrh = 1, kWcWithImm = 2 };
/// After an error only wr_id, status, qp_num and vendor_err are valid.
struct IbvWc {
  std::uint64_t wr_id;
  IbvWcStatus status;
  IbvWcOpcode opcode;
  std::uint32_t vendor_err;
  std::uint32_t byte_len;
  std::uint32_t imm_data;  // in network order
  std::uint32_t qp_num;
  std::uint32_t src_qp;
  unsigned wc_flags;
  std::uint16_t pkey_index;
  std::uint16_t slid;
  std::uint8_t sl;
  std::uint8_t dlid_path_bits;
};

enum IbvAccessFlags : unsigned {
  kAccessLocalWrite = 1,
  kAccessRemoteWrite = 2,
  kAccessRemoteRead = 4,
  kAccessRemoteAtomic = 8,
  kAccessRelaxedOrdering = 1U << 20,  // taken by reg_mr_iova2() and reg_dmabuf_mr() only
};
struct IbvPd {
  IbvContext* context;
  std::uint32_t handle;
};
struct IbvMr {
  IbvContext* context;
  IbvPd* pd;
  void* addr;
  std::size_t length;
  std::uint32_t handle;
  std::uint32_t lkey;
  std::uint32_t rkey;
};

struct IbvGlobalRoute {
  IbvGid dgid;
  std::uint32_t flow_label;
  std::uint8_t sgid_index;
  std::uint8_t hop_limit;
  std::uint8_t traffic_class;
};
struct IbvAhAttr {
  IbvGlobalRoute grh;
  std::uint16_t dlid;
  std::uint8_t sl;
  std::uint8_t src_path_bits;
  std::uint8_t static_rate;
  std::uint8_t is_global;
  std::uint8_t port_num;
};

enum IbvQpType : int { kQptRc = 2, kQptUc = 3, kQptUd = 4, kQptDriver = 255 };
struct IbvQpCap {
  std::uint32_t max_send_wr;
  std::uint32_t max_recv_wr;
  std::uint32_t max_send_sge;
  std::uint32_t max_recv_sge;
  std::uint32_t max_inline_data;
};
struct IbvQpInitAttr {
  void* qp_context;
  IbvCq* send_cq;
  IbvCq* recv_cq;
  IbvSrq* srq;
  IbvQpCap cap;
  IbvQpType qp_type;
  int sq_sig_all;
};

enum IbvQpAttrMask : int {
  kQpState = 1 << 0,
  kQpCurState = 1 << 1,
  kQpAccessFlags = 1 << 3,
  kQpPkeyIndex = 1 << 4,
  kQpPort = 1 << 5,
  kQpQkey = 1 << 6,
  kQpAv = 1 << 7,
  kQpPathMtu = 1 << 8,
  kQpTimeout = 1 << 9,
  kQpRetryCnt = 1 << 10,
  kQpRnrRetry = 1 << 11,
  kQpRqPsn = 1 << 12,
  kQpMaxQpRdAtomic = 1 << 13,
  kQpMinRnrTimer = 1 << 15,
  kQpSqPsn = 1 << 16,
  kQpMaxDestRdAtomic = 1 << 17,
  kQpCap = 1 << 19,
  kQpDestQpn = 1 << 20,
};
enum IbvQpState : int {
  kQpsReset = 0,
  kQpsInit = 1,
  kQpsRtr = 2,
  kQpsRts = 3,
  kQpsSqd = 4,
  kQpsSqe = 5,
  kQpsErr = 6,
};
struct IbvQpAttr {
  IbvQpState qp_state;
  IbvQpState cur_qp_state;
  IbvMtu path_mtu;
  int path_mig_state;
  std::uint32_t qkey;
  std::uint32_t rq_psn;
  std::uint32_t sq_psn;
  std::uint32_t dest_qp_num;
  unsigned qp_access_flags;
  IbvQpCap cap;
  IbvAhAttr ah_attr;
  IbvAhAttr alt_ah_attr;
  std::uint16_t pkey_index;
  std::uint16_t alt_pkey_index;
  std::uint8_t en_sqd_async_notify;
  std::uint8_t sq_draining;
  std::uint8_t max_rd_atomic;
  std::uint8_t max_dest_rd_atomic;
  std::uint8_t min_rnr_timer;
  std::uint8_t port_num;
  std::uint8_t timeout;  // of an ack: 4.096 us << timeout; 0 waits for ever
  std::uint8_t retry_cnt;
  std::uint8_t rnr_retry;  // 7 retries for ever
  std::uint8_t alt_port_num;
  std::uint8_t alt_timeout;
  std::uint32_t rate_limit;
};

}  // namespace linkspan::transport::verbs
