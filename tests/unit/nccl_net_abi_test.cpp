#include "transport/nccl_net/abi.hpp"

#include <gtest/gtest.h>

#include <climits>
#include <cstring>

#include "tests/support/nccl_net_plugin/abi.hpp"
#include "transport/nccl_net/net.hpp"

// The test plugin's own declarations, made apart from ours.
#define NCCL_NET_VERSION 5
#include "tests/support/nccl_net_plugin/versioned_abi.hpp"
#undef NCCL_NET_VERSION
#define NCCL_NET_VERSION 6
#include "tests/support/nccl_net_plugin/versioned_abi.hpp"
#undef NCCL_NET_VERSION
#define NCCL_NET_VERSION 7
#include "tests/support/nccl_net_plugin/versioned_abi.hpp"
#undef NCCL_NET_VERSION
#define NCCL_NET_VERSION 8
#include "tests/support/nccl_net_plugin/versioned_abi.hpp"
#undef NCCL_NET_VERSION
#define NCCL_NET_VERSION 9
#include "tests/support/nccl_net_plugin/versioned_abi.hpp"
#undef NCCL_NET_VERSION
#define NCCL_NET_VERSION 10
#include "tests/support/nccl_net_plugin/versioned_abi.hpp"
#undef NCCL_NET_VERSION
#define NCCL_NET_VERSION 11
#include "tests/support/nccl_net_plugin/versioned_abi.hpp"
#undef NCCL_NET_VERSION
#define NCCL_NET_VERSION 12
#include "tests/support/nccl_net_plugin/versioned_abi.hpp"
#undef NCCL_NET_VERSION

