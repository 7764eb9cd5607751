// tools/linkspan/pair/conversation.hpp - what two tools of different hosts say to each other: words
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

class Conversation {
 public:
  /// `patience`: with each step of the other side's.
  static Result<std::unique_ptr<Conversation>> begin(Peer peer, Duration patience);
  ~Conversation();
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;

  Status tell(std::string_view words);
  /// What the other side says next; its refusal as a Status. `more` patience than usual.
  Result<std::string> hear(Duration more = {});
  /// Tells a failure of this side.
  void refuse(const Status& why);

  /// Cancels what is under way. True: nothing of it touches memory any more.
  bool settle(Duration timeout);

 private:
  static constexpr std::size_t kMaxWords = 1024;
  struct Buffers {
    std::array<char, kMaxWords> told{}, heard{};
  };

  Conversation(Peer peer, Duration patience, CompletionQueue queue)
      : peer_(std::move(peer)),
        patience_(patience),
        queue_(std::move(queue)),
        buffers_(std::make_unique<Buffers>()) {}
  Status listen();
  Status refusal() const;
  Status until(const Transfer& one, Duration patience, const char* what);

  const Peer peer_;
  const Duration patience_;
  CompletionQueue queue_;
  std::unique_ptr<Buffers> buffers_;
  Transfer told_, heard_;
  Status hearing_;  // why nothing more is heard
};

}  // namespace linkspan::tool
