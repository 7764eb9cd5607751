// tools/linkspan/conversation.hpp - what two tools of different hosts say to each other: words by
// one tag, the chunks of a file by another, through a ring of slots that both sides bound.
//
// Words alternate, but for a refusal ("error WHY"), which may come at any time and ends what the
// other side waits for. Each step of the other side's has a deadline.
// Threads: externally synchronised.
// Invariants: what a transfer that is not quiet may touch is never freed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "linkspan/completion_queue.hpp"
#include "linkspan/engine.hpp"
#include "tools/linkspan/memories.hpp"

namespace linkspan::tool {

class Conversation {
 public:
  static constexpr std::uint64_t kChunk = std::uint64_t{2} << 20;
  static constexpr std::size_t kSlots = 8;

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

  /// A file's chunks 0, 1, 2... go through slots in `place`. The Engine is the peer's, and outlives
  /// this.
  Status open_ring(Engine& engine, const Gpus& gpus, Place place);
  /// For the sender: where chunk `chunk` is put, as soon as its slot is free; then it is sent.
  Result<std::span<std::byte>> room(std::uint64_t chunk);
  Status send(std::uint64_t chunk, std::uint64_t bytes);
  Status all_sent();
  /// For the receiver: at most kSlots chunks are expected at a time, and taken in their order.
  /// Their bytes stay until the slot is expected again, or the next chunk is taken.
  Status expect(std::uint64_t chunk, std::uint64_t bytes);
  Result<std::span<const std::byte>> take(std::uint64_t chunk);

  /// Cancels what is under way. True: nothing of it touches memory any more, and the ring is gone.
  bool settle(Duration timeout);

 private:
  static constexpr std::size_t kMostWords = 1024;
  struct Buffers {
    std::array<char, kMostWords> told{}, heard{};
    std::unique_ptr<Memory> ring;
    std::vector<std::byte> bounce;  // beside a ring that the CPU does not reach
  };
  struct Slot {
    Transfer transfer;
    std::uint64_t bytes = 0;
  };

  Conversation(Peer peer, Duration patience, CompletionQueue queue)
      : peer_(std::move(peer)),
        patience_(patience),
        queue_(std::move(queue)),
        buffers_(std::make_unique<Buffers>()) {}
  Status listen();
  Status refusal() const;
  Status until(const Transfer& one, Duration patience, const char* what);
  std::uint64_t offset(std::uint64_t chunk) const { return chunk % kSlots * kChunk; }
  std::byte* at(std::uint64_t chunk) const;
  Status under_way(std::uint64_t chunk, std::uint64_t bytes, Result<Transfer> posted);

  const Peer peer_;
  const Duration patience_;
  CompletionQueue queue_;
  std::unique_ptr<Buffers> buffers_;
  Engine* engine_ = nullptr;  // of the ring
  Transfer told_, heard_;
  Status hearing_;  // why nothing more is heard
  std::array<Slot, kSlots> slots_;
};

}  // namespace linkspan::tool
