// transport/nccl_net/net.hpp - a network plugin's function table of any version behind one
// interface.
//
// Hides what differs between versions (argument lists, int sizes, contexts) and nothing else.
// Results are the plugin's numbers; a null comm or request means "try again". comm.hpp keeps the
// rules of comms, plugin.hpp loads the library.
// Threads: all calls for one comm by one thread at a time, with the comm's GPU current.
#pragma once

#include <memory>
#include <string>

#include "transport/nccl_net/abi.hpp"

namespace linkspan::transport::nccl_net {

/// Describes a device, with defaults where the version does not say.
struct Properties {
  std::string name, pci_path;
  std::uint64_t guid = 0;
  int pointer_support = 0;  ///< Bits of abi::PointerType.
  bool registration_is_global = false, force_flush = false;
  int speed_mbps = 0, port = 0;
  float latency_us = 0;
  int max_comms = 0, max_receives = 1;
  int device_type = abi::kDeviceHost, device_version = 0;
  /// Maximum size of a message; below 2 GiB, because test() reports sizes as int.
  std::size_t max_bytes = 0;

  bool supports(abi::PointerType type) const noexcept { return (pointer_support & type) != 0; }
};

class Net {
 public:
  Net() = default;
  Net(const Net&) = delete;
  Net& operator=(const Net&) = delete;
  virtual ~Net() = default;

  virtual int version() const noexcept = 0;
  virtual const char* name() const noexcept = 0;
  /// Returns how many requests a comm takes at once, as far as the version says; TCPX takes 16.
  virtual int max_requests() const noexcept = 0;
  virtual bool has_consumed() const noexcept = 0;

  virtual int init(abi::Logger logger) = 0;
  virtual int finalize() = 0;  ///< Does nothing before version 11.
  virtual int devices(int& count) = 0;
  virtual int properties(int device, Properties& into) = 0;
  /// `handle` has abi::kHandleBytes.
  virtual int listen(int device, void* handle, void*& comm) = 0;
  /// Requires the same handle at the same address in each attempt: a plugin keeps state there.
  virtual int connect(int device, void* handle, void*& comm, abi::DeviceHandle*& kernels) = 0;
  virtual int accept(void* listening, void*& comm, abi::DeviceHandle*& kernels) = 0;
  virtual int register_memory(void* comm, void* data, std::size_t bytes, abi::PointerType type,
                              void*& handle) = 0;
  virtual int deregister(void* comm, void* handle) = 0;
  virtual int send(void* comm, void* data, std::size_t bytes, int tag, void* handle,
                   void*& request) = 0;
  /// Receives into one buffer, which all plugins support.
  virtual int receive(void* comm, void* data, std::size_t bytes, int tag, void* handle,
                      void*& request) = 0;
  virtual int flush(void* comm, void* data, int bytes, void* handle, void*& request) = 0;
  virtual int test(void* request, bool& done, int& bytes) = 0;
  virtual int consumed(void* comm, void* request) = 0;
  virtual int close_send(void* comm) = 0;
  virtual int close_receive(void* comm) = 0;
  virtual int close_listen(void* comm) = 0;
};

/// Makes the interface of a table that dlsym() found for that version; the table outlives it. Null:
/// unknown version, or an entry that every plugin has is null.
std::unique_ptr<Net> make_net(int version, const void* table);

}  // namespace linkspan::transport::nccl_net
