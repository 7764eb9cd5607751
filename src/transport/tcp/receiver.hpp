// transport/tcp/receiver.hpp - the half of a connection that receives: frames in, bytes to their
// place.
//
// Data for host memory is received into it, but for aligned words of 8 bytes, each a piece of its
// own: who polls one, for a signal, sees it old or new and never in part. Data for a GPU is
// received into staging slots, part by part; while all are with the GPU nothing is received, which
// the sender comes to feel. Of a frame that is to be sealed nothing goes anywhere before all of it
// is here and is what its seal says; TLS keeps to that for each of its records. The sum of a frame
// that has one is looked at once all of it is here, where it has landed, before its words are
// stored and its last slot goes to the GPU. Host memory is written and read by calls that answer
// EFAULT: its owner may have freed it, and the rest of the frame is then thrown away.
// Threads: its connection's thread.
#pragma once

#include <sys/uio.h>

#include <array>
#include <optional>
#include <vector>

#include "base/frame_authenticator.hpp"
#include "base/tls.hpp"
#include "copy/staging.hpp"
#include "transport/tcp/connection_group.hpp"

namespace linkspan::transport::tcp {

class Receiver {
 public:
  /// `socket` and `tls`, which may be null, are loans; `wire` and `lanes` outlive it. Frames have
  /// to be of `peer`.
  Receiver(ConnectionGroup& group, int socket, base::TlsEnd* tls, std::uint64_t peer,
           copy::StagingStreams& staging_streams, unsigned ctas)
      : group_(group),
        socket_(socket),
        tls_(tls),
        peer_(peer),
        ctas_(ctas),
        staging_(kMaxChunk, staging_streams) {}
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;
  ~Receiver() = default;  ///< Requires: stop() is true, or no GPU was asked.

  /// Each frame has to be followed by its seal. Before the first one.
  void expect_seals(const base::MacKey& key) {
    verifier_.emplace(key);
    buffer_.resize(kMaxHead + kMaxChunk + base::kMacTagBytes);
  }

  /// True: something has moved. `answers`: frames to be said. disconnected: the peer has closed it.
  /// corrupt: no more can be understood.
  Result<bool> poll(bool& readable, std::vector<Answer>& answers);
  /// Lets go of memory that the peer may not write to any more: what is left of the frame that
  /// comes is thrown away. A GPU's copy that is under way ends first.
  void release_revoked();
  /// A GPU copies for it.
  bool needs_polling() const noexcept { return gpu_copies_ != 0; }
  /// Receives nothing more. True: no GPU copies for it.
  bool stop();

 private:
  /// Parts of a frame, in a slot.
  struct StagedPart {
    std::shared_ptr<Incoming> of;  // also the wire's
    RegionUse use{};
    std::uint64_t bytes = 0;
  };
  /// One that is stored when its frame has come.
  struct DeferredStore {
    explicit DeferredStore(std::uint64_t address) : here(address) {}
    std::uint64_t here;
    std::array<std::byte, 8> value{};
  };

  bool poll_gpu(std::vector<Answer>& answers);
  Result<bool> begin_frame(std::vector<Answer>& answers);
  Result<bool> check_seal(std::uint64_t frame);
  bool begin_part();
  void discard(std::uint64_t bytes);
  Result<std::size_t> receive(bool& readable);
  std::size_t land_buffered();
  void discard_rest(const Status& why);
  Status sum_part();
  Result<std::size_t> receive_some();
  void end_part(std::vector<Answer>& answers);
  void end_frame() noexcept;
  void report(Incoming& batch, std::uint64_t bytes, const Status& status,
              std::vector<Answer>& answers);

  ConnectionGroup& group_;
  const int socket_;
  base::TlsEnd* const tls_;
  const std::uint64_t peer_;
  const unsigned ctas_;
  copy::Staging staging_;
  std::array<StagedPart, copy::Staging::kBuffers> staged_parts_;
  unsigned gpu_copies_ = 0;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(2 * kMaxHead);
  std::size_t begin_ = 0, end_ = 0;  // of what it holds
  std::optional<base::FrameAuthenticator> verifier_;

  // The frame whose data comes.
  std::optional<FrameDestination> destination_;
  std::size_t extent_ = 0;  // the next that is in no part
  std::uint64_t left_ = 0;
  bool summed_ = false;
  std::uint32_t expected_sum_ = 0, sum_ = 0;  // of it; of what is here of it
  bool to_user_ = false;             // the part lands in memory that its owner may have freed
  std::vector<copy::Piece> copied_;  // by one call
  // Its part that comes: all of it, or pieces that a slot takes.
  std::vector<iovec> parts_;
  std::vector<DeferredStore> deferred_stores_;  // into which parts point
  std::size_t part_ = 0;
  std::uint64_t part_bytes_ = 0;
  copy::StagingBuffer* staging_buffer_ = nullptr;
  Status status_;  // of slots that are not to be had
  std::vector<copy::Staging::StagedRun> runs_;
  std::vector<iovec> into_;  // of one call
  std::vector<std::byte> scrap_;
};

}  // namespace linkspan::transport::tcp
