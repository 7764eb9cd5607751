// transport/nccl_net/work_queue.hpp - messages one way between the memories of two processes: one
// comm of the plugin's, made and driven by the transport's thread.
//
// The Endpoint orders, under the scheduler's lock; the thread turns. Orders run one behind the
// other, and what the n-th receive takes the n-th send brings: so a sender that has nothing to
// bring, or may not, sends its messages empty. Who breaks a flow ends all of its orders.
// Threads: add(), end(), broken(), handle() any thread; turn(), release() and idle() the
// transport's.
// Invariants: a WorkRequest ends once, when nothing of this side touches its memory for it any
// more; the memory's registrations end before the comm; a broken flow has no comm and no orders.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "base/options.hpp"
#include "cuda/topology.hpp"
#include "transport/nccl_net/staged.hpp"
#include "transport/nccl_net/tcpx/pool.hpp"
#include "transport/nccl_net/tcpx/unpack.hpp"
#include "transport/wire_region.hpp"

namespace linkspan::transport::nccl_net {

/// Messages of one batch, one behind the other.
struct WorkRequest {
  struct Message {
    std::uint64_t address = 0, bytes = 0;
  };
  WorkRequest(std::shared_ptr<WireRegion> of, std::vector<Message> all)
      : memory(std::move(of)), messages(std::move(all)) {}

  const std::shared_ptr<WireRegion> memory;  ///< Also the batch's. Null: a send of empty messages.
  const std::vector<Message> messages;
  std::atomic<bool> send_empty{false};  ///< Of a send: what was not begun yet goes empty.
  std::atomic<bool> ended{false};
  Status status{};  ///< Once it has ended. canceled: the sender has sent some of them empty.
  std::atomic<std::uint64_t> moved{0};  ///< Bytes of the messages that are done.

  // The thread's.
  std::size_t begun = 0, arrived = 0, done = 0;
  std::size_t staged = 0;  // those before are, or were, in slots
};

class WorkQueue {
 public:
  /// `device`: the GPU whose memory it carries; null: host memory. `nic`: the plugin's device.
  /// `staging`: for a GPU whose memory that does not take.
  WorkQueue(std::shared_ptr<Plugin> plugin, const cuda::Device* device, int nic,
            base::Deadline connect_by, const Staged::Options& staging)
      : plugin_(std::move(plugin)),
        device_(device),
        nic_(nic),
        connect_by_(connect_by),
        staging_(staging) {}
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;
  virtual ~WorkQueue() = default;  ///< Broken.

  // Whoever calls these wakes the thread.
  /// Behind those before. To a flow that is broken: it ends.
  void add(std::shared_ptr<WorkRequest> work) LINKSPAN_EXCLUDES(mutex_);
  /// Breaks it, unless it is broken.
  void end(const Status& why) LINKSPAN_EXCLUDES(mutex_);

  /// Counts its messages that are done.
  std::uint64_t moved() const noexcept { return moved_.load(std::memory_order_relaxed); }
  /// Why it carries nothing any more.
  std::optional<Status> broken() const LINKSPAN_EXCLUDES(mutex_);

  /// True: something has moved.
  bool poll() LINKSPAN_EXCLUDES(mutex_);
  /// Registrations of regions that were retracted.
  void release();
  /// Until something is added or it is ended.
  bool idle() const { return ready() && requests_.empty() && good(); }

  const cuda::Device* device() const noexcept { return device_; }

 protected:
  static constexpr int kTag = 0;

  static void* pointer(std::uint64_t address) noexcept;
  static Status late(const char* whom);  ///< Whose connection was not made.
  void fail(const Status& why) {
    if (failed_.ok()) failed_ = why;
  }
  bool good() const noexcept { return failed_.ok(); }
  virtual bool ready() const = 0;     ///< Has its comm.
  virtual bool step() = 0;            ///< What turn() does of a good one.
  virtual bool may_close();           ///< No GPU works for it any more.
  virtual void close() = 0;           ///< Its comm.
  virtual Comm* comm() noexcept = 0;  ///< Null: none yet.

  /// Where messages of this memory go from or to. Null: fail() was called.
  const Comm::Registration* registration(const std::shared_ptr<WireRegion>& used);
  /// Once it has its comm.
  void stage_if_needed(Staged::Direction direction);
  bool poll_gpu();
  /// A slot for what comes next of the order. False: not now, or fail() was called.
  bool stage_next(WorkRequest& work);
  /// A message of that order, which is the oldest, is done and has brought so many bytes.
  void count(WorkRequest& work, std::uint64_t bytes) noexcept {
    work.moved.fetch_add(bytes, std::memory_order_relaxed);
    moved_.fetch_add(1, std::memory_order_relaxed);
  }
  /// The oldest order is done.
  void pop_order();

