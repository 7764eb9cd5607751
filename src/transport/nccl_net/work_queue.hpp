// transport/nccl_net/work_queue.hpp - messages in one direction between the memories of two
// processes: a send queue or a receive queue, in RDMA's sense, over one comm of the plugin.
//
// On the path of a byte: the Endpoint adds WorkRequests under its peer's mutex; the transport's
// thread (plugin_thread.hpp) executes them in order. The n-th send fills the n-th receive, so a
// sender that has nothing to send, or may not, sends empty messages. Breaking a queue ends all of
// its requests.
// Threads: add(), end(), broken(), set_handle(), handle() any thread; poll(), release() and idle()
// the transport's.
// Invariants: a WorkRequest ends once, when this side no longer touches its memory for it.
// Registrations end before the comm. A broken queue has no comm and no requests.
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

/// Holds the messages of one batch, in order.
struct WorkRequest {
  struct MessageBuffer {
    std::uint64_t address = 0, bytes = 0;
  };
  WorkRequest(std::shared_ptr<WireRegion> of, std::vector<MessageBuffer> all)
      : memory(std::move(of)), messages(std::move(all)) {}

  const std::shared_ptr<WireRegion>
      memory;  ///< Shared with the batch. Null: all messages are sent empty.
  const std::vector<MessageBuffer> messages;
  std::atomic<bool> send_empty{false};  ///< Sends: messages not begun yet are sent empty.
  std::atomic<bool> ended{false};
  Status status{};  ///< Valid once it has ended. canceled: some messages were sent empty.
  std::atomic<std::uint64_t> moved{0};  ///< Bytes of completed messages.

  // Used by the transport's thread alone.
  std::size_t begun = 0, arrived = 0, done = 0;
  std::size_t staged = 0;  // messages before this are, or were, in staging buffers
};

/// Describes a queue; set when it is made.
struct QueueAttributes {
  std::shared_ptr<Plugin> plugin;        ///< Shared with the transport and other queues.
  const cuda::Device* device = nullptr;  ///< GPU of the memory. Null: host memory.
  int nic = 0;                           ///< The plugin's device.
  base::Deadline connect_by;
  Staged::StagingOptions staging;  ///< For a `nic` that does not take GPU memory.
  // For one that receives into a bounce pool:
  cuda::Topology* topology = nullptr;
  std::optional<Unpack> unpack{};  ///< None: by a kernel, or by copies where kernels do not load.
};

class WorkQueue {
 public:
  explicit WorkQueue(QueueAttributes attributes) : attributes_(std::move(attributes)) {}
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;
  virtual ~WorkQueue() = default;  ///< Requires: broken.

  // The caller then wakes the thread.
  /// Appends a request; ends it at once if the queue is broken.
  void add(std::shared_ptr<WorkRequest> work) LINKSPAN_EXCLUDES(mutex_);
  /// Breaks the queue with `why`, unless it is broken.
  void end(const Status& why) LINKSPAN_EXCLUDES(mutex_);
  /// Sets the handle of the listener: the peer's for a send queue, else this side's. Called once.
  void set_handle(const Handle& handle) LINKSPAN_EXCLUDES(mutex_);

  /// Returns that handle; none while nothing listens.
  std::optional<Handle> handle() const LINKSPAN_EXCLUDES(mutex_);

  /// Returns the number of completed messages.
  std::uint64_t moved() const noexcept { return moved_.load(std::memory_order_relaxed); }
  /// Returns why it was broken; none while it works.
  std::optional<Status> broken() const LINKSPAN_EXCLUDES(mutex_);

  /// Advances the queue. Returns true if something has moved.
  bool poll() LINKSPAN_EXCLUDES(mutex_);
  /// Ends registrations of regions that were retracted.
  void release();
  /// Returns true if it has nothing to do until add() or end().
  bool idle() const { return ready() && requests_.empty() && good(); }

  const cuda::Device* device() const noexcept { return attributes_.device; }

 protected:
  static constexpr int kTag = 0;

  static void* pointer(std::uint64_t address) noexcept;
  static Status late(
      const char* whom);  ///< Returns the error of a connection that was not made in time.
  void fail(const Status& why) {
    if (failed_.ok()) failed_ = why;
  }
  bool good() const noexcept { return failed_.ok(); }
  virtual bool ready() const = 0;     ///< It has its comm.
  virtual bool step() = 0;            ///< Executes poll() of a queue that works.
  virtual bool may_close();           ///< No GPU works for it any more.
  virtual void close() = 0;           ///< Closes its comm.
  virtual Comm* comm() noexcept = 0;  ///< Null before it is connected.

