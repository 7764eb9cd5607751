// tests/support/fake_verbs/fake_verbs.hpp - libibverbs and its network cards without hardware.
//
// A shared object that exports the functions of libibverbs that the library uses;
// LINKSPAN_VERBS_LIBRARY puts it in the place of libibverbs.so.1. It carries RC queue pairs between
// the threads of a process and between processes of a user on one machine. An open device has a
// thread, which works as the network card: it reads and writes the memory of the other process by
// process_vm_readv() and process_vm_writev(), whether that process runs, is stopped or is killed.
// It proves logic: never speed, and facts about hardware only as far as the manual pages and the
// InfiniBand specification say them.
// It is hostile where hardware may be: bytes land in pieces, the first of them anywhere in the
// message; lkey and rkey differ; fields of a failed completion that are not valid are garbage; a
// place in the send queue is free only after a completion was polled that retires it; entries of
// the GID table are unused. settings.hpp lists what can be made worse, and the variables for it.
//
// A fence is hard: nothing lands by a queue pair, or in a registration, after the call returned
// that moved the one to RESET or ERR or ended either. A QP that errs ends as real ones do: a wrong
// rkey moves both ends to ERR and gives the target an event. Environment: FAKE_VERBS_FOLDER is
// where hosts find each other; /tmp/fake_verbs.UID if not set. Controls for tests: controls.hpp.
// Threads: any thread. Locks are taken in this order: World, Turns, QpShared::landing,
// QpObject::post, CqShared::lock.
// Invariants: in a forked child, and after the process has begun to end, every call fails.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/fake_verbs/segment.hpp"
#include "tests/support/fake_verbs/settings.hpp"
#include "transport/verbs/library.hpp"

#define FAKE_VERBS_EXPORT extern "C" __attribute__((visibility("default")))

namespace linkspan::transport::verbs::fake {

// Declares each function of libibverbs, with its own signature.
#define FAKE_VERBS_DECLARE(name, result, parameters) FAKE_VERBS_EXPORT result ibv_##name parameters;
LINKSPAN_VERBS_REQUIRED(FAKE_VERBS_DECLARE)
LINKSPAN_VERBS_OPTIONAL(FAKE_VERBS_DECLARE)
#undef FAKE_VERBS_DECLARE
FAKE_VERBS_EXPORT int ibv_query_port(IbvContext* context, std::uint8_t port_num, IbvPortAttr* attr);
FAKE_VERBS_EXPORT int _ibv_query_gid_ex(IbvContext* context, std::uint32_t port_num,
                                        std::uint32_t index, IbvGidEntry* entry,
                                        std::uint32_t flags, std::size_t bytes);

inline constexpr int kPorts = 1, kGids = 8;

/// Lets calls between the steps of a device's thread, before its next one.
class Turns {
 public:
  /// Holds the thread between two steps.
  class Call {
   public:
    explicit Call(Turns& turns) : turns_(turns) {
      turns_.waiting_.fetch_add(1);
      turns_.mutex_.lock();
      turns_.waiting_.fetch_sub(1);
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    ~Call() {
      turns_.mutex_.unlock();
      turns_.passed_.notify_one();
    }

   private:
    Turns& turns_;
  };
  /// Returns when no call waits, for a step.
  std::unique_lock<std::mutex> step() {
    std::unique_lock lock(mutex_);
    passed_.wait_for(lock, std::chrono::milliseconds(100), [this] { return waiting_ == 0; });
    return lock;
  }
  bool called() const { return waiting_ != 0; }

 private:
  std::atomic<int> waiting_ = 0;
  std::mutex mutex_;
  std::condition_variable passed_;
};

struct ContextObject;

struct PdObject : IbvPd {
  std::atomic<int> users = 0;
};

struct MrObject : IbvMr {
  void* mapping = nullptr;  // of a GPU's memory
  std::size_t mapping_bytes = 0;
};

struct ChannelObject : IbvCompChannel {
  int write_fd = -1;
  std::atomic<int> users = 0;
};

struct CqObject : IbvCq {
  CqShared* shared = nullptr;
  std::uint32_t index = 0, serial = 0;
  std::mutex consumer;
  std::atomic<int> users = 0;
  std::uint32_t events_taken = 0;  // under `mutex` of IbvCq
};

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
template <class T>
using Zeros = std::unique_ptr<T[], Free>;

/// A work request that was posted.
struct SendEntry {
  enum class Phase { queued, landed };
  IbvSendWr wr;
  std::uint64_t number;  // of the queue pair's requests, from 1
  std::uint64_t bytes, piece_bytes;
  std::uint64_t pieces, first_piece, landed_pieces;
  Phase phase;
  bool begun;  // was worked on
  bool done;   // its completion was given, or it needs none
  Time due;    // of what comes next
};

/// The settings of modify_qp(), and the peer as the device's thread knows it.
struct Connection {
  IbvQpAttr attr{};
  std::shared_ptr<Host> host;
  Time not_before{};
  Time unreachable_since{};  // zero: it was reachable
  bool failed = false;       // a request has, and the queue pair is not in the error state yet
  int rnr_tries = 0;
  bool rnr_rolled = false;  // whether this message shall meet no receive has been decided
};

struct QpObject : IbvQp {
  QpShared* shared = nullptr;
  IbvQpInitAttr init{};
  Connection connection;                                       // under Turns
  std::mutex post;                                             // of sends and receives
  Zeros<SendEntry> entries;                                    // max_send_wr
  Zeros<IbvSge> elements;                                      // max_send_sge for each entry
  Zeros<std::byte> inlines;                                    // max_inline_data for each entry
  std::atomic<std::uint64_t> head = 0, tail = 0, retired = 0;  // completed, posted, free again
  std::uint32_t events_taken = 0;                              // under `mutex` of IbvQp

