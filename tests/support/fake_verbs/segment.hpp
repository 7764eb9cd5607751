// tests/support/fake_verbs/segment.hpp - what the processes of a machine share, and how they find
// each other.
//
// Each process that opens a device is a host of its own, with its own network cards. Its Segment, a
// memfd, has its queue pairs, receive queues, completion queues and keys; another process works on
// it as the network card would: it consumes receives, adds completions and moves queue pairs to the
// error state, also while its owner is stopped. A host has a number, which is part of its GIDs and
// of the numbers of its queue pairs; a file in FAKE_VERBS_FOLDER says which process has which.
// Threads: any thread of any process; a queue pair is under its `landing` lock, the writing end of
// a completion queue under its `lock`. Invariants: all bits zero is an empty segment. A lock of a
// completion queue is taken last.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "tests/support/fake_verbs/shared_lock.hpp"
#include "transport/verbs/abi.hpp"

namespace linkspan::transport::verbs::fake {

inline constexpr std::uint32_t kHosts = 1024, kQps = 4096, kCqs = 2048, kMrs = 32768;
inline constexpr std::uint32_t kDevices = 16, kContexts = 256, kLateMrs = 64;
inline constexpr std::uint64_t kArenaBytes = std::uint64_t{2} << 30;

/// Says which device of which host a GID names.
struct Address {
  std::uint32_t host, device;
  std::uint32_t generation;  // of the IPv4 address
  bool ipv4;
};

/// Says how a queue pair reaches its peer.
struct Route {
  Address from, to;
  std::uint32_t gid_type;
  std::uint32_t qp_num;
};

struct DeviceShared {
  std::atomic<std::uint32_t> lost, port_down, generation;
};

struct ContextShared {
  std::atomic<std::uint32_t> wake;      // changes when the device's thread has something to do
  std::atomic<std::uint32_t> sleeping;  // the thread waits for that
  std::atomic<std::int32_t> events;     // the descriptor that events are written to, and 1
  std::atomic<std::uint32_t> serial;
  Pad pad;  // of the thread
};

struct MrShared {
  std::atomic<std::uint32_t> lkey;  // 0: not in use
  std::uint32_t pd, access;
  std::uint64_t iova, bytes;
  std::uint64_t view;  // where the memory is in its process
  // Of memory that shows late what was written (late_memory.cpp); shadow is 0 for other memory.
  SharedLock late;
  std::uint64_t shadow, late_ring, late_head, late_tail;
};
inline constexpr std::uint32_t kRemoteBit = 1U << 31;  // a rkey is the lkey with this

struct RecvSlot {
  std::uint64_t wr_id;
  std::uint32_t sge_count, unused;
  // followed by the elements
};

struct QpShared {
  SharedLock landing;
  std::atomic<std::uint32_t> number;  // 0: not in use
  std::atomic<std::uint32_t> state;   // an IbvQpState
  std::uint32_t context, pd, device;
  std::uint32_t access, rq_psn, min_rnr_timer, max_dest_rd_atomic;
  std::uint32_t send_cq, recv_cq;
  Route route;
  std::uint64_t ring;  // of receives, in the arena
  std::uint32_t slots, slot_bytes, expects_first;
  std::atomic<std::uint64_t> head, tail;  // of receives, ever taken and posted
};

struct Completion {
  IbvWc wc;
  std::uint64_t retires;  // requests of the queue pair up to this, ever, need no place any more
  std::uint64_t purged;   // its queue pair has gone
};

struct CqShared {
  SharedLock lock;
  std::atomic<std::uint32_t> serial;  // 0: not in use
  std::atomic<std::uint32_t> armed;   // 1: for solicited completions, 2: for any
  std::atomic<std::uint32_t> overrun;
  std::uint32_t context;
  std::uint64_t ring, slots;              // in the arena
  std::atomic<std::uint64_t> head, tail;  // ever taken and added
  std::int32_t channel;                   // the descriptor that events are written to, and 1
};

struct Segment {
  std::uint64_t magic;
  std::int32_t pid;
  std::uint32_t number;
  std::uint64_t start_time;
  std::atomic<std::uint32_t> closed;
  std::array<DeviceShared, kDevices> devices;
  std::array<ContextShared, kContexts> contexts;
  std::array<QpShared, kQps> qps;
  std::array<CqShared, kCqs> cqs;
  std::array<MrShared, kMrs> mrs;
  std::array<std::atomic<std::uint32_t>, kLateMrs> late;  // indices of mrs, 0: none

  std::byte* arena() { return reinterpret_cast<std::byte*>(this + 1); }
  QpShared& qp(std::uint32_t qp_num) { return qps[qp_num % kQps]; }
  RecvSlot& receive(const QpShared& qp, std::uint64_t index) {
    return *reinterpret_cast<RecvSlot*>(arena() + qp.ring + index % qp.slots * qp.slot_bytes);
  }
  Completion& completion(const CqShared& cq, std::uint64_t index) {
    return reinterpret_cast<Completion*>(arena() + cq.ring)[index % cq.slots];
  }
  /// Returns the registration that contains the range for that use, or null. `key` is a rkey if
  /// `remote`.
  MrShared* find(std::uint32_t key, bool remote, std::uint32_t pd, std::uint64_t address,
                 std::uint64_t bytes, unsigned access);
};
inline constexpr std::uint64_t kSegmentBytes = sizeof(Segment) + kArenaBytes;

/// Returns the host's number, which is part of a queue pair's.
constexpr std::uint32_t host_of(std::uint32_t qp_num) { return qp_num >> 14; }

/// A process whose segment is mapped here; this one among them.
class Host {
 public:
  /// Makes this process a host. Null: errno says why.
  static std::shared_ptr<Host> claim();
  /// Finds the process with that number. Null: there is none.
  static std::shared_ptr<Host> attach(std::uint32_t number);
  Host(Segment* segment, int memfd, int pidfd) : segment_(*segment), memfd_(memfd), pidfd_(pidfd) {}
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  ~Host();

  Segment& segment() const { return segment_; }
  bool own() const { return pidfd_ < 0; }
  bool alive() const;
  bool is(std::uint64_t start_time, int pid) const {
    return segment_.start_time == start_time && segment_.pid == pid;
  }
  /// Writes an event to a pipe of the host. `key` tells pipes apart that had the same number.
  void notify(std::int32_t fd, std::uint32_t key, std::uint64_t event);
  /// Wakes the thread of a device.
  void wake(std::uint32_t context);
  /// Copies between here and the host's memory by the caller's pad, while it holds `lock`. Returns
  /// 0, or an errno: ESRCH if the host has ended, EAGAIN if the lock was taken away. Pages that are
  /// gone are as good as pinned ones that nobody sees.
  int copy(const iovec* local, std::size_t count, std::uint64_t remote, std::size_t bytes,
           bool write, const SharedLock& lock, Pad& pad) const;

 private:
  Segment& segment_;
  const int memfd_, pidfd_;
  std::mutex mutex_;
  std::map<std::uint64_t, int> pipes_;  // by number and key
};

/// The free ranges of this process's arena.
class Arena {
 public:
  /// Returns the offset of `bytes` bytes; all bits set if there is no room.
  std::uint64_t allocate(std::uint64_t bytes);
  void free(std::uint64_t offset, std::uint64_t bytes);

 private:
  std::map<std::uint64_t, std::uint64_t> free_{{0, kArenaBytes}};
};

}  // namespace linkspan::transport::verbs::fake
