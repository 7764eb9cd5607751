// tools/linkspan/pair/text_channel.hpp - what two tools of different hosts say to each other: words
// by one tag.
//
// Words alternate, but for a refusal ("error WHY"), which may come at any time and ends what the
// other side waits for. Each step of the other side's has a deadline.
// Threads: externally synchronised.
// Invariants: what a transfer that is not quiet may touch is never freed.
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
  /// `patience`: with each step of the other side's.
  static Result<std::unique_ptr<TextChannel>> begin(Peer peer, Duration timeout);
  ~TextChannel();
  TextChannel(const TextChannel&) = delete;
  TextChannel& operator=(const TextChannel&) = delete;

  Status send(std::string_view text);
  /// What the other side says next; its refusal as a Status. `more` patience than usual.
  Result<std::string> receive(Duration more = {});
  /// Tells a failure of this side.
  void send_error(const Status& why);

  /// Cancels what is under way. True: nothing of it touches memory any more.
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
  Status receive_error_;  // why nothing more is heard
};

}  // namespace linkspan::tool
