// bench/nccl/lane.hpp - one direction of a channel between two processes, as NCCL's proxy thread
// drives it: by a network plugin's comm, or by a bare socket.
//
// Threads: externally synchronised. Errors are exceptions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "transport/nccl_net/net.hpp"

namespace linkspan::bench {

[[noreturn]] void fail(const std::string& what);

class Lane {
 public:
  static constexpr unsigned kSlots = 8;  ///< NCCL_STEPS

  Lane(std::size_t bytes, bool receives);
  virtual ~Lane() = default;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  bool receives() const noexcept { return receives_; }
  std::uint64_t done() const noexcept { return done_; }  ///< Messages that have ended.
  /// Posts the next of `may_post` messages if its slot is free, and looks at the oldest one.
  /// Returns whether that did anything.
  bool go_on(std::uint64_t may_post);
  void verify() const;

 protected:
  virtual bool post(std::size_t slot) = 0;
  virtual bool ended(std::size_t slot) = 0;
  std::byte* at(std::size_t slot) { return memory_.data() + slot * bytes_; }
  std::size_t bytes() const noexcept { return bytes_; }
  std::vector<std::byte>& memory() noexcept { return memory_; }

 private:
  std::uint64_t& number(std::uint64_t message);

  const bool receives_;
  const std::size_t bytes_;
  std::vector<std::byte> memory_;
  std::uint64_t posted_ = 0, done_ = 0;
};

class PluginLane final : public Lane {
 public:
  using Net = transport::nccl_net::Net;

  PluginLane(Net& net, void* comm, std::size_t bytes, bool receives);
  ~PluginLane() override;
  PluginLane(const PluginLane&) = delete;
  PluginLane& operator=(const PluginLane&) = delete;
  /// Throws if a function has failed.
  static void check(int result);

 private:
  bool post(std::size_t slot) override;
  bool ended(std::size_t slot) override;

  Net& net_;
  void* const comm_;
  void* handle_ = nullptr;
  std::array<void*, kSlots> requests_{};
};

class SocketLane final : public Lane {
 public:
  /// `socket` outlives it.
  SocketLane(int socket, std::size_t bytes, bool receives)
      : Lane(bytes, receives), socket_(socket) {}

 private:
  bool post(std::size_t) override { return true; }
  bool ended(std::size_t slot) override;

  const int socket_;
  std::size_t moved_ = 0;  // of the oldest message
};

}  // namespace linkspan::bench
