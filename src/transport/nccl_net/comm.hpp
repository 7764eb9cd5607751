// transport/nccl_net/comm.hpp - connections of a network plugin (comms), used by its rules.
//
// A comm has one direction. Nothing blocks: what the plugin cannot do now returns no_resource or
// null and is tried again. Requests are tested in the order of their begin, not after completion,
// and never more at once than the plugin takes.
// Threads: externally synchronised, each comm by one thread at a time, with the GPU of its memory
// current from listen() and connect() on (a plugin may take the GPU from there).
// Invariants: a CommRegistration ends before its comm. A comm ends with no request in flight, or
// after the peer is gone, or its memory outlives the process's use of the plugin.
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

/// Describes a completed request.
struct Done {
  std::uint64_t cookie = 0;
  std::size_t bytes = 0;
  void* request = nullptr;  ///< Passed to ReceiveComm::consumed().
};

class Comm {
 public:
  /// Registers memory that this comm sends from or receives into; deregisters it when destroyed.
  class CommRegistration {
   public:
    explicit CommRegistration(Comm& comm) : comm_(&comm) {}
    CommRegistration(const CommRegistration&) = delete;
    CommRegistration& operator=(const CommRegistration&) = delete;
    ~CommRegistration();
    void* handle() const noexcept { return handle_.value_or(nullptr); }

   private:
    friend class Comm;
    Comm* comm_;
    std::optional<void*> handle_;  // none: the plugin has not registered it
  };

  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  /// Registers memory. invalid_argument: the device does not take that type, or (TCPX) GPU memory
  /// is not at a multiple of 4 KiB.
  Result<std::unique_ptr<CommRegistration>> add_memory(void* data, std::size_t bytes,
                                                       abi::PointerType type);
  const Properties& properties() const noexcept { return plugin_->devices()[device_]; }
  const Plugin& plugin() const noexcept { return *plugin_; }
  void* raw() const noexcept { return comm_; }
  std::size_t in_flight() const noexcept { return std::max(requests_.size(), unconsumed_); }

  /// Returns the oldest request if it is complete. None: not yet, or there is no request.
  Result<std::optional<Done>> test();

 protected:
  Comm(std::shared_ptr<Plugin> plugin, std::size_t device, void* comm)
      : plugin_(std::move(plugin)), device_(device), comm_(comm) {}
  ~Comm() = default;
  Status room(std::size_t bytes) const;
  /// Gives the last of `requests_` its handle; removes it if the plugin has not begun it.
  Status began(int result, const char* function, void* request);

  struct CommRequest {
    void* request;
    std::size_t bytes;  ///< At most.
    std::uint64_t cookie;
  };
  const std::shared_ptr<Plugin> plugin_;  // shared with other comms
  const std::size_t device_;
  void* const comm_;
  std::deque<CommRequest> requests_;
  std::size_t unconsumed_ = 0;  // receives begun and not yet consumed
};

class SendComm : public Comm {
 public:
  SendComm(std::shared_ptr<Plugin> plugin, std::size_t device, void* comm)
      : Comm(std::move(plugin), device, comm) {}
  SendComm(const SendComm&) = delete;
  SendComm& operator=(const SendComm&) = delete;
  ~SendComm() { (void)plugin_->net().close_send(comm_); }

  /// Begins a send. no_resource: nothing was begun, try again after test().
  Status send(const void* data, std::size_t bytes, int tag, const CommRegistration& memory,
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

  /// Begins a receive of at most `bytes`, at least what the peer sends with that tag. no_resource
  /// as above.
  Status receive(void* data, std::size_t bytes, int tag, const CommRegistration& memory,
                 std::uint64_t cookie);
  /// Begins to make data received into GPU memory visible there. Null: it is visible. The request
  /// is tested by flushed().
  Result<void*> flush(void* data, std::size_t bytes, const CommRegistration& memory);
  Result<bool> flushed(void* request);
  /// Reports to the plugin that the data of a completed receive was read or moved. Called in the
  /// order of the receives.
  Status consumed(const Done& done);
  /// Returns what kernels need to unpack; null if nothing is to be unpacked.
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

  /// Returns what a PendingConnect elsewhere takes.
  const Handle& handle() const noexcept { return handle_; }
  /// Returns null while no peer has connected.
  Result<std::unique_ptr<ReceiveComm>> accept();

 private:
  Listener(std::shared_ptr<Plugin> plugin, std::size_t device)
      : plugin_(std::move(plugin)), device_(device) {}

  const std::shared_ptr<Plugin> plugin_;  // shared with the comms
  const std::size_t device_;
  void* comm_ = nullptr;
  Handle handle_{};
};

/// Connects to a Listener. If it is destroyed before it has its comm, the plugin keeps its state:
/// the ABI has no call to end a connect.
class PendingConnect {
 public:
  static Result<std::unique_ptr<PendingConnect>> open(std::shared_ptr<Plugin> plugin, int device,
                                                      std::span<const std::byte> handle);
  PendingConnect(const PendingConnect&) = delete;
  PendingConnect& operator=(const PendingConnect&) = delete;
  ~PendingConnect() = default;

  /// Returns null while the other side has not accepted.
  Result<std::unique_ptr<SendComm>> connect();

 private:
  PendingConnect(std::shared_ptr<Plugin> plugin, std::size_t device)
      : plugin_(std::move(plugin)), device_(device) {}

  const std::shared_ptr<Plugin> plugin_;  // shared with the comm
  const std::size_t device_;
  alignas(16) Handle handle_{};  // the plugin writes there between attempts
};

}  // namespace linkspan::transport::nccl_net
