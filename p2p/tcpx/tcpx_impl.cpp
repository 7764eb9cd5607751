#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "p2p/tcpx/tcpx_interface.h"
#include "transport/nccl_net/plugin_selection.hpp"

namespace {

using linkspan::Result;
using linkspan::transport::nccl_net::Plugin;
namespace nccl_net = linkspan::transport::nccl_net;
namespace abi = nccl_net::abi;

std::string& last_error() {
  thread_local std::string text;
  return text;
}

/// Returns the process's plugin. Null: it was not loaded; last_error() says why.
const Plugin* plugin() {
  static const Result<std::shared_ptr<Plugin>> loaded = nccl_net::load_selected({});
  if (loaded.ok()) return loaded->get();
  last_error() = loaded.status().what();
  return nullptr;
}

/// A call of the plugin's, and what it answers.
template <class Call>
int ask(const char* function, const Call& call) {
  const Plugin* const p = plugin();
  if (p == nullptr) return abi::kSystem;
  const int result = call(p->net());
  if (result != abi::kSuccess) last_error() = p->status(result, function).what();
  return result;
}

int refuse(int result, std::string why) {
  last_error() = std::move(why);
  return result;
}

bool unpacks() {
  const Plugin* const p = plugin();
  return p != nullptr &&
         std::any_of(p->devices().begin(), p->devices().end(),
                     [](const auto& each) { return each.device_type == abi::kDeviceUnpack; });
}

}  // namespace

int tcpx_get_device_count() {
  const Plugin* const p = plugin();
  return p == nullptr ? -1 : static_cast<int>(p->devices().size());
}

const char* tcpx_last_error() { return last_error().c_str(); }

int tcpx_listen(int device, void* handle, void** listen_comm) {
  *listen_comm = nullptr;
  return ask("listen", [&](auto& net) { return net.listen(device, handle, *listen_comm); });
}

int tcpx_accept_v5(void* listen_comm, void** receive_comm, void** device_handle) {
  *receive_comm = nullptr;
  abi::DeviceHandle* kernels = nullptr;
  const int result =
      ask("accept", [&](auto& net) { return net.accept(listen_comm, *receive_comm, kernels); });
  if (device_handle != nullptr) *device_handle = kernels;
  return result;
}

int tcpx_connect_v5(int device, void* handle, void** send_comm, void** device_handle) {
  *send_comm = nullptr;
  abi::DeviceHandle* kernels = nullptr;
  const int result =
      ask("connect", [&](auto& net) { return net.connect(device, handle, *send_comm, kernels); });
  if (device_handle != nullptr) *device_handle = kernels;
  return result;
}

int tcpx_reg_mr(void* comm, void* data, std::size_t bytes, int type, void** registration) {
  *registration = nullptr;
  if (type != TCPX_PTR_HOST && type != TCPX_PTR_CUDA)
    return refuse(abi::kInvalidArgument,
                  "type " + std::to_string(type) + ": TCPX_PTR_HOST or TCPX_PTR_CUDA is wanted");
  if (type == TCPX_PTR_CUDA && reinterpret_cast<std::uintptr_t>(data) % 4096 != 0 && unpacks())
    return refuse(abi::kInternal,
                  "CUDA memory has to begin at a multiple of 4096 bytes: allocate 4096 more and "
                  "round up");
  return ask("regMr", [&](auto& net) {
    return net.register_memory(comm, data, bytes, static_cast<abi::PointerType>(type),
                               *registration);
  });
}

int tcpx_dereg_mr(void* comm, void* registration) {
  return ask("deregMr", [&](auto& net) { return net.deregister(comm, registration); });
}

int tcpx_isend(void* send_comm, void* data, int bytes, int tag, void* registration,
               void** request) {
  *request = nullptr;
  if (bytes < 0) return refuse(abi::kInvalidArgument, std::to_string(bytes) + " bytes");
  return ask("isend", [&](auto& net) {
    return net.send(send_comm, data, static_cast<std::size_t>(bytes), tag, registration, *request);
  });
}

int tcpx_irecv(void* receive_comm, int count, void** data, int* bytes, int* tags,
               void** registrations, void** request) {
  *request = nullptr;
  if (count != 1 || *bytes < 0)
    return refuse(abi::kInvalidArgument, std::to_string(count) + " buffers, the first of " +
                                             std::to_string(count < 1 ? 0 : *bytes) +
                                             " bytes: one is wanted");
  return ask("irecv", [&](auto& net) {
    return net.receive(receive_comm, *data, static_cast<std::size_t>(*bytes), *tags, *registrations,
                       *request);
  });
}

int tcpx_irecv_consumed(void* receive_comm, int count, void* request) {
  if (count != 1) return refuse(abi::kInvalidArgument, std::to_string(count) + " requests");
  return ask("irecvConsumed", [&](auto& net) { return net.consumed(receive_comm, request); });
}

int tcpx_test(void* request, int* done, int* bytes) {
  bool over = false;
  int size = 0;
  const int result = ask("test", [&](auto& net) { return net.test(request, over, size); });
  *done = over ? 1 : 0;
  if (bytes != nullptr) *bytes = size;
  return result;
}

int tcpx_close_send(void* send_comm) {
  return ask("closeSend", [&](auto& net) { return net.close_send(send_comm); });
}
int tcpx_close_recv(void* receive_comm) {
  return ask("closeRecv", [&](auto& net) { return net.close_receive(receive_comm); });
}
int tcpx_close_listen(void* listen_comm) {
  return ask("closeListen", [&](auto& net) { return net.close_listen(listen_comm); });
}
