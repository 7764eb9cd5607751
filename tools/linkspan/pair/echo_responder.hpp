// tools/linkspan/pair/echo_responder.hpp - the second process as the one that answers: a write with
// a notification is answered by another, by the library and by bare code.
//
// Threads: the child's main thread, which looks without a pause while it waits.
#pragma once

#include <sys/mman.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/fd.hpp"
#include "bench/bare/ping.hpp"
#include "cuda/handles.hpp"
#include "linkspan/engine.hpp"
#include "tools/linkspan/pair/memories.hpp"

namespace linkspan::tool {

/// A page that two processes map: a memfd of one of them.
class PingPage {
 public:
  static Result<std::unique_ptr<PingPage>> create();
  /// As path() names it in the other process.
  static Result<std::unique_ptr<PingPage>> open(const std::string& path);
  ~PingPage() { ::munmap(data_, bare::Ping::kPageBytes); }
  PingPage(const PingPage&) = delete;
  PingPage& operator=(const PingPage&) = delete;

  std::string path() const;
  std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }

 private:
  PingPage(base::Fd fd, void* data) : fd_(std::move(fd)), data_(data) {}
  static Result<std::unique_ptr<PingPage>> map(base::Fd fd);

  const base::Fd fd_;
  void* const data_;
};

/// Waits for one notification, looking all the time.
Status await_notification(Engine& engine);

/// The bytes of message `i` of a turn: they go round in an area of 4 KiB behind `offset`.
constexpr std::uint64_t kMessageArea = 4096;
constexpr std::uint64_t message_offset(std::uint64_t offset, std::uint64_t bytes,
                                       std::uint64_t i) noexcept {
  return offset + i * bytes % kMessageArea;
}

class EchoResponder {
 public:
  using Memories = std::map<std::string, std::unique_ptr<Memory>>;

  /// All of them outlive it. No peer: `meet` takes the next one that connects.
  EchoResponder(Engine& engine, const Memories& memories, Peer peer)
      : engine_(engine), memories_(memories), peer_(std::move(peer)) {}

  /// meet, echo, ping and pong of helper_process.hpp.
  Status handle(const std::string& request);

 private:
  Status lookup_region(const std::string& place);
  Status echo(const Memory& memory, std::uint64_t count, std::uint64_t offset, std::uint64_t bytes,
              bool low_latency);
  Status ping(const std::string& file, const Memory& memory, const std::string& peer_memory);
  Status pong(std::uint64_t count, std::uint64_t offset, std::uint64_t bytes);

  Engine& engine_;
  const Memories& memories_;
  Peer peer_;
  RemoteRegion region_;  // the parent's
  // Of bare code:
  std::unique_ptr<PingPage> page_;
  std::optional<cuda::IpcMapping> mapping_;
  std::uint64_t to_ = 0, from_ = 0;
  std::unique_ptr<bare::Ping> ping_;
};

}  // namespace linkspan::tool
