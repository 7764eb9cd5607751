// tools/linkspan/pair/text_channel.hpp - exchanges short texts with the tool of another host, by
// Peer::send() and recv() of one tag.
//
// Texts alternate, except an error ("error WHY"), which either side may send at any time and which
// ends the other side's wait. Each step of the other side has a timeout.
// Threads: externally synchronised.
// Invariants: memory that a transfer may still touch is never freed.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "linkspan/completion_queue.hpp"
#include "linkspan/engine.hpp"

namespace linkspan::tool {

class TextChannel {
 public:
  /// Starts to receive. `timeout` limits each step of the other side.
  static Result<std::unique_ptr<TextChannel>> begin(Peer peer, Duration timeout);
  ~TextChannel();
  TextChannel(const TextChannel&) = delete;
  TextChannel& operator=(const TextChannel&) = delete;

  Status send(std::string_view text);
  /// Returns the next text, or the other side's error as a Status. Waits `more` longer than usual.
  Result<std::string> receive(Duration more = {});
  /// Reports a failure of this side to the other.
  void send_error(const Status& why);

  /// Cancels the transfers in flight. Returns whether all of them are quiet.
  bool cancel_pending(Duration timeout);

 private:
  static constexpr std::size_t kMaxTextBytes = 1024;
  struct Buffers {
    std::array<char, kMaxTextBytes> sent{}, received{};
  };

  TextChannel(Peer peer, Duration timeout, CompletionQueue queue)
      : peer_(std::move(peer)),
        step_timeout_(timeout),
        queue_(std::move(queue)),
        buffers_(std::make_unique<Buffers>()) {}
  Status post_receive();
  Status received_error() const;
  Status wait_for_end(const Transfer& one, Duration timeout, const char* what);

  const Peer peer_;
  const Duration step_timeout_;
  CompletionQueue queue_;
  std::unique_ptr<Buffers> buffers_;
  Transfer sending_, receiving_;
  Status receive_error_;  // why no further text can be received
};

}  // namespace linkspan::tool
