// nixl/abi.hpp - what a backend plugin shares with libnixl: layouts and the order of virtual
// functions, as NIXL 1.0.1 to 1.5.1 have them.
//
// Our own declarations: the wheels ship no header, and a plugin needs no symbol of libnixl. Names
// of types are ours; those of virtual functions are NIXL's.
// Off the path of a byte.
// Threads: NIXL calls a backend by several threads at once unless its user chose a lock.
// Invariants: sizes are checked at the end of the file; is_known() checks the rest at run time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace linkspan::nixl::abi {

enum class Memory : int { dram, vram, block, object, file };
enum class Direction : int { read, write };
enum class Answer : int {
  in_progress = 1,
  success = 0,
  invalid_argument = -2,
  backend_error = -3,
  not_found = -4,
  mismatch = -5,
  not_allowed = -6,
  repost_active = -7,
  unsupported = -9,
  remote_disconnect = -10,
  canceled = -11,
};

using Parameters = std::unordered_map<std::string, std::string>;
using Memories = std::vector<Memory>;
/// The name of the sending agent, and the message.
using Notifications = std::vector<std::pair<std::string, std::string>>;

struct Descriptor {
  std::uintptr_t address;
  std::size_t bytes;
  std::uint64_t device;
};
struct DescriptorWithText : Descriptor {
  std::string text;
};
/// Identifies registered memory. `is_private` is true for the agent's own, false for a peer's.
struct Handle {
  explicit Handle(bool own) : is_private(own) {}
  virtual ~Handle() = default;

  bool is_private;
};
struct DescriptorWithHandle : Descriptor {
  Handle* handle;
};
struct RemoteDescriptor : DescriptorWithHandle {
  std::string agent;
};
template <class T>
struct DescriptorList {
  virtual ~DescriptorList() = default;

  Memory memory{};
  std::vector<T> descriptors;
};
using TransferList = DescriptorList<DescriptorWithHandle>;

struct Request {
  virtual ~Request() = default;
};
struct OptionalArguments {
  std::string notification;
  bool has_notification;
  std::string custom;
};
struct StartArguments {
  std::string agent;
  std::string type;  ///< The name of the plugin's file: libplugin_<type>.so.
  Parameters* parameters;
  bool progress_thread;
  std::uint64_t progress_delay_us;
  int thread_sync;
  bool telemetry;
};
struct CostArguments;

class Backend {
 public:
  explicit Backend(const StartArguments& start)
      : type_(start.type),
        parameters_(*start.parameters),
        agent_(start.agent),
        telemetry_(start.telemetry) {}
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  // The order is the ABI. NOLINTBEGIN(readability-identifier-naming)
  virtual bool supportsRemote() const = 0;
  virtual bool supportsLocal() const = 0;
  virtual bool supportsNotif() const = 0;
  virtual Memories getSupportedMems() const = 0;
  virtual Answer registerMem(const DescriptorWithText& memory, const Memory& kind,
                             Handle*& out) = 0;
  virtual Answer deregisterMem(Handle* memory) = 0;
  virtual Answer connect(const std::string& agent) = 0;
  virtual Answer disconnect(const std::string& agent) = 0;
  virtual Answer unloadMD(Handle* memory) = 0;
  virtual Answer prepXfer(const Direction& direction, const TransferList& local,
                          const TransferList& remote, const std::string& agent, Request*& out,
                          const OptionalArguments* more) const = 0;
  virtual Answer postXfer(const Direction& direction, const TransferList& local,
                          const TransferList& remote, const std::string& agent, Request*& request,
                          const OptionalArguments* more) const = 0;
  virtual Answer checkXfer(Request* request) const = 0;
  virtual Answer releaseReqH(Request* request) const = 0;
  virtual Answer prepMemView(const DescriptorList<RemoteDescriptor>& /*remote*/, void*& /*out*/,
                             const OptionalArguments* /*more*/) const {
    return Answer::unsupported;
  }
  virtual Answer prepMemView(const TransferList& /*local*/, void*& /*out*/,
                             const OptionalArguments* /*more*/) const {
    return Answer::unsupported;
  }
  virtual void releaseMemView(void* /*view*/) const {}
  virtual Answer getPublicData(const Handle* /*memory*/, std::string& /*out*/) const {
    return Answer::backend_error;
  }
  virtual Answer getConnInfo(std::string& /*out*/) const { return Answer::backend_error; }
  virtual Answer loadRemoteConnInfo(const std::string& /*agent*/, const std::string& /*text*/) {
    return Answer::backend_error;
  }
  virtual Answer loadRemoteMD(const DescriptorWithText& /*memory*/, const Memory& /*kind*/,
                              const std::string& /*agent*/, Handle*& /*out*/) {
    return Answer::backend_error;
  }
  virtual Answer loadLocalMD(Handle* /*memory*/, Handle*& /*out*/) { return Answer::backend_error; }
  virtual Answer getNotifs(Notifications& /*out*/) { return Answer::backend_error; }
  virtual Answer genNotif(const std::string& /*agent*/, const std::string& /*message*/) const {
    return Answer::backend_error;
  }
  virtual Answer queryMem(const DescriptorList<DescriptorWithText>& /*memories*/,
                          std::vector<std::optional<Parameters>>& /*out*/) const {
    return Answer::unsupported;
  }
  virtual Answer estimateXferCost(const Direction& /*direction*/, const TransferList& /*local*/,
                                  const TransferList& /*remote*/, const std::string& /*agent*/,
                                  Request* const& /*request*/,
                                  std::chrono::microseconds& /*duration*/,
                                  std::chrono::microseconds& /*margin*/, int& /*method*/,
                                  const CostArguments* /*more*/) const {
    return Answer::unsupported;
  }
  // NOLINTEND(readability-identifier-naming)

 protected:
  std::string type_;
  Parameters parameters_;

 private:
  std::vector<std::uint64_t> telemetry_events_;  // NIXL's own, whose layout changed: never touched
  std::mutex telemetry_mutex_;

 protected:
  bool failed_ = false;  ///< True after the constructor: NIXL destroys the backend, and says so.
  const std::string agent_;
  const bool telemetry_;
};

struct Plugin {
  int version;  ///< 1, also of releases with another order of functions.
  Backend* (*create)(const StartArguments*);
  void (*destroy)(Backend*);
  const char* (*name)();
  const char* (*plugin_version)();
  Parameters (*options)();
  Memories (*memories)();
};

/// Returns true if the two names and the pointer of `start` lie where this file declares them and
/// the type is `name`, so that a NIXL with another layout is recognised. Follows no pointer before
/// it was compared. `name` has at most 15 characters, so std::string has it inside.
bool is_known(const StartArguments* start, const std::string& name) noexcept;

static_assert(sizeof(Backend) == 168 + sizeof(std::mutex) && sizeof(StartArguments) == 96);
static_assert(sizeof(Descriptor) == 24 && sizeof(DescriptorWithHandle) == 32);
static_assert(sizeof(DescriptorWithText) == 56 && sizeof(RemoteDescriptor) == 64);
static_assert(sizeof(TransferList) == 40 && sizeof(OptionalArguments) == 72);
static_assert(sizeof(Handle) == 16 && sizeof(Request) == 8 && sizeof(Plugin) == 56);

}  // namespace linkspan::nixl::abi
