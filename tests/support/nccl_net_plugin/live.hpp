// tests/support/nccl_net_plugin/live.hpp - what the plugin has handed out and not taken back: a
// pointer of the caller's is looked up before it is used.
//
// Threads: any thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace linkspan::nccl_test {

struct Request;
class SendComm;
class ReceiveComm;
class Listener;
class Connecting;
struct Context;

template <class Pointer>
class Known {
 public:
  using Value = typename std::pointer_traits<Pointer>::element_type;

  void add(const void* handle, Pointer value) {
    const std::lock_guard lock(mutex_);
    known_[handle] = std::move(value);
  }
  /// Returns the value; null if the handle was not given out, or was taken back.
  Value* find(const void* handle) const {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(handle);
    return found == known_.end() ? nullptr : std::to_address(found->second);
  }
  /// Returns what was added; null if nothing was.
  Pointer remove(const void* handle) {
    const std::lock_guard lock(mutex_);
    const auto found = known_.find(handle);
    if (found == known_.end()) return {};
    Pointer value = std::move(found->second);
    known_.erase(found);
    return value;
  }
  template <class Predicate>
  bool any(Predicate predicate) const {
    const std::lock_guard lock(mutex_);
    for (const auto& [handle, value] : known_)
      if (predicate(*value)) return true;
    return false;
  }

 private:
  mutable std::mutex mutex_;
  std::map<const void*, Pointer> known_;
};

struct Live {
  Known<Request*> requests;
  Known<std::unique_ptr<SendComm>> sends;
  Known<std::unique_ptr<ReceiveComm>> receives;
  Known<std::unique_ptr<Listener>> listeners;
  Known<std::unique_ptr<Connecting>> connecting;  // by their handles' places
  Known<std::unique_ptr<Context>> contexts;
};

/// Returns this process's Live, which is never destroyed.
Live& live();

}  // namespace linkspan::nccl_test
