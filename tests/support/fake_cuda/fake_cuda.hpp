// tests/support/fake_cuda/fake_cuda.hpp - the parts of a CUDA driver without a GPU.
//
// A shared object that exports cuGetProcAddress_v2 only; LINKSPAN_CUDA_LIBRARY puts it in the place
// of libcuda.so.1. Device memory is memfds, so handles really cross processes and outlive their
// exporter; a stream is a thread with a queue; a kernel is a host function of the same name. It
// proves logic: never speed, never memory order, and a fact about the real driver only if
// tests/driver_facts has shown it on both.
// It is hostile: copies land in pieces in any order and sometimes begin late, a CPU that touches
// device memory faults, new memory is poisoned.
//
// Environment: FAKE_CUDA_DEVICES is the number of GPUs of the machine (2), CUDA_VISIBLE_DEVICES
// lists those that the process sees, by index. With FAKE_CUDA_PEER=0 no GPU reaches another, with
// FAKE_CUDA_PEER=pcie without atomics; with FAKE_CUDA_IPC=0 this process neither exports nor opens
// handles, with FAKE_CUDA_DMABUF=0 it exports no DMA-BUFs. FAKE_CUDA_SEED (0) and the name of the
// build seed random choices. Controls for tests: controls.hpp. Threads: any thread for the driver's
// functions; all state is under the one mutex of World, which is free while bytes are copied.
// Invariants: a view stays mapped while a
// queued or running entry has its Allocation. Memory that is unmapped before the entry has ended
// loses the device. Once the process has begun to end every call answers 4; in a forked child it
// answers 3.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "bench/bare/graph_entries.hpp"
#include "cuda/driver_abi.hpp"
#include "tests/support/driver_entries.hpp"
#include "tests/support/memory_entries.hpp"

namespace linkspan::cuda::fake {

// Declares a function for each entry of the table, with the entry's own signature.
#define LINKSPAN_DECLARE(name, version, parameters) CUresult name parameters;
LINKSPAN_DRIVER_REQUIRED(LINKSPAN_DECLARE)
LINKSPAN_DRIVER_OPTIONAL(LINKSPAN_DECLARE)
LINKSPAN_GRAPH_ENTRIES(LINKSPAN_DECLARE)
LINKSPAN_MEMORY_ENTRIES(LINKSPAN_DECLARE)
#undef LINKSPAN_DECLARE
// Called by tests only. Counts what this process allocated and mapped as used, the rest as free.
CUresult cuMemGetInfo(std::size_t* free, std::size_t* total);

inline constexpr int kDriverVersion = 13000;
/// Entries, of which events and waits for them are none; the next submission blocks.
inline constexpr std::size_t kStreamDepth = 1021;
inline constexpr std::uint64_t kDeviceBytes = std::uint64_t{4} << 30;

struct Stream;

/// A visible GPU and its primary context, whose handle is the address of this.
struct Device {
  int ordinal, index;  // as the process counts them, as the machine does
  unsigned retained = 0;
  bool held = false;  // its streams start nothing (fakeCudaHold)
  bool lost = false;  // its context answers 700; queued entries are dropped
  std::uint64_t streams_made = 0;
  unsigned giving_back = 0;  // calls that wait for all its streams, and all submissions for them
  std::set<int> peers;
  Stream* default_stream = nullptr;  // what handles 0, 1 and 2 mean here
};

/// Identifies memory of another process; `pid` 0 means none.
struct Origin {
  std::int32_t pid = 0, fd = -1;
  std::uint64_t start_time = 0, inode = 0;
  friend bool operator==(const Origin&, const Origin&) = default;
};

/// Memory that cuMemCreate made, here or in another process; its memfd is its shareable handle.
struct Chunk {
  Chunk(int f, std::uint64_t size, int on, unsigned types)
      : fd(f), bytes(size), ordinal(on), handle_types(types) {}
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;
  ~Chunk();

  const int fd;
  const std::uint64_t bytes;
  const int ordinal;
  const unsigned handle_types;
};

/// Addresses that cuMemAddressReserve gave, and as many for the views of what is mapped there.
struct Reservation {
  Reservation(std::uint64_t at, std::uint64_t size, std::byte* v)
      : base(at), bytes(size), view(v) {}
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  ~Reservation();