  const std::shared_ptr<Plugin> plugin_;  // also the transport's and other flows'
  const cuda::Device* const device_;
  const int nic_;
  const base::Deadline connect_by_;
  const Staged::Options staging_;
  std::unique_ptr<Staged> staged_;                     // null: the comm takes the memory itself
  std::deque<std::shared_ptr<WorkRequest>> requests_;  // also the Endpoint's
  std::size_t next_ = 0;                               // of them: those before have begun
  mutable base::Mutex mutex_;                          // of what the thread and the Endpoint share

 private:
  bool accept_requests() LINKSPAN_EXCLUDES(mutex_);
  void enter(std::optional<cuda::DeviceScope>& scope);
  bool shut_down() LINKSPAN_EXCLUDES(mutex_);

  std::vector<std::shared_ptr<WorkRequest>> posted_ LINKSPAN_GUARDED_BY(mutex_);
  Status ending_ LINKSPAN_GUARDED_BY(mutex_);
  std::optional<Status> broken_ LINKSPAN_GUARDED_BY(mutex_);

  std::atomic<std::uint64_t> moved_{0};
  Status failed_;
  struct KeptRegistration {
    std::shared_ptr<WireRegion> memory;  // also the transport's
    std::unique_ptr<Comm::Registration> registration;
  };
  std::map<const WireRegion*, KeptRegistration> registrations_;
};

/// To a peer that has opened the flow.
class SendQueue final : public WorkQueue {
 public:
  using WorkQueue::WorkQueue;
  /// Of the peer's listener; once.
  void set_handle(const Handle& handle) LINKSPAN_EXCLUDES(mutex_);

 private:
  bool ready() const override { return comm_ != nullptr; }
  bool step() override;
  void close() override;
  Comm* comm() noexcept override { return comm_.get(); }
  bool connect() LINKSPAN_EXCLUDES(mutex_);
  bool fill();
  std::optional<Place> next_place(const WorkRequest& work, bool empty);
  bool begin();
  bool check_completions();

  std::optional<Handle> handle_ LINKSPAN_GUARDED_BY(mutex_);
  std::unique_ptr<PendingConnect> pending_connect_;
  std::unique_ptr<SendComm> comm_;
  std::size_t filling_ = 0;  // of the orders: of those before all that has to be is in slots
  std::array<std::byte, 64> nothing_{};
  std::unique_ptr<Comm::Registration> of_nothing_;
};

/// Opened by this side.
class ReceiveQueue final : public WorkQueue {
 public:
  /// `unpack`: none: by a kernel, else by copies.
  struct Unpacking {
    const cuda::Topology* topology = nullptr;
    std::optional<base::Unpack> method{};
    std::optional<unsigned> ctas{};
  };
  ReceiveQueue(std::shared_ptr<Plugin> plugin, const cuda::Device* device, int nic,
               base::Deadline connect_by, const Staged::Options& staging,
               const Unpacking& unpacking)
      : WorkQueue(std::move(plugin), device, nic, connect_by, staging), unpacking_(unpacking) {}

  /// Once it listens.
  std::optional<Handle> handle() const LINKSPAN_EXCLUDES(mutex_);

 private:
  /// A receive that is done, of the oldest order that has not all of them.
  struct ReceiveCompletion {
    Done done;
    WorkRequest::Message message;
    std::size_t number = 0;                  // of the comm's receives
    tcpx::Unpacker::UnpackId unpack_id = 0;  // of the unpack that it is in
    bool flushing = false, in_place = false;
    void* flush = nullptr;  // the plugin's request
  };

  bool ready() const override { return comm_ != nullptr; }
  bool step() override;
  bool may_close() override;
  void close() override;
  Comm* comm() noexcept override { return comm_.get(); }
  bool accept() LINKSPAN_EXCLUDES(mutex_);
  Status make_unpacker();
  bool flushes() const noexcept;
  bool flushes_first() const;
  std::optional<Place> next_place(WorkRequest& work);
  bool begin();
  bool check_completions();
  bool complete_arrivals();
  bool is_in_place(ReceiveCompletion& arrival);
  void unpack();
  void poll_unpacks();

  const Unpacking unpacking_;
  std::optional<Handle> handle_ LINKSPAN_GUARDED_BY(mutex_);
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<ReceiveComm> comm_;
  std::size_t arriving_ = 0;  // of the orders: those before have arrived
  std::size_t received_ = 0;  // of the comm
  std::deque<ReceiveCompletion> arrivals_;
  tcpx::Pool pool_;
  std::unique_ptr<tcpx::Unpacker> unpacker_;       // null: nothing is to be unpacked
  std::vector<tcpx::Unpacker::UnpackId> unpacks_;  // in flight
};

}  // namespace linkspan::transport::nccl_net
