// tests/support/nccl_net_plugin/connection.hpp - makes comms on both sides from a handle, in steps.
//
// The connecting side sends the handle's nonce, the accepting side answers it; each has its comm
// when the other side's message has arrived.
// Threads: externally synchronised.
#pragma once

#include <cstdint>
#include <memory>

#include "base/fd.hpp"
#include "tests/support/nccl_net_plugin/comm.hpp"
#include "tests/support/nccl_net_plugin/wire.hpp"

namespace linkspan::nccl_test {

/// Bytes that go one way over a socket in as many tries as it takes.
class Exchange {
 public:
  enum class State { pending, over, broken };
  State send(int socket, const Hello& hello);
  State receive(int socket, Hello& hello);

 private:
  std::size_t sent_ = 0, received_ = 0;
  Hello coming_{};
};

class Listener {
 public:
  /// Puts where it listens into `handle`. Null in `made`: the answer says why.
  static int open(void* context, void* handle, std::unique_ptr<Listener>& made);
  /// `made` stays null if no peer has connected yet, or after an error.
  int accept(std::unique_ptr<ReceiveComm>& made);
  const void* context() const noexcept { return context_; }

 private:
  Listener(void* context, Settings settings, base::Fd socket, std::uint64_t nonce)
      : context_(context),
        settings_(std::move(settings)),
        socket_(std::move(socket)),
        nonce_(nonce) {}

  void* const context_;
  const Settings settings_;
  const cuda::CUcontext gpu_ = Gpu::current();
  const base::Fd socket_;
  const std::uint64_t nonce_;
  base::Fd coming_;  // accepted, its hello is awaited
  Exchange exchange_;
  Failures failures_;
  std::uint64_t tries_ = 0;
};

class Connecting {
 public:
  static int open(void* context, const Handle& handle, std::unique_ptr<Connecting>& made);
  /// `made` stays null if the connection is not complete yet, or after an error.
  int connect(std::unique_ptr<SendComm>& made);
  const void* context() const noexcept { return context_; }

 private:
  Connecting(void* context, Settings settings, base::Fd socket, std::uint64_t nonce)
      : context_(context),
        settings_(std::move(settings)),
        socket_(std::move(socket)),
        nonce_(nonce) {}

  void* const context_;
  const Settings settings_;
  const cuda::CUcontext gpu_ = Gpu::current();
  base::Fd socket_;
  const std::uint64_t nonce_;
  Exchange exchange_;
  Failures failures_;
  std::uint64_t tries_ = 0;
};

}  // namespace linkspan::nccl_test
