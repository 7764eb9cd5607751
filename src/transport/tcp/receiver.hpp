// transport/tcp/receiver.hpp - the receiving half of a data connection: parses frames and stores
// their data.
//
// On the path of a byte: reads the socket, asks the ConnectionGroup for the destination, stores the
// data. Host memory is received in place, except aligned ranges of 8 bytes: each is stored by one
// atomic store when its frame is complete, so a poller sees the old or the new value. Data for a
// GPU is received into staging buffers. While all of them are in use nothing is received, so TCP
// flow control slows the sender. A sealed frame is buffered whole and verified before any byte is
// written; TLS gives the same guarantee per record. A checksum is verified where the data has
// landed, before the atomic stores and before the last staging buffer goes to the GPU. Host memory
// is accessed by calls that answer EFAULT, because its owner may have freed it; the rest of the
// frame is then discarded.
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
  /// Borrows `socket` and `tls`, which may be null. `group` and `staging_streams` outlive it.
  /// Frames must be of `peer`.
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
  ~Receiver() = default;  ///< Requires: stop() returned true, or no GPU was used.

  /// Requires a seal after each frame from now on. Called before the first frame.
  void expect_seals(const base::MacKey& key) {
    verifier_.emplace(key);
    buffer_.resize(kMaxHead + kMaxChunk + base::kMacTagBytes);
  }

  /// Receives what it can. Returns true if something has moved; adds to `answers` the frames to
  /// send. disconnected: the peer has closed the socket. corrupt: the bytes cannot be parsed.
  Result<bool> poll(bool& readable, std::vector<Answer>& answers);
  /// Releases memory that the peer may no longer write: the rest of the current frame is discarded.
  /// A GPU copy under way finishes first.
  void release_revoked();
  /// Returns true while a GPU copies for it.
  bool needs_polling() const noexcept { return gpu_copies_ != 0; }
  /// Stops receiving. Returns true if no GPU copies for it.
  bool stop();

 private:
  /// Describes the part of a frame that is in a staging buffer.
  struct StagedPart {
    std::shared_ptr<Incoming> of;  // shared with the group
    RegionUse use{};
    std::uint64_t bytes = 0;
  };
  /// Holds a value that is stored when its frame is complete.
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
  std::size_t begin_ = 0, end_ = 0;  // the unparsed bytes in buffer_
  std::optional<base::FrameAuthenticator> verifier_;

  // The frame whose data is being received.
  std::optional<FrameDestination> destination_;
  std::size_t extent_ = 0;  // the next extent that is in no part
  std::uint64_t left_ = 0;
  bool summed_ = false;
  std::uint32_t expected_sum_ = 0,
                sum_ = 0;            // the frame's checksum; the checksum of what has arrived
  bool to_user_ = false;             // the part lands in user memory, which may be freed
  std::vector<copy::Piece> copied_;  // of one call
  // Its current part: all of the frame, or what a staging buffer takes.
  std::vector<iovec> parts_;
  std::vector<DeferredStore> deferred_stores_;  // parts_ points into it
  std::size_t part_ = 0;
  std::uint64_t part_bytes_ = 0;
  copy::StagingBuffer* staging_buffer_ = nullptr;
  Status status_;  // why no staging buffer could be acquired
  std::vector<copy::Staging::StagedRun> runs_;
  std::vector<iovec> into_;  // of one call
  std::vector<std::byte> scrap_;
};

}  // namespace linkspan::transport::tcp
