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

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "copy/staging.hpp"
#include "transport/tcp/connection_group.hpp"
#include "transport/tcp/data_socket.hpp"
#include "transport/tcp/frame_buffer.hpp"
#include "transport/tcp/iovecs.hpp"

namespace linkspan::transport::tcp {

class Receiver {
 public:
  /// `group`, `socket` and `staging_streams` outlive it. Frames must be of `peer`.
  Receiver(ConnectionGroup& group, DataSocket& socket, std::uint64_t peer,
           copy::StagingStreams& staging_streams, unsigned ctas)
      : group_(group),
        socket_(socket),
        ctas_(ctas),
        input_(peer),
        staging_(kMaxChunk, staging_streams) {}
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;
  ~Receiver() = default;  ///< Requires: stop() returned true, or no GPU was used.

  /// Requires a seal after each frame from now on. Called before the first frame.
  void expect_seals(const base::MacKey& key) { input_.expect_seals(key); }

  /// Receives what it can. Returns true if something has moved; adds to `answers` the frames to
  /// send. disconnected: the peer has closed the socket. corrupt: the bytes cannot be parsed.
  Result<bool> poll(bool& readable, std::vector<Answer>& answers);
  /// Releases memory that the peer may no longer write: the rest of the current frame is discarded.
  /// A GPU copy under way finishes first.
  void release_revoked();
  /// Returns true while a GPU copies for it.
  bool needs_polling() const noexcept {
    return std::ranges::any_of(staged_parts_, [](const auto& part) { return part.of != nullptr; });
  }
  /// Stops receiving. Returns true if no GPU copies for it.
  bool stop();

 private:
  /// Describes the part of a frame that a GPU copies out of a staging buffer.
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

  /// Describes the frame whose data is being received.
  struct ReceivedFrame {
    FrameDestination to;
    FrameSum sum;
    std::uint64_t left = to.bytes;  // in no part that has arrived
    std::size_t extent = 0;         // the next extent that is in no part
    Status status{};                // why its data cannot be stored
  };
  /// Describes where its next bytes go: all of the frame, or what a staging buffer takes.
  struct ReceivedPart {
    Iovecs iovecs;
    std::uint64_t bytes = 0;
    bool to_user = false;                   // it lands in user memory, which may be freed
    std::vector<DeferredStore> stores;      // iovecs point into it
    copy::StagingBuffer* buffer = nullptr;  // of a GPU's memory
    std::vector<copy::Staging::StagedRun> runs;
  };

  bool poll_gpu(std::vector<Answer>& answers);
  Result<bool> begin_frame(std::vector<Answer>& answers);
  bool begin_part();
  void discard(std::uint64_t bytes);
  void discard_rest();
  Result<std::size_t> receive(bool& readable);
  std::size_t land_buffered();
  Status sum_part();
  void end_part(std::vector<Answer>& answers);
  void release_buffer() noexcept;
  void report(Incoming& batch, std::uint64_t bytes, const Status& status,
              std::vector<Answer>& answers);

  ConnectionGroup& group_;
  DataSocket& socket_;
  const unsigned ctas_;
  FrameBuffer input_;
  copy::Staging staging_;
  std::array<StagedPart, copy::Staging::kBuffers> staged_parts_;
  std::optional<ReceivedFrame> frame_;
  ReceivedPart part_;
  std::vector<iovec> into_;          // of one call
  std::vector<copy::Piece> copied_;  // of one call
  std::vector<std::byte> scrap_;
};

}  // namespace linkspan::transport::tcp
