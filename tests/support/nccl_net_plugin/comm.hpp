// tests/support/nccl_net_plugin/comm.hpp - comms over a socket each, which refuse calls that break
// the ABI's rules.
//
// Messages go through a comm one after the other, each with a header. A request is begun, then
// moved (its bytes have arrived, or the socket has them), then done (test() has reported it), and
// with UNPACK consumed. Each step keeps the order of the begins, so four counters describe all.
// Threads: externally synchronised; a call during another call is refused.
// Invariants: consumed <= done <= moved <= begun; the ring of requests never moves.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "tests/support/nccl_net_plugin/bounce_pool.hpp"
#include "tests/support/nccl_net_plugin/gpu.hpp"
#include "tests/support/nccl_net_plugin/plugin.hpp"
#include "tests/support/nccl_net_plugin/settings.hpp"
#include "tests/support/nccl_net_plugin/wire.hpp"

namespace linkspan::nccl_test {

class Comm;

/// Registered.
struct Memory {
  std::byte* base;
  std::size_t bytes;
  bool gpu;
};

struct Request {
  Comm* comm = nullptr;
  bool flushes = false;  // of iflush
  const Memory* memory = nullptr;
  std::byte* data = nullptr;
  std::size_t room = 0;   // of a receive; a send's bytes
  std::size_t bytes = 0;  // that came; a send's bytes
  int tag = 0;
  std::uint64_t passes = 0;  // in its GPU's count
  Clock::time_point due;
  bool unflushed = false;    // lies in the staging still
  std::uint64_t staged = 0;  // what passes when a flush has read the staging
  Staging staging;
};

class Comm {
 public:
  /// Makes the comm of an established connection. With a null `gpu` it takes host memory only.
  Comm(void* context, base::Fd socket, Settings settings, std::unique_ptr<Gpu> gpu, bool consumes);
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;
  virtual ~Comm();

  int add_memory(void* data, std::size_t bytes, int type, void** memory);
  int remove_memory(void* memory);
  int test(Request& request, int* done, int* bytes);
  const void* context() const noexcept { return context_; }
  Failures failures;  // of this comm's calls
  const Settings settings;

  /// Guards one call; false if another call is running.
  class Call {
   public:
    explicit Call(Comm& comm) : comm_(comm), alone_(!comm.in_call_.exchange(true)) {}
    ~Call() {
      if (alone_) comm_.in_call_ = false;
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    explicit operator bool() const noexcept { return alone_; }

   private:
    Comm& comm_;
    const bool alone_;
  };

 protected:
  /// Checks all that sends and receives have in common. Null in `begun`: not now, or an error.
  int begin(void* data, std::size_t bytes, int tag, void* memory, Request*& begun);
  int check(const Memory* known, const void* data, std::size_t bytes) const;
  const Memory* find(void* memory) const;
  /// Moves what can be moved.
  virtual void progress() = 0;
  /// Called for a request that test() is about to report as done.
  virtual void finish(Request&) {}
  virtual int test_flush(Request& request, int* done);
  void moved(Request& request);
  /// Makes the comm fail for good.
  void fail(Answer answer, const std::string& why, Where at = {});
  void fail(const Status& status) { fail(kCudaError, status.to_string()); }

  Request& at(std::uint64_t number) { return ring_[number % ring_.size()]; }
  std::size_t in_flight() const { return begun_ - consumed_; }

  void* const context_;
  base::Fd socket_;
  const std::unique_ptr<Gpu> gpu_;
  Random random_;
  std::map<void*, std::unique_ptr<Memory>> memories_;
  std::vector<Request> ring_;
  std::uint64_t begun_ = 0, moved_ = 0, done_ = 0, consumed_ = 0;
  std::size_t offset_ = 0;  // in the message that is being moved, its header counted
  int error_ = kOk;

 private:
  const bool consumes_;  // else what is done is consumed
  std::atomic<bool> in_call_{false};
};

class SendComm final : public Comm {
 public:
  SendComm(void* context, base::Fd socket, Settings own, std::unique_ptr<Gpu> gpu)
      : Comm(context, std::move(socket), std::move(own), std::move(gpu), false) {}
  int send(void* data, std::size_t bytes, int tag, void* memory, void** request);

 private:
  void progress() override;
  bool write(Request& request);  // false: not all of it yet
};

class ReceiveComm final : public Comm {
 public:
  /// `pool` null: there is nothing to unpack.
  ReceiveComm(void* context, base::Fd socket, Settings own, std::unique_ptr<Gpu> gpu,
              std::unique_ptr<BouncePool> pool);
  ~ReceiveComm() override;
  int receive(int n, void* data, std::size_t bytes, int tag, void* memory, void** request);
  int flush(int n, void** data, void** memories, void** request);
  int consumed(int n, void* request);
  NetDeviceHandle* kernels() const { return pool_ ? pool_->handle() : nullptr; }

 private:
  void progress() override;
  void finish(Request& request) override;
  int test_flush(Request& request, int* done) override;
  bool read(void* into, std::size_t bytes, std::size_t begin);  // false: not all of it yet
  bool read_message(Request& request);
  bool land(Request& request, const std::byte* message);

  std::unique_ptr<BouncePool> pool_;
  MessageHeader header_{};
  std::vector<std::byte> landing_;  // of a message that will be cut into fragments
  std::vector<Request> flushes_;
  std::uint64_t flushes_begun_ = 0, flushes_done_ = 0;
};

}  // namespace linkspan::nccl_test
