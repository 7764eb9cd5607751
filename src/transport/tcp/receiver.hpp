// transport/tcp/receiver.hpp - the half of a stream that receives: frames in, bytes to their place.
//
// Data for host memory is received into it. Data for a GPU is received into staging slots, part by
// part; while all are with the GPU nothing is received, which the sender comes to feel.
// Threads: its stream's thread.
#pragma once

#include <sys/uio.h>

#include <array>
#include <optional>
#include <vector>

#include "copy/staging.hpp"
#include "transport/tcp/wire.hpp"

namespace linkspan::transport::tcp {

class Receiver {
 public:
  /// `socket` is a loan; `wire` and `lanes` outlive it. Frames have to be of `peer`.
  Receiver(Wire& wire, int socket, std::uint64_t peer, copy::StagingLanes& lanes, unsigned ctas)
      : wire_(wire), socket_(socket), peer_(peer), ctas_(ctas), staging_(kMostChunk, lanes) {}
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;
  ~Receiver() = default;  ///< Requires: stop() is true, or no GPU was asked.

  /// True: something has moved. `answers`: frames to be said. disconnected: the peer has closed it.
  /// corrupt: no more can be understood.
  Result<bool> turn(bool& readable, std::vector<Head>& answers);
  /// A GPU copies for it.
  bool watches() const noexcept { return in_gpu_ != 0; }
  /// Receives nothing more. True: no GPU copies for it.
  bool stop();

 private:
  /// Parts of a frame, in a slot.
  struct InSlot {
    std::shared_ptr<Incoming> of;  // also the wire's
    std::uint64_t bytes = 0;
  };

  bool look_at_gpu(std::vector<Head>& answers);
  Result<bool> begin_frame(std::vector<Head>& answers);
  bool begin_part();
  Result<std::size_t> receive(bool& readable);
  void end_part(std::vector<Head>& answers);
  void tell(Incoming& batch, std::uint64_t bytes, const Status& status, std::vector<Head>& answers);

  Wire& wire_;
  const int socket_;
  const std::uint64_t peer_;
  const unsigned ctas_;
  copy::Staging staging_;
  std::array<InSlot, copy::Staging::kSlots> in_slots_;
  unsigned in_gpu_ = 0;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(2 * kMostHead);
  std::size_t begin_ = 0, end_ = 0;  // of what it holds

  // The frame whose data comes.
  std::optional<Landing> landing_;
  std::size_t piece_ = 0;  // the next that is in no part
  std::uint64_t left_ = 0;
  // Its part that comes: all of it, or pieces that a slot takes.
  std::vector<iovec> parts_;
  std::size_t part_ = 0;
  std::uint64_t part_bytes_ = 0;
  copy::Staging::Slot* slot_ = nullptr;
  Status status_;  // of slots that are not to be had
  std::vector<copy::Staging::Run> runs_;
  std::vector<iovec> into_;  // of one call
  std::vector<std::byte> scrap_;
};

}  // namespace linkspan::transport::tcp