  const std::uint64_t base, bytes;
  std::byte* const view;
};

/// By ordinal, the devices whose copies and kernels may touch chunks or the memory of a pool.
using Access = std::shared_ptr<std::set<int>>;

struct Pool {
  int ordinal;
  unsigned handle_types;
  Access access;
  bool imported;
};

/// A range of addresses that the driver knows.
struct Allocation {
  enum class Kind { device, imported, managed, pinned, registered, chunk, pool };
  Allocation(Kind k, int on, std::uint64_t at, std::uint64_t size, std::uint64_t id, std::byte* v)
      : kind(k), ordinal(on), base(at), bytes(size), buffer_id(id), view(v) {}
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  ~Allocation();  // unmaps the view
  bool on_host() const { return kind == Kind::pinned || kind == Kind::registered; }
  bool on_device() const { return !on_host() && kind != Kind::managed; }
  std::byte* see(std::uint64_t address) const { return view + (address - base); }

  const Kind kind;
  const int ordinal;
  const std::uint64_t base, bytes, buffer_id;
  std::byte* const view;  // where the driver reaches it: another mapping of device memory's memfd
  int fd = -1;            // of device memory
  Origin origin{};        // of imported memory
  unsigned opens = 0;     // of imported memory
  bool live = true;       // not yet freed
  Access access;          // of chunks and pools; null: any context's
  CUmemoryPool pool = nullptr;
  std::shared_ptr<Chunk> chunk;              // also of handles and of other mappings
  std::shared_ptr<Reservation> reservation;  // of a chunk: holds its view
};
using AllocationRef = std::shared_ptr<Allocation>;  // with the entries that read or write it

/// A point in a stream, for events. Shared by the entry that reaches it and the entries that wait
/// for it.
struct Mark {
  bool reached = false;
};

/// Work without a World lock; an error loses the device's context.
struct Entry {
  std::shared_ptr<Mark> after;  // may start when this is reached
  std::function<CUresult()> work;
  std::shared_ptr<Mark> mark;
  /// The entry may start when this returns true. Any process may write the word, so the stream's
  /// thread polls. Called under the lock.
  std::function<bool()> until = {};
  bool counts() const { return work || until; }  // for the depth
};

struct Graph;

/// A graph in the making: the entries of its streams, which do not run.
struct Capture {
  const Stream* origin;
  CUstreamCaptureMode mode;
  std::thread::id thread;  // that began it
  bool valid = true;
  std::vector<Entry> entries;
  std::shared_ptr<Graph> graph;  // gets the entries at the end; has user objects before
};

struct Stream {
  explicit Stream(Device& d) : device(d) {}
  bool ready() const {
    if (entries.empty()) return false;
    const Entry& next = entries[0];
    return device.lost ||
           (!device.held && (!next.after || next.after->reached) && (!next.until || next.until()));
  }

  Device& device;
  std::uint64_t serial = 0;                   // of all that were made; another may get the handle
  std::deque<Entry> entries;                  // the first may be running
  std::size_t depth = 0;                      // of them, those that count
  std::uint64_t submitted = 0, finished = 0;  // entries, ever
  std::shared_ptr<Capture> capture;           // null: entries run
  bool pulled_in = false;                     // into it, by an event that the origin has to await
  bool running = false;
  bool closing = false, exited = false;  // destroyed by the user, left by its thread
  std::condition_variable wake;          // its thread's
  std::thread thread;
};

struct Event {
  Device& device;
  std::shared_ptr<Mark> mark;        // the last record's; null before the first
  std::shared_ptr<Capture> capture;  // where the last record was kept; null: it runs
  const Stream* recorded = nullptr;  // on this
};

using Lock = std::unique_lock<std::mutex>;

struct World {
  std::atomic<bool> initialised = false;
  std::atomic<bool> ended = false;   // the process is ending: streams stop after their entry
  std::atomic<bool> forked = false;  // this is a child: there are no threads here

  std::mutex mutex;
  std::condition_variable changed;               // any stream moved, or a hold, a loss or the end
  std::vector<std::unique_ptr<Device>> devices;  // by ordinal; constant after cuInit
  std::map<std::uint64_t, AllocationRef> allocations;                  // by base
  std::map<std::uint64_t, std::shared_ptr<Reservation>> reservations;  // by base
  struct ChunkHandle {
    std::shared_ptr<Chunk> chunk;
    unsigned count;
  };
  std::map<CUmemGenericAllocationHandle, ChunkHandle> chunks;
  CUmemGenericAllocationHandle last_chunk = 0;
  std::map<CUmemoryPool, std::unique_ptr<Pool>> pools;
  std::map<CUstream, std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Stream>> retired;  // destroyed; their threads finish what is queued
  std::map<CUevent, std::unique_ptr<Event>> events;
  std::uint64_t last_buffer_id = 0, last_stream = 0;

