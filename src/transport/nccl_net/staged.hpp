// transport/nccl_net/staged.hpp - messages between GPU memory and a comm that takes host memory
// only, through pinned staging buffers.
//
// A buffer holds consecutive messages of one WorkRequest. Sends: the GPU gathers them before the
// first is sent. Receives: they are received into the buffer, and the GPU scatters them when the
// last has come. While all buffers are in use no message is begun, so the peer waits; a peer that
// sends nothing blocks only its own queue.
// Threads: its queue's thread.
// Invariants: a buffer is registered with the comm from its first use to deregister(). It is
// reused, and its request's memory released, when neither the plugin nor the GPU uses it.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "copy/staging.hpp"
#include "transport/nccl_net/comm.hpp"
#include "transport/wire_region.hpp"

namespace linkspan::transport::nccl_net {

struct WorkRequest;

/// Tells where a message is sent from or received into.
struct MessagePlace {
  void* data = nullptr;
  const Comm::CommRegistration* memory = nullptr;
  std::uint64_t cookie = 0;  ///< Names its buffer; 0: not staged.
};

class Staged {
 public:
  struct StagingOptions {
    copy::StagingStreams* staging_streams = nullptr;  ///< Outlives it.
    std::size_t buffer_bytes = 0;                     ///< No message is larger.
    unsigned ctas = ~0U;                              ///< As copy::Order::ctas.
  };
  enum class Direction : std::uint8_t { from_gpu, to_gpu };

  /// `device` outlives it, `comm` lives until deregister().
  Staged(Comm& comm, const cuda::Device& device, const StagingOptions& options,
         Direction direction);
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;
  ~Staged();  ///< Requires: is_quiet(), and the comm has ended.

  /// Acquires a buffer for messages of `work` from `first` on. Returns how many it takes; 0: no
  /// buffer is free.
  Result<std::size_t> stage(const WorkRequest& work, std::size_t first);
  /// Returns the next message to begin. None: the GPU still uses its buffer.
  std::optional<MessagePlace> next() const;
  /// Records that the message of next() was begun; `empty`: without its bytes.
  void begun(bool empty);
  /// Records a completed message of that buffer. Unless `whole`, nothing of the buffer goes to the
  /// GPU.
  Status done(std::uint64_t cookie, bool whole);
  /// Returns true until the buffer with that cookie was released.
  bool is_in_flight(std::uint64_t cookie) const;
  /// Polls the GPU. Returns true if it has completed something; an error is a GPU's.
  Result<bool> poll();
  /// No GPU works for it; only poll() changes that.
  bool is_quiet() const;
  /// Ends the registrations. Called before the comm ends.
  void deregister();

 private:
  using Buffer = copy::StagingBuffer;
  /// Describes what the buffer of that index contains.
  struct BufferState {
    std::unique_ptr<Comm::CommRegistration> registration{};
    Buffer* buffer = nullptr;  // null: nothing
    RegionUse use{};
    std::uint64_t cookie = 0;
    std::size_t begun = 0, done = 0, messages = 0;
    bool whole = true, in_gpu = false;
  };
  Status submit(BufferState& state);
  void release(BufferState& state);

  Comm& comm_;
  const cuda::Device& device_;
  const StagingOptions options_;
  const Direction direction_;
  copy::Staging staging_;
  std::array<BufferState, copy::Staging::kBuffers> states_;
  std::deque<BufferState*> beginning_;  // buffers with messages not begun yet, in order
  std::uint64_t last_cookie_ = 0;
  std::vector<copy::Staging::StagedRun> runs_;
};

}  // namespace linkspan::transport::nccl_net
