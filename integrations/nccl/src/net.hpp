// nccl/net.hpp - what this process has of the plugin: two Engines, and NCCL's comms over them.
//
// The senders' Engine connects, the receivers' listens, so ranks of one process reach each other as
// those of two do. The Engines' threads move the bytes; a call of NCCL takes the notifications that
// have come, for every comm, and returns.
// Threads: any thread.
// Invariants: one of a process, made by the first init() and never destroyed: NCCL before 2.28
// does not tell its end. Comms, memories and requests that NCCL names are looked up, never
// followed.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "integrations/nccl/src/comm.hpp"
#include "integrations/nccl/src/interfaces.hpp"
#include "linkspan/engine.hpp"

namespace linkspan::nccl {

class Net {
 public:
  using Log = std::function<void(LogLevel, std::string_view)>;

  /// Opens the Engines. Errors as choose_interfaces(), Engine::open() and listen().
  static Result<std::unique_ptr<Net>> open(Log log);

  /// The settings that open() has read from the environment.
  struct Facts {
    std::vector<Interface> interfaces;
    Duration timeout{};  ///< Of a message that is on its way.
    int devices = 1;     ///< Shown to NCCL, which makes channels for each; all are the same.
  };
  const Facts& facts() const noexcept { return facts_; }

  // As NCCL calls them, but for the results. Null comms and requests: again later.
  Result<void*> listen(Handle& handle) LINKSPAN_EXCLUDES(mutex_);
  Result<void*> connect(Handle& handle) LINKSPAN_EXCLUDES(mutex_);
  Result<void*> accept(void* listener) LINKSPAN_EXCLUDES(mutex_);
  Result<void*> register_memory(void* comm, void* data, std::size_t bytes)
      LINKSPAN_EXCLUDES(mutex_);
  Status deregister(void* comm, void* memory) LINKSPAN_EXCLUDES(mutex_);
  Result<void*> send(void* comm, void* data, std::size_t bytes, void* memory)
      LINKSPAN_EXCLUDES(mutex_);
  Result<void*> receive(void* comm, void* data, std::size_t bytes, void* memory)
      LINKSPAN_EXCLUDES(mutex_);
  struct Tested {
    bool done;
    std::uint64_t bytes;
  };
  Result<Tested> test(void* request) LINKSPAN_EXCLUDES(mutex_);
  Status close_comm(void* comm) LINKSPAN_EXCLUDES(mutex_);
  Status close_listener(void* listener) LINKSPAN_EXCLUDES(mutex_);

 private:
  static constexpr std::size_t kMaxHellos = 4096;  // that NCCL has not accepted yet
  static constexpr unsigned kTestsOfRound = 32;
  static constexpr int kMaxDevices = 16;

  struct Round {
    const void* request = nullptr;  // for which notifications were taken; only compared
    unsigned tests = 0;             // of others since
  };

  struct Listener {
    std::uint64_t id = 0;
    std::deque<std::pair<std::uint64_t, std::uint64_t>> hellos;  // peer, its comm
    std::unique_ptr<ReceiveComm> accepting;
  };
  struct Connecting {
    std::unique_ptr<SendComm> comm;
    bool said = false;
  };

  Net(Facts facts, Engine senders, Engine receivers)
      : facts_(std::move(facts)), senders_(std::move(senders)), receivers_(std::move(receivers)) {}

  void take_notifications_of_round(const void* request) LINKSPAN_REQUIRES(mutex_);
  void take_notifications() LINKSPAN_REQUIRES(mutex_);
  void take(const Notification& notification, bool by_receiver) LINKSPAN_REQUIRES(mutex_);
  std::shared_ptr<Link> link_to(const std::string& address) LINKSPAN_REQUIRES(mutex_);
  Result<Peer> receivers_peer(std::uint64_t id) const LINKSPAN_REQUIRES(mutex_);
  Comm* find(void* comm) LINKSPAN_REQUIRES(mutex_);
  Status end(Memory& memory, bool of_receiver, base::Deadline deadline) LINKSPAN_EXCLUDES(mutex_);

  const Facts facts_;
  Engine senders_, receivers_;
  Region mailbox_, mailbox_here_;
  std::array<std::uint64_t, 2> mail_{};  // their bytes; what is in them does not matter

  base::Mutex mutex_;
  std::uint64_t last_id_ LINKSPAN_GUARDED_BY(mutex_) = 0;  // of comms and memories
  std::map<void*, std::unique_ptr<Listener>> listeners_ LINKSPAN_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Connecting> connecting_ LINKSPAN_GUARDED_BY(mutex_);
  std::map<void*, std::unique_ptr<Comm>> comms_ LINKSPAN_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Comm*> by_id_ LINKSPAN_GUARDED_BY(mutex_);
  Round round_ LINKSPAN_GUARDED_BY(mutex_);
  std::map<std::string, std::weak_ptr<Link>> links_ LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::nccl
