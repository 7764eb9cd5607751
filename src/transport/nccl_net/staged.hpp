// transport/nccl_net/staged.hpp - messages between memory of a GPU and a comm that takes host
// memory only: they go through pinned slots.
//
// A slot has messages of one order that follow each other. Of a send the GPU gathers them in it
// before the first is sent; of a receive they are received into it, and when the last has come the
// GPU scatters them. While all slots are taken no message is begun: so the peer waits, and a peer
// that sends nothing holds the slots of its own flow.
// Threads: the flow's.
// Invariants: a slot is registered with the comm from its first use to deregister(); it is used
// again, and its order's memory given back, when neither the plugin nor the GPU has anything of it.
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

/// Where a message goes from, or to.
struct Place {
  void* data = nullptr;
  const Comm::Registration* memory = nullptr;
  std::uint64_t cookie = 0;  ///< Names its slot; 0: it is in none.
};

class Staged {
 public:
  struct Options {
    copy::StagingStreams* staging_streams = nullptr;  ///< Outlives it.
    std::size_t buffer_bytes = 0;                     ///< No message is larger.
    unsigned ctas = ~0U;                              ///< As copy::Order::ctas.
  };
  enum class Direction : std::uint8_t { from_gpu, to_gpu };

  /// `comm` and `device` outlive it, the comm until deregister().
  Staged(Comm& comm, const cuda::Device& device, const Options& options, Direction direction);
  Staged(const Staged&) = delete;
  Staged& operator=(const Staged&) = delete;
  ~Staged();  ///< Requires: is_quiet(), and the comm has ended.

  /// A slot for messages of `order`, from `first` on: so many. 0: none is free.
  Result<std::size_t> stage(const WorkRequest& work, std::size_t first);
  /// The first message in a slot that was not begun. None: the GPU is not done with the slot.
  std::optional<Place> next() const;
  /// What next() told was begun; `empty`: a message without bytes in its place.
  void begun(bool empty);
  /// A message is done that has `cookie`. `whole`: with all of its bytes; else nothing of its slot
  /// goes to the GPU.
  Status done(std::uint64_t cookie, bool whole);
  /// The slot of that cookie has not been given back.
  bool is_in_flight(std::uint64_t cookie) const;
  /// True: a GPU has done something. An error is a GPU's.
  Result<bool> poll();
  /// No GPU works for it; only poll() changes that.
  bool is_quiet() const;
  /// The comm is about to end.
  void deregister();

 private:
  using Buffer = copy::StagingBuffer;
  /// What is in the slot of that index.
  struct BufferState {
    std::unique_ptr<Comm::Registration> registration{};
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
  const Options options_;
  const Direction direction_;
  copy::Staging staging_;
  std::array<BufferState, copy::Staging::kBuffers> states_;
  std::deque<BufferState*> beginning_;  // those with messages that were not begun, in their order
  std::uint64_t last_cookie_ = 0;
  std::vector<copy::Staging::StagedRun> runs_;
};

}  // namespace linkspan::transport::nccl_net