namespace linkspan::transport::nccl_net::abi {
namespace nccl_net_abi_test {

template <int V>
constexpr void compare_properties(const auto& ours, const auto& theirs) {
  const auto same = [&](const auto& a, const auto& b) {
    static_assert(sizeof a == sizeof b);
    EXPECT_EQ(reinterpret_cast<const char*>(&a) - reinterpret_cast<const char*>(&ours),
              reinterpret_cast<const char*>(&b) - reinterpret_cast<const char*>(&theirs))
        << "version " << V;
  };
  static_assert(sizeof ours == sizeof theirs);
  same(ours.name, theirs.name);
  same(ours.pci_path, theirs.pciPath);
  same(ours.guid, theirs.guid);
  same(ours.pointer_support, theirs.ptrSupport);
  same(ours.speed, theirs.speed);
  same(ours.port, theirs.port);
  same(ours.latency, theirs.latency);
  same(ours.max_comms, theirs.maxComms);
  same(ours.max_receives, theirs.maxRecvs);
  if constexpr (V >= 7) {
    same(ours.device_type, theirs.netDeviceType);
    same(ours.device_version, theirs.netDeviceVersion);
  }
  if constexpr (V >= 8) same(ours.registration_is_global, theirs.regIsGlobal);
  if constexpr (V >= 9) {
    same(ours.force_flush, theirs.forceFlush);
    same(ours.virtual_device, theirs.vProps);
    same(ours.max_p2p_bytes, theirs.maxP2pBytes);
    same(ours.max_collective_bytes, theirs.maxCollBytes);
  }
  if constexpr (V >= 11) same(ours.max_multi_request_size, theirs.maxMultiRequestSize);
  if constexpr (V >= 12) {
    same(ours.rail_id, theirs.railId);
    same(ours.plane_id, theirs.planeId);
  }
}

template <int V>
void compare_tables(const auto& ours, const auto& theirs) {
  const auto same = [&](const auto& a, const auto& b) {
    EXPECT_EQ(reinterpret_cast<const char*>(&a) - reinterpret_cast<const char*>(&ours),
              reinterpret_cast<const char*>(&b) - reinterpret_cast<const char*>(&theirs))
        << "version " << V;
  };
  static_assert(sizeof ours == sizeof theirs);
  same(ours.name, theirs.name);
  same(ours.init, theirs.init);
  same(ours.devices, theirs.devices);
  same(ours.get_properties, theirs.getProperties);
  same(ours.listen, theirs.listen);
  same(ours.connect, theirs.connect);
  same(ours.accept, theirs.accept);
  same(ours.reg_mr, theirs.regMr);
  if constexpr (V >= 6) same(ours.reg_mr_dma_buf, theirs.regMrDmaBuf);
  same(ours.dereg_mr, theirs.deregMr);
  same(ours.isend, theirs.isend);
  same(ours.irecv, theirs.irecv);
  same(ours.iflush, theirs.iflush);
  same(ours.test, theirs.test);
  same(ours.close_send, theirs.closeSend);
  same(ours.close_receive, theirs.closeRecv);
  same(ours.close_listen, theirs.closeListen);
  if constexpr (V >= 7) {
    same(ours.get_device_mr, theirs.getDeviceMr);
    same(ours.irecv_consumed, theirs.irecvConsumed);
  }
  if constexpr (V >= 9) same(ours.make_virtual_device, theirs.makeVDevice);
  if constexpr (V >= 11) {
    same(ours.finalize, theirs.finalize);
    same(ours.set_net_attr, theirs.setNetAttr);
  }
}

TEST(NcclNetAbi, BothDeclarationsAreTheSame) {
  namespace theirs = nccl_test;
  compare_properties<5>(PropertiesV5{}, theirs::v5::Properties{});
  compare_properties<6>(PropertiesV5{}, theirs::v6::Properties{});
  compare_properties<7>(PropertiesV7{}, theirs::v7::Properties{});
  compare_properties<8>(PropertiesV8{}, theirs::v8::Properties{});
  compare_properties<9>(PropertiesV9{}, theirs::v9::Properties{});
  compare_properties<10>(PropertiesV9{}, theirs::v10::Properties{});
  compare_properties<11>(PropertiesV11{}, theirs::v11::Properties{});
  compare_properties<12>(PropertiesV12{}, theirs::v12::Properties{});
  compare_tables<5>(TableV5{}, theirs::v5::Net{});
  compare_tables<6>(TableV6{}, theirs::v6::Net{});
  compare_tables<7>(TableV7{}, theirs::v7::Net{});
  compare_tables<8>(TableV8{}, theirs::v8::Net{});
  compare_tables<9>(TableV9{}, theirs::v9::Net{});
  compare_tables<10>(TableV10{}, theirs::v10::Net{});
  compare_tables<11>(TableV11{}, theirs::v11::Net{});
  compare_tables<12>(TableV12{}, theirs::v12::Net{});
}

TEST(NcclNetAbi, OffsetsAreThoseOfTheAbi) {
  EXPECT_EQ(offsetof(PropertiesV5, pointer_support), 24u);
  EXPECT_EQ(offsetof(PropertiesV5, max_receives), 44u);
  EXPECT_EQ(offsetof(PropertiesV7, device_type), 48u);
  EXPECT_EQ(offsetof(PropertiesV8, registration_is_global), 28u);
  EXPECT_EQ(offsetof(PropertiesV8, device_version), 56u);
  EXPECT_EQ(offsetof(PropertiesV9, force_flush), 32u);
  EXPECT_EQ(offsetof(PropertiesV9, virtual_device), 64u);
  EXPECT_EQ(offsetof(PropertiesV9, max_p2p_bytes), 88u);
  EXPECT_EQ(offsetof(PropertiesV11, max_multi_request_size), 104u);
  EXPECT_EQ(offsetof(PropertiesV12, max_p2p_bytes), 104u);
  EXPECT_EQ(offsetof(PropertiesV12, rail_id), 124u);
  EXPECT_EQ(offsetof(TableV5, dereg_mr), 8 * 8u);
  EXPECT_EQ(offsetof(TableV6, dereg_mr), 9 * 8u);
  EXPECT_EQ(offsetof(TableV7, irecv_consumed), 18 * 8u);
  EXPECT_EQ(offsetof(TableV9, make_virtual_device), 19 * 8u);
  EXPECT_EQ(offsetof(TableV11, finalize), 20 * 8u);
  EXPECT_EQ(offsetof(DeviceHandle, handle), offsetof(nccl_test::NetDeviceHandle, handle));
  EXPECT_EQ(offsetof(DeviceHandle, needs_proxy_progress), 24u);
  EXPECT_EQ(sizeof(DeviceHandle), sizeof(nccl_test::NetDeviceHandle));
  EXPECT_EQ(int{kRemote}, int{nccl_test::kRemoteError});
  EXPECT_EQ(int{kInProgress}, int{nccl_test::kInProgress});
}

// ---- one interface over the tables: net.hpp -----------------------------------------------------

/// Returns a table whose entries exist and do nothing.
template <class Table>
Table filled() {
  Table table{};
  const auto entry = +[] { return 0; };
  for (std::size_t at = 0; at < sizeof table; at += sizeof entry)
    std::memcpy(reinterpret_cast<char*>(&table) + at, &entry, sizeof entry);
  table.name = "filled";
  return table;
}

TEST(NcclNetTables, WhatIsNotWholeIsNone) {
  TableV8 table = filled<TableV8>();
  ASSERT_NE(make_net(8, &table), nullptr);
  EXPECT_EQ(make_net(8, &table)->version(), 8);
  EXPECT_EQ(make_net(4, &table), nullptr);
  EXPECT_EQ(make_net(13, &table), nullptr);
  EXPECT_EQ(make_net(8, nullptr), nullptr);
  table.irecv_consumed = nullptr;
  table.reg_mr_dma_buf = nullptr;
  table.get_device_mr = nullptr;
  ASSERT_NE(make_net(8, &table), nullptr);
  EXPECT_FALSE(make_net(8, &table)->has_consumed());
  table.test = nullptr;
  EXPECT_EQ(make_net(8, &table), nullptr);
}

TEST(NcclNetTables, SizesBeyondAnIntAreRefusedBeforeTheyAreCut) {
  TableV7 table = filled<TableV7>();
  const auto net = make_net(7, &table);
  ASSERT_NE(net, nullptr);
  void* handle = nullptr;
  const std::size_t large = std::size_t{INT_MAX} + 1;
  EXPECT_EQ(net->register_memory(nullptr, nullptr, large, kHost, handle), kInvalidArgument);
  EXPECT_EQ(net->send(nullptr, nullptr, large, 0, nullptr, handle), kInvalidArgument);
  EXPECT_EQ(net->receive(nullptr, nullptr, large, 0, nullptr, handle), kInvalidArgument);
}

TEST(NcclNetTables, LimitsAreTheVersions) {
  const TableV6 old = filled<TableV6>();
  const TableV12 young = filled<TableV12>();
  EXPECT_EQ(make_net(6, &old)->max_requests(), 8);
  EXPECT_EQ(make_net(12, &young)->max_requests(), 32);
}

}  // namespace nccl_net_abi_test
}  // namespace linkspan::transport::nccl_net::abi
