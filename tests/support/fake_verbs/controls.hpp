// tests/support/fake_verbs/controls.hpp - how a test makes the simulated network cards of its
// process worse, and what they count.
//
// Settings and counters have the names of settings.hpp; the variables of the environment there
// serve processes that a test starts. Devices are counted as ibv_get_device_list() does. Threads:
// any thread.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <type_traits>

namespace linkspan::test {

struct FakeVerbs {
  /// Sets a setting ("late_us"); returns 0, or EINVAL for an unknown name.
  int (*set)(const char* name, long long value) = nullptr;
  /// Returns a counter ("doorbells") since the last reset; all bits set for an unknown name.
  unsigned long long (*count)(const char* name) = nullptr;
  /// Counters are 0, settings are the environment's, nothing is held, and lost devices and ports
  /// work again. Queue pairs that erred stay so.
  void (*reset)() = nullptr;
  /// The device goes away: IBV_EVENT_DEVICE_FATAL, its queue pairs err, its calls answer EIO.
  void (*lose)(unsigned device) = nullptr;
  /// The port goes down or up, with its event. While it is down nothing is sent or received.
  void (*set_port)(unsigned device, int up) = nullptr;
  /// Its IPv4 address becomes another one, with IBV_EVENT_GID_CHANGE. Queue pairs that use the old
  /// one reach nothing.
  void (*change_gid)(unsigned device) = nullptr;
  /// Holds or releases a device: a held one starts no work request. Returns when none is in work.
  void (*hold)(unsigned device, int hold) = nullptr;
  /// Shows what was written to memory of simulated GPUs (gpu_late), as their driver does by
  /// cuFlushGPUDirectRDMAWrites if LINKSPAN_VERBS_LIBRARY names this library.
  void (*flush)() = nullptr;

  /// Finds the controls in a library that is loaded, or loads it. The members are null if it has
  /// none.
  static FakeVerbs find(const char* file = std::getenv("LINKSPAN_VERBS_LIBRARY")) {
    FakeVerbs found;
    void* const library = file != nullptr ? dlopen(file, RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (library == nullptr) return found;
    const auto ask = [library](const char* name, auto& function) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    };
    ask("fakeVerbsSet", found.set);
    ask("fakeVerbsCount", found.count);
    ask("fakeVerbsReset", found.reset);
    ask("fakeVerbsLose", found.lose);
    ask("fakeVerbsSetPort", found.set_port);
    ask("fakeVerbsChangeGid", found.change_gid);
    ask("fakeVerbsHold", found.hold);
    ask("fakeVerbsFlush", found.flush);
    return found;
  }
  explicit operator bool() const noexcept { return hold != nullptr; }
};

}  // namespace linkspan::test
