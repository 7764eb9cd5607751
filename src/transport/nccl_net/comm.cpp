#include "transport/nccl_net/comm.hpp"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <utility>

namespace linkspan::transport::nccl_net {
namespace {

constexpr std::uint64_t kCommUnpackAlignment = 4096;

Status check_device(const Plugin& plugin, int device) {
  if (device >= 0 && static_cast<std::size_t>(device) < plugin.devices().size()) return {};
  return {Code::invalid_argument, Scope::request,
          "device " + std::to_string(device) + ": " + plugin.name() + " has " +
              std::to_string(plugin.devices().size())};
}

const char* name_of(abi::PointerType type) {
  return type == abi::kHost ? "host" : type == abi::kCuda ? "GPU" : "DMA-BUF";
}

}  // namespace

Comm::CommRegistration::~CommRegistration() {
  if (handle_) (void)comm_->plugin_->net().deregister(comm_->comm_, *handle_);
}

Result<std::unique_ptr<Comm::CommRegistration>> Comm::add_memory(void* data, std::size_t bytes,
                                                                 abi::PointerType type) {
  const Properties& device = properties();
  if (!device.supports(type))
    return Status(
        Code::unsupported, Scope::transport,
        plugin_->name() + ", device " + device.name + ", takes no " + name_of(type) + " memory");
  if (type == abi::kCuda && device.device_type == abi::kDeviceUnpack &&
      reinterpret_cast<std::uintptr_t>(data) % kCommUnpackAlignment != 0)
    return Status(Code::invalid_argument, Scope::request,
                  "GPU memory for " + plugin_->name() +
                      " has to begin at a multiple of 4096 bytes: allocate 4096 more and round up");
  auto made = std::make_unique<CommRegistration>(*this);  // before the plugin has something to lose
  void* handle = nullptr;
  const int result = plugin_->net().register_memory(comm_, data, bytes, type, handle);
  if (Status status = plugin_->status(result, "regMr"); !status.ok()) return status;
  made->handle_ = handle;
  return made;
}

Status Comm::room(std::size_t bytes) const {
  if (bytes > properties().max_bytes)
    return {Code::invalid_argument, Scope::request,
            "a message of " + std::to_string(bytes) + " bytes: " + plugin_->name() +
                " takes at most " + std::to_string(properties().max_bytes)};
  if (in_flight() >= static_cast<std::size_t>(plugin_->max_requests(static_cast<int>(device_))))
    return {Code::no_resource, Scope::transport, "as many requests as the plugin takes"};
  return {};
}

Status Comm::began(int result, const char* function, void* request) {
  Status status = plugin_->status(result, function);
  if (status.ok() && request == nullptr)
    status = {Code::no_resource, Scope::transport, "the plugin takes no request now"};
  if (status.ok())
    requests_.back().request = request;
  else
    requests_.pop_back();
  return status;
}

Result<std::optional<Done>> Comm::test() {
  if (requests_.empty()) return std::optional<Done>();
  const CommRequest& oldest = requests_.front();
  bool done = false;
  int bytes = 0;
  if (Status status = plugin_->status(plugin_->net().test(oldest.request, done, bytes), "test");
      !status.ok())
    return status;
  if (!done) return std::optional<Done>();
  if (bytes < 0 || static_cast<std::size_t>(bytes) > oldest.bytes)
    return Status(Code::corrupt, Scope::transport,
                  plugin_->name() + " says that " + std::to_string(bytes) +
                      " bytes have come where " + std::to_string(oldest.bytes) + " have room");
  const Done over{oldest.cookie, static_cast<std::size_t>(bytes), oldest.request};
  requests_.pop_front();
  return std::optional<Done>(over);
}

Status SendComm::send(const void* data, std::size_t bytes, int tag, const CommRegistration& memory,
                      std::uint64_t cookie) {
  if (Status status = room(bytes); !status.ok()) return status;
  requests_.push_back({nullptr, bytes, cookie});  // before the plugin has begun what could be lost
  void* request = nullptr;
  const int result =
      plugin_->net().send(comm_, const_cast<void*>(data), bytes, tag, memory.handle(), request);
  return began(result, "isend", request);
}

Status ReceiveComm::receive(void* data, std::size_t bytes, int tag, const CommRegistration& memory,
                            std::uint64_t cookie) {
  if (Status status = room(bytes); !status.ok()) return status;
  requests_.push_back({nullptr, bytes, cookie});  // before the plugin has begun what could be lost
  void* request = nullptr;
  const int result = plugin_->net().receive(comm_, data, bytes, tag, memory.handle(), request);
  Status status = began(result, "irecv", request);
  if (status.ok() && plugin_->net().has_consumed()) ++unconsumed_;
  return status;
}

Result<void*> ReceiveComm::flush(void* data, std::size_t bytes, const CommRegistration& memory) {
  void* request = nullptr;
  if (unpacks() || bytes == 0) return request;  // TCPX must not be flushed
  const int size = static_cast<int>(std::min(bytes, properties().max_bytes));
  const int result = plugin_->net().flush(comm_, data, size, memory.handle(), request);
  if (Status status = plugin_->status(result, "iflush"); !status.ok()) return status;
  return request;
}

Result<bool> ReceiveComm::flushed(void* request) {
  if (request == nullptr) return true;
  bool done = false;
  int bytes = 0;
  if (Status status = plugin_->status(plugin_->net().test(request, done, bytes), "test");
      !status.ok())
    return status;
  return done;
}

Status ReceiveComm::consumed(const Done& done) {
  if (!plugin_->net().has_consumed()) return {};
  if (unconsumed_ <= requests_.size())
    return {Code::invalid_argument, Scope::request, "no receive is done and not yet consumed"};
  const int result = plugin_->net().consumed(comm_, done.request);
  if (result == abi::kSuccess) --unconsumed_;
  return plugin_->status(result, "irecvConsumed");
}

Result<std::unique_ptr<Listener>> Listener::open(std::shared_ptr<Plugin> plugin, int device) {
  if (Status status = check_device(*plugin, device); !status.ok()) return status;
  auto listener =
      std::unique_ptr<Listener>(new Listener(std::move(plugin), static_cast<std::size_t>(device)));
  const Plugin& p = *listener->plugin_;
  const int result = p.net().listen(device, listener->handle_.data(), listener->comm_);
  if (Status status = p.status(result, "listen"); !status.ok()) return status;
  if (listener->comm_ == nullptr)
    return Status(Code::internal, Scope::transport, p.name() + ": listen gave no comm");
  return listener;
}

Result<std::unique_ptr<ReceiveComm>> Listener::accept() {
  void* comm = nullptr;
  abi::DeviceHandle* kernels = nullptr;
  const int result = plugin_->net().accept(comm_, comm, kernels);
  if (Status status = plugin_->status(result, "accept"); !status.ok()) return status;
  if (comm == nullptr) return std::unique_ptr<ReceiveComm>();
  try {
    return std::make_unique<ReceiveComm>(plugin_, device_, comm, kernels);
  } catch (const std::exception&) {
    (void)plugin_->net().close_receive(comm);
    throw;
  }
}

Result<std::unique_ptr<PendingConnect>> PendingConnect::open(std::shared_ptr<Plugin> plugin,
                                                             int device,
                                                             std::span<const std::byte> handle) {
  if (Status status = check_device(*plugin, device); !status.ok()) return status;
  if (handle.size() != abi::kHandleBytes)
    return Status(Code::invalid_argument, Scope::request,
                  "a handle of " + std::to_string(handle.size()) + " bytes: it has to have 128");
  auto pending_connect = std::unique_ptr<PendingConnect>(
      new PendingConnect(std::move(plugin), static_cast<std::size_t>(device)));
  std::copy(handle.begin(), handle.end(), pending_connect->handle_.begin());
  return pending_connect;
}

Result<std::unique_ptr<SendComm>> PendingConnect::connect() {
  void* comm = nullptr;
  abi::DeviceHandle* kernels = nullptr;
  const int result =
      plugin_->net().connect(static_cast<int>(device_), handle_.data(), comm, kernels);
  if (Status status = plugin_->status(result, "connect"); !status.ok()) return status;
  if (comm == nullptr) return std::unique_ptr<SendComm>();
  try {
    return std::make_unique<SendComm>(plugin_, device_, comm);
  } catch (const std::exception&) {
    (void)plugin_->net().close_send(comm);
    throw;
  }
}

}  // namespace linkspan::transport::nccl_net
