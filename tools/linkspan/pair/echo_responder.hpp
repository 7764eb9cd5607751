// tools/linkspan/pair/echo_responder.hpp - runs in the remote process: answers each write with a
// notification by one of its own, through the library or through bare code.
//
// Threads: the helper's main thread, or a thread of `linkspan serve`; polls without pause.
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

/// A page that two processes map: a memfd that one of them created.
class PingPage {
 public:
  static Result<std::unique_ptr<PingPage>> create();
  /// Opens the page by the path() of the process that created it.
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

/// Waits for one notification, polling without pause.
Status await_notification(Engine& engine);

/// Returns the offset of message `i`. Messages wrap around in an area of 4 KiB that begins at
/// `offset`.
constexpr std::uint64_t kMessageArea = 4096;
constexpr std::uint64_t message_offset(std::uint64_t offset, std::uint64_t bytes,
                                       std::uint64_t i) noexcept {
  return offset + i * bytes % kMessageArea;
}

class EchoResponder {
 public:
  using Memories = std::map<std::string, std::unique_ptr<Memory>>;

  /// The arguments outlive this object. Without a valid peer, `meet` accepts the next one.
  EchoResponder(Engine& engine, const Memories& memories, Peer peer)
      : engine_(engine), memories_(memories), peer_(std::move(peer)) {}

  /// Executes the requests meet, echo, ping and pong of helper_process.hpp.
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
  RemoteRegion region_;  // of the requesting process
  // Used by the bare code alone:
  std::unique_ptr<PingPage> page_;
  std::optional<cuda::IpcMapping> mapping_;
  std::uint64_t to_ = 0, from_ = 0;
  std::unique_ptr<bare::Ping> ping_;
};

}  // namespace linkspan::tool
