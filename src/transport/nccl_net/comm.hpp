// transport/nccl_net/comm.hpp - connections of a network plugin, by its rules.
//
// A comm goes one way. Nothing here blocks: what the plugin cannot do now answers no_resource or
// null, and is asked again. Requests are tested in the order in which they were begun, never after
// they were done, never more at once than the plugin takes.
// Threads: externally synchronised, each comm by one thread at a time; with the GPU current that
// its memory is on, from listen() and connect() on (a plugin may take the GPU from there).
// Invariants: a Registration ends before its comm; a comm ends with no request in flight, or the
// peer is gone, or its memory outlives the process's use of the plugin.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <span>

#include "linkspan/status.hpp"
#include "transport/nccl_net/plugin.hpp"

namespace linkspan::transport::nccl_net {

using Handle = std::array<std::byte, abi::kHandleBytes>;

/// A request that is done.
struct Done {
  std::uint64_t cookie = 0;
  std::size_t bytes = 0;
  void* request = nullptr;  ///< For ReceiveComm::consumed().
};

class Comm {
 public:
  /// Memory that this comm may send from or receive into; given back at its end.
  class Registration {
   public:
    Registration(Comm& comm, void* handle) : comm_(&comm), handle_(handle) {}
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;
    ~Registration();
    void* handle() const noexcept { return handle_; }

   private:
    Comm* comm_;
    void* handle_;
  };

  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  /// invalid_argument: the device does not take that type, or (TCPX) GPU memory that is not at a
  /// multiple of 4 KiB.
  Result<std::unique_ptr<Registration>> add_memory(void* data, std::size_t bytes,
                                                   abi::PointerType type);
  const Properties& properties() const noexcept { return plugin_->devices()[device_]; }
  const Plugin& plugin() const noexcept { return *plugin_; }
  void* raw() const noexcept { return comm_; }
  std::size_t in_flight() const noexcept { return std::max(requests_.size(), unconsumed_); }

  /// Whether the oldest request is done. None: not yet, or there is none.
  Result<std::optional<Done>> test();

 protected:
  Comm(std::shared_ptr<Plugin> plugin, std::size_t device, void* comm)
      : plugin_(std::move(plugin)), device_(device), comm_(comm) {}
  ~Comm() = default;
  Status room(std::size_t bytes) const;
  Status began(int result, const char* function, void* request, std::size_t bytes,
               std::uint64_t cookie);

  struct Request {
    void* request;
    std::size_t bytes;  ///< At most.
    std::uint64_t cookie;
  };
  const std::shared_ptr<Plugin> plugin_;  // also other comms'
  const std::size_t device_;
  void* const comm_;
  std::deque<Request> requests_;
  std::size_t unconsumed_ = 0;  // receives, from their begin until they are consumed
};

class SendComm : public Comm {
 public:
  SendComm(std::shared_ptr<Plugin> plugin, std::size_t device, void* comm)
      : Comm(std::move(plugin), device, comm) {}
  SendComm(const SendComm&) = delete;
  SendComm& operator=(const SendComm&) = delete;
  ~SendComm() { (void)plugin_->net().close_send(comm_); }

  /// no_resource: nothing was begun, ask again after test().
  Status send(const void* data, std::size_t bytes, int tag, const Registration& memory,
              std::uint64_t cookie);
};

class ReceiveComm : public Comm {
 public:
  ReceiveComm(std::shared_ptr<Plugin> plugin, std::size_t device, void* comm,
              abi::DeviceHandle* kernels)
      : Comm(std::move(plugin), device, comm), kernels_(kernels) {}
  ReceiveComm(const ReceiveComm&) = delete;
  ReceiveComm& operator=(const ReceiveComm&) = delete;
  ~ReceiveComm() { (void)plugin_->net().close_receive(comm_); }

  /// `bytes`: at least what the peer sends with that tag. no_resource as above.
  Status receive(void* data, std::size_t bytes, int tag, const Registration& memory,
                 std::uint64_t cookie);
  /// Begins to make what was received into GPU memory visible there; null: it is. Requests of
  /// flushes are tested by flushed().
  Result<void*> flush(void* data, std::size_t bytes, const Registration& memory);
  Result<bool> flushed(void* request);
  /// Of one that is done: its data was read, or put where it belongs. In the order of the receives.
  Status consumed(const Done& done);
  /// What kernels need to unpack; null where there is nothing to unpack.
  const abi::DeviceHandle* kernels() const noexcept { return kernels_; }
  bool unpacks() const noexcept { return properties().device_type == abi::kDeviceUnpack; }

 private:
  abi::DeviceHandle* const kernels_;
};

class Listener {
 public:
  static Result<std::unique_ptr<Listener>> open(std::shared_ptr<Plugin> plugin, int device);
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener() {
    if (comm_ != nullptr) (void)plugin_->net().close_listen(comm_);
  }

  /// What a PendingConnect elsewhere takes.
  const Handle& handle() const noexcept { return handle_; }
  /// Null: nobody has connected yet.
  Result<std::unique_ptr<ReceiveComm>> accept();

 private:
  Listener(std::shared_ptr<Plugin> plugin, std::size_t device)
      : plugin_(std::move(plugin)), device_(device) {}

  const std::shared_ptr<Plugin> plugin_;  // also the comms'
  const std::size_t device_;
  void* comm_ = nullptr;
  Handle handle_{};
};

/// One that is given up before it has its comm leaves with the plugin what that holds for it: the
/// ABI has no call to end a connect.
class PendingConnect {
 public:
  static Result<std::unique_ptr<PendingConnect>> open(std::shared_ptr<Plugin> plugin, int device,
                                                      std::span<const std::byte> handle);
  PendingConnect(const PendingConnect&) = delete;
  PendingConnect& operator=(const PendingConnect&) = delete;
  ~PendingConnect() = default;

  /// Null: the other side has not accepted yet.
  Result<std::unique_ptr<SendComm>> connect();

 private:
  PendingConnect(std::shared_ptr<Plugin> plugin, std::size_t device)
      : plugin_(std::move(plugin)), device_(device) {}

  const std::shared_ptr<Plugin> plugin_;  // also the comm's
  const std::size_t device_;
  alignas(16) Handle handle_{};  // the plugin writes there between tries
};

}  // namespace linkspan::transport::nccl_net