  void wake_all();
  /// Waits for `changed` until the condition is true. Says on stderr what stands still if that
  /// takes long, because a test that waits with it shows no more than a time-out.
  void await(Lock& lock, const std::function<bool()>& condition);
};
/// Returns the World, which is never destroyed, because threads may call the driver until the very
/// end.
World& world();
/// Returns the calling thread's device; null if there is none.
Device* current_device();
CUstreamCaptureMode capture_mode();  // the calling thread's
/// Returns the result of an entry that must not be called during a capture, and invalidates such
/// captures.
CUresult refuse_beside_captures();

/// The entrance of a function that works in a context, and the lock it runs under.
struct Call {
  /// In the current one. error: 201 without it, 709 when it was released, 700 when it is lost.
  Call();
  /// Enters the stream's context, whichever is current, like the real driver. error: also 400
  /// without a stream.
  explicit Call(CUstream handle);

  Lock lock;
  CUresult error = CUDA_SUCCESS;
  Device* device = nullptr;
  Stream* stream = nullptr;  // set by the second only, and never after an error

 private:
  void enter(Device* device);
};

/// Bytes that the driver may touch. `owner` is null for pageable host memory.
struct Range {
  AllocationRef owner;
  std::byte* view;
  std::vector<AllocationRef> more = {};  // the chunks after the first, whose views follow its view

  template <class Test>
  bool all(Test test) const {  // of what owns it, if anything does
    bool yes = owner == nullptr || test(*owner);
    for (const AllocationRef& each : more) yes = yes && test(*each);
    return yes;
  }
};

// Returns the range; nothing if it leaves its allocation, or lies among device addresses and in no
// allocation. Called under the lock.
/// Null: it leaves its allocation, or lies among device addresses and in no allocation.
std::optional<Range> range(std::uint64_t address, std::uint64_t bytes);
/// Copies of the device may touch it.
bool accessible(const Device& device, const Range& range);
/// Returns the range if a kernel of `device` may access it, which excludes pageable memory.
std::optional<Range> kernel_range(const Device& device, std::uint64_t address, std::uint64_t bytes);
Allocation* find_allocation(std::uint64_t address);
/// Gives a memfd an address among the device's. Null: no memory.
Allocation* map_device(Allocation::Kind kind, int ordinal, int fd, std::uint64_t bytes);
/// Reserves `bytes` in the half of the device's addresses that is for reservations.
std::shared_ptr<Reservation> reserve(std::uint64_t bytes);
/// Maps a chunk into a reservation. Null: no memory.
Allocation* map_chunk(const std::shared_ptr<Reservation>& in, std::uint64_t at,
                      const std::shared_ptr<Chunk>& chunk, std::uint64_t bytes);
/// Returns a memfd of `bytes`; -1 if there is no memory.
int new_memfd(const char* name, std::uint64_t bytes);
/// Returns false with FAKE_CUDA_DMABUF=0.
bool exports_dma_buf();
/// Returns a descriptor of the memory of a range of one allocation, as a device of another vendor
/// gets it; its file position is where the range begins. A negative number is no descriptor.
int open_memory(std::uint64_t address, std::uint64_t bytes);
/// Returns the 64 bytes by which another process finds the memfd of device memory; zeros if it has
/// none.
CUipcMemHandle describe_memfd(const Allocation& allocation);
/// Returns the memfd and its size; -1 if it is gone, or the bytes are not valid.
int open_described(const CUipcMemHandle& bytes, std::uint64_t& size);

/// Returns false if the range was freed or unmapped meanwhile. Called without the lock.
bool live(const Range& range);
/// Removes the allocation from all look-ups; the view ends with the last entry that uses it.
void forget(Allocation& allocation);

/// Blocks while the stream is full. The entry is dropped if the device is lost meanwhile.
CUresult submit(Call& call, Entry entry);
/// Waits until what is in the stream now has run.
CUresult drain(Lock& lock, Stream& stream);
/// Waits until all streams of the device are idle, or it is lost.
CUresult drain(Lock& lock, const Device& device);
/// Does the same for a call that frees memory; meanwhile no thread submits to the device.
CUresult drain_and_hold_up(Lock& lock, Device& device);
/// Ends the stream's thread after what is queued.
void retire(std::unique_ptr<Stream> stream);

/// Joins all streams' threads; what is queued does not run. At exit.
void end_streams();
/// Joins the thread that calls destructors of user objects, likewise.
void end_user_objects();

}  // namespace linkspan::cuda::fake