  /// Returns the registration of this memory. Null: fail() was called.
  const Comm::CommRegistration* registration(const std::shared_ptr<WireRegion>& used);
  /// Sets staging up if the comm does not take GPU memory. Called once there is a comm.
  void stage_if_needed(Staged::Direction direction);
  bool poll_gpu();
  /// Acquires a staging buffer for the next messages. False: none is free, or fail() was called.
  bool stage_next(WorkRequest& work);
  /// Records a completed message of the oldest request with its bytes.
  void count(WorkRequest& work, std::uint64_t bytes) noexcept {
    work.moved.fetch_add(bytes, std::memory_order_relaxed);
    moved_.fetch_add(1, std::memory_order_relaxed);
  }
  /// Ends the oldest request.
  void pop_order();

  const QueueAttributes attributes_;
  std::unique_ptr<Staged> staged_;                     // null: the comm takes the memory itself
  std::deque<std::shared_ptr<WorkRequest>> requests_;  // shared with the Endpoint
  std::size_t next_ = 0;                               // requests before this have begun

 private:
  bool accept_requests() LINKSPAN_EXCLUDES(mutex_);
  void enter(std::optional<cuda::DeviceScope>& scope);
  bool shut_down() LINKSPAN_EXCLUDES(mutex_);

  mutable base::Mutex mutex_;  // for what the thread and the Endpoint share
  std::vector<std::shared_ptr<WorkRequest>> posted_ LINKSPAN_GUARDED_BY(mutex_);
  Status ending_ LINKSPAN_GUARDED_BY(mutex_);
  std::optional<Status> broken_ LINKSPAN_GUARDED_BY(mutex_);
  std::optional<Handle> handle_ LINKSPAN_GUARDED_BY(mutex_);

  std::atomic<std::uint64_t> moved_{0};
  Status failed_;
  struct KeptRegistration {
    std::shared_ptr<WireRegion> memory;  // shared with the transport
    std::unique_ptr<Comm::CommRegistration> registration;
  };
  std::map<const WireRegion*, KeptRegistration> registrations_;
};

/// Sends to a peer that has opened the queue.
class SendQueue final : public WorkQueue {
 public:
  using WorkQueue::WorkQueue;

 private:
  bool ready() const override { return comm_ != nullptr; }
  bool step() override;
  void close() override;
  Comm* comm() noexcept override { return comm_.get(); }
  bool connect();
  bool fill();
  std::optional<MessagePlace> next_place(const WorkRequest& work, bool empty);
  bool begin();
  bool check_completions();

  std::unique_ptr<PendingConnect> pending_connect_;
  std::unique_ptr<SendComm> comm_;
  std::size_t filling_ = 0;  // requests before this have been staged as far as needed
  std::array<std::byte, 64> nothing_{};
  std::unique_ptr<Comm::CommRegistration> of_nothing_;
};

/// Receives; this side opens it and the peer connects.
class ReceiveQueue final : public WorkQueue {
 public:
  using WorkQueue::WorkQueue;

 private:
  /// Describes a completed receive, of the oldest request that still misses some.
  struct ReceiveCompletion {
    Done done;
    WorkRequest::MessageBuffer message;
    std::size_t number = 0;                  // index among the comm's receives
    tcpx::Unpacker::UnpackId unpack_id = 0;  // the unpack that contains it; 0: none
    bool flushing = false, in_place = false;
    void* flush = nullptr;  // the plugin's request
  };

  bool ready() const override { return comm_ != nullptr; }
  bool step() override;
  bool may_close() override;
  void close() override;
  Comm* comm() noexcept override { return comm_.get(); }
  bool accept();
  Status make_unpacker();
  bool flushes() const noexcept;
  bool flushes_first() const;
  std::optional<MessagePlace> next_place(WorkRequest& work);
  bool begin();
  bool check_completions();
  bool complete_arrivals();
  bool is_in_place(ReceiveCompletion& arrival);
  void unpack();
  void poll_unpacks();

  std::unique_ptr<Listener> listener_;
  std::unique_ptr<ReceiveComm> comm_;
  std::size_t arriving_ = 0;  // requests before this have arrived
  std::size_t received_ = 0;  // number of the comm's receives
  std::deque<ReceiveCompletion> arrivals_;
  tcpx::Pool pool_;
  std::unique_ptr<tcpx::Unpacker> unpacker_;       // null: nothing is to be unpacked
  std::vector<tcpx::Unpacker::UnpackId> unpacks_;  // in flight
};

}  // namespace linkspan::transport::nccl_net
