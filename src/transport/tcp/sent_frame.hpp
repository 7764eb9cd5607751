// transport/tcp/sent_frame.hpp - a frame that a Sender sends.
//
// On the path of a byte: lays out queued frames, the chunk's head and its data as iovecs.
// Threads: externally synchronised.
// Invariants: a chunk is sent with as many bytes as its head announces, zeros if they cannot be
// read.
#pragma once

#include <optional>
#include <vector>

#include "base/frame_authenticator.hpp"
#include "copy/staging.hpp"
#include "transport/tcp/connection_group.hpp"
#include "transport/tcp/iovecs.hpp"

namespace linkspan::transport::tcp {

struct SentFrame {
  /// Fills `iovecs`. `private_copy`: where its data lies if it is `copied`.
  void lay_out(std::vector<std::byte>& private_copy);
  /// Appends a seal of all of it.
  Status seal_with(base::FrameAuthenticator& sealer);
  /// Fails a put and sends zeros for the rest of its data. Returns false if the memory is ours, or
  /// for data, whose head has reported success.
  bool zero_rest();
  /// Replaces the rest of the data by zeros, but neither its first part nor what follows the data.
  void zero_data();

  std::optional<Chunk> chunk;             // none: queued frames alone
  std::vector<std::byte> head;            // queued frames, then the chunk's head
  std::vector<std::byte> trailing;        // answers sent after its data, if that is small
  copy::StagingBuffer* buffer = nullptr;  // null: not staged
  bool staged = false;                    // the GPU is done, or was not used
  Status status{};                        // of the staging
  bool copied = false;                    // its data lies in a private copy
  Iovecs iovecs;                          // what is left to send
  std::size_t data_end = 0;               // of its data, which begins at the second iovec
  base::MacTag seal{};
};

}  // namespace linkspan::transport::tcp
