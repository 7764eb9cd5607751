// transport/verbs/device.hpp - an RDMA device that is open, and its ports as rails.
//
// Off the path of a byte, but for what queue pairs and registrations borrow.
// Threads: any thread; immutable after open() but for what events change.
// Invariants: queue pairs and registrations keep their device open.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/mutex.hpp"
#include "transport/verbs/library.hpp"
#include "transport/verbs/options.hpp"

namespace linkspan::transport::verbs {

class VerbsDevice {
 public:
  static Result<std::shared_ptr<VerbsDevice>> open(const Library& library, IbvDevice* device);
  VerbsDevice(const VerbsDevice&) = delete;
  VerbsDevice& operator=(const VerbsDevice&) = delete;
  ~VerbsDevice();

  const Library& library() const noexcept { return library_; }
  IbvContext* context() const noexcept { return context_; }
  IbvPd* pd() const noexcept { return pd_; }
  const IbvDeviceAttr& attributes() const noexcept { return attributes_; }
  const std::string& name() const noexcept { return name_; }
  /// Returns its path in sysfs (base/pci.hpp), or nothing.
  const std::string& pci_path() const noexcept { return pci_path_; }

  /// Handles the events that wait, such as that of a port that is down. Returns at once.
  void handle_events() noexcept;
  /// Returns why the port carries nothing, or OK.
  Status usable(std::uint8_t port) const;

 private:
  VerbsDevice(const Library& library, IbvContext* context, std::string name, std::string pci_path)
      : library_(library),
        context_(context),
        name_(std::move(name)),
        pci_path_(std::move(pci_path)) {}
  Status set_up();
  void handle(const IbvAsyncEvent& event) noexcept;

  const Library& library_;
  IbvContext* const context_;
  const std::string name_, pci_path_;
  IbvPd* pd_ = nullptr;
  IbvDeviceAttr attributes_{};
  base::Mutex events_mutex_;                  // one thread handles events
  std::atomic<bool> failed_{false};           // the device is lost
  std::atomic<std::uint64_t> ports_down_{0};  // bit of each port below 64
};

/// An active port, and how peers reach it.
struct Rail {
  std::shared_ptr<VerbsDevice> device;  ///< Shared with its other rails, queue pairs and so on.
  std::uint8_t port = 1;
  std::uint8_t gid_index = 0;
  IbvGid gid{};
  std::uint16_t lid = 0;
  std::uint16_t pkey_index = 0;
  IbvLinkLayer link = kLinkUnspecified;
  IbvMtu mtu = kMtu1024;
  std::uint64_t max_message = 0;  ///< Bytes of a request, at most.

  std::string name() const { return device->name() + " port " + std::to_string(port); }
};

/// Returns the port as a rail, with its present GID. not_found: it is not active, or lacks what the
/// settings ask for. Takes milliseconds.
Result<Rail> find_rail(const std::shared_ptr<VerbsDevice>& device, std::uint8_t port,
                       const VerbsSettings& settings);

/// Opens the devices with an active port that the user wants. Returns none if there is none.
/// not_found: one that the user named is not here, or not active. Others that cannot be used are
/// logged.
Result<std::vector<Rail>> open_rails(const Library& library, const VerbsSettings& settings,
                                     const base::Log& log);

}  // namespace linkspan::transport::verbs