  std::uint64_t place(std::uint64_t index) const {
    return index % std::max(init.cap.max_send_wr, 1U);
  }
  SendEntry& entry(std::uint64_t index) { return entries.get()[place(index)]; }
  std::span<IbvSge> elements_of(std::uint64_t index) {
    const std::size_t each = init.cap.max_send_sge;
    return {elements.get() + place(index) * each, each};
  }
  std::byte* inline_of(std::uint64_t index) {
    return inlines.get() + place(index) * init.cap.max_inline_data;
  }
};

struct DeviceObject : IbvDevice {
  std::uint32_t index = 0;
};

struct ContextObject : IbvExtendedContext {
  std::uint32_t index = 0, serial = 0;
  DeviceShared* device = nullptr;
  std::uint32_t device_index = 0;
  int events_fd = -1;  // the writing end of async_fd
  Turns turns;
  std::vector<QpObject*> qps;  // under Turns
  std::mt19937_64 random;      // of the thread
  Time free_at{};              // the rate allows the next bytes
  std::atomic<bool> stop = false, held = false;
  std::thread thread;

  bool lost() const { return device->lost != 0; }
};

inline ContextObject& object(IbvContext* context) {
  auto* const around =
      reinterpret_cast<std::byte*>(context) - offsetof(IbvExtendedContext, context);
  return *static_cast<ContextObject*>(reinterpret_cast<IbvExtendedContext*>(around));
}
inline ContextObject& object_of(const QpObject& qp) { return object(qp.context); }

struct World {
  std::atomic<bool> forked = false, ended = false;
  std::mutex mutex;
  std::shared_ptr<Host> host;  // this process; null before the first device was opened
  std::map<std::uint32_t, std::shared_ptr<Host>> others;  // by number
  std::vector<std::unique_ptr<DeviceObject>> devices;
  std::vector<ContextObject*> contexts;  // that are open
  std::array<std::atomic<QpObject*>, kQps> qps{};
  std::array<std::atomic<CqObject*>, kCqs> cqs{};
  Arena arena;
  std::uint64_t registered = 0;  // bytes
  std::uint32_t last_mr = 0, last_pd = 0, last_serial = 0, last_qp = 0;
};
/// Returns the World, which is never destroyed.
World& world();
/// Whether calls fail: this is a forked child, or the process ends.
bool gone();
/// Returns this process's number, 0 before the first device is open.
Segment& own_segment();

// ---- addresses (device.cpp)
IbvGid gid_of(const Address& address);
/// Returns false if it is no GID of these hosts.
bool parse_gid(const IbvGid& gid, Address& address);
/// Returns an entry of a device's table: its address and type. False: it is not in use.
bool gid_entry(const ContextObject& context, int index, Address& address, std::uint32_t& type);
/// Finds the host with that number, this one too. Null: there is none.
std::shared_ptr<Host> find_host(std::uint32_t number);

// ---- queues.cpp
/// Adds a completion and, where it was asked for, an event. False: the queue could not be locked;
/// try again. A queue without room errs.
bool add_completion(Host& host, std::uint32_t cq, const Completion& completion, bool solicited);
/// Makes completions of the queue pair invisible to polls.
void purge(CqObject& cq, std::uint32_t qp_num);
void add_event(Host& host, std::uint32_t context, IbvEventType type, std::uint32_t subject);
/// Waits until the queue pair's events are acknowledged. Returns 0 or EBUSY.
int await_events(QpObject& qp);
int poll_cq(IbvCq* cq, int count, IbvWc* into);
int req_notify_cq(IbvCq* cq, int solicited_only);

// ---- queue_pair.cpp
/// Returns the pad of the thread that copies by the queue pair from the other side; null if there
/// is none. Call under Turns.
Pad* peers_pad(const QpObject& qp);
/// Moves a queue pair to the error state and flushes its receives. Call under its landing lock.
/// False: a completion queue could not be locked; try again.
bool move_to_error(Host& host, QpShared& qp);
/// A device goes away: its calls answer EIO, its queue pairs err, its contexts have an event.
void lose_device(std::uint32_t index);

// ---- late_memory.cpp
/// Makes a new registration show late what is written to it, if it can. Call under World.
bool make_late(MrShared& mr);
/// Shows all and ends that. Call under World.
void end_late(MrShared& mr);
/// Tells of a piece that landed in the shadow. False: try again.
bool add_late(Host& host, MrShared& mr, std::uint64_t begin, std::uint64_t bytes);
/// Shows all that has landed in memory of the host.
void show_late(Host& host);

// ---- post.cpp
int post_send(IbvQp* qp, IbvSendWr* chain, IbvSendWr** bad);
int post_recv(IbvQp* qp, IbvRecvWr* chain, IbvRecvWr** bad);

// ---- worker.cpp, landing.cpp
void run(ContextObject& context);
enum class Outcome { landed, again, unreachable, no_receive, failed };
/// Lands the next piece of a request, or its end: the receive that it takes. `status` says why it
/// failed. The caller is the thread of the device.
Outcome land(QpObject& qp, std::uint64_t index, IbvWcStatus& status);

}  // namespace linkspan::transport::verbs::fake
