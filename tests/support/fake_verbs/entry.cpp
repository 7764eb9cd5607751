// tests/support/fake_verbs/entry.cpp - the texts, the controls for tests, and the end.
#include <pthread.h>

#include <cerrno>
#include <cstring>

#include "tests/support/fake_verbs/fake_verbs.hpp"

namespace linkspan::transport::verbs::fake {
namespace {

/// The library is loaded as long as this lives.
struct Lifetime {
  Lifetime() noexcept {
    pthread_atfork(nullptr, nullptr, [] { world().forked = true; });
  }
  Lifetime(const Lifetime&) = delete;
  Lifetime& operator=(const Lifetime&) = delete;
  ~Lifetime() {
    World& w = world();
    if (w.forked) return;
    w.ended = true;
    const std::lock_guard lock(w.mutex);
    if (w.host == nullptr) return;
    w.host->segment().closed = 1;
    for (ContextObject* context : w.contexts) {
      context->stop = true;
      w.host->wake(context->index);
      if (context->thread.joinable()) context->thread.join();
    }
  }
};
const Lifetime kLifetime;

/// Tells all contexts of a device.
void tell(std::uint32_t device, IbvEventType type) {
  World& w = world();
  for (const ContextObject* context : w.contexts)
    if (context->device_index == device) add_event(*w.host, context->index, type, kPorts);
}

DeviceShared* device_at(std::uint32_t index) {
  return world().host != nullptr && index < kDevices ? &own_segment().devices[index] : nullptr;
}

}  // namespace

World& world() {
  static auto* const all = new World;
  return *all;
}

bool gone() { return world().forked || world().ended; }

Segment& own_segment() { return world().host->segment(); }

FAKE_VERBS_EXPORT int fakeVerbsSet(const char* name, long long value) {
  return set(name, value) ? 0 : EINVAL;
}

FAKE_VERBS_EXPORT unsigned long long fakeVerbsCount(const char* name) {
#define FAKE_VERBS_COUNT(each) \
  if (std::strcmp(name, #each) == 0) return counters().each;
  FAKE_VERBS_COUNTERS(FAKE_VERBS_COUNT)
#undef FAKE_VERBS_COUNT
  return ~0ULL;
}

FAKE_VERBS_EXPORT void fakeVerbsReset() {
#define FAKE_VERBS_ZERO(each) counters().each = 0;
  FAKE_VERBS_COUNTERS(FAKE_VERBS_ZERO)
#undef FAKE_VERBS_ZERO
#define FAKE_VERBS_DEFAULT(name, value) set(#name, value);
  FAKE_VERBS_SETTINGS(FAKE_VERBS_DEFAULT)
#undef FAKE_VERBS_DEFAULT
  read_settings();
  World& w = world();
  if (w.forked) return;
  const std::lock_guard lock(w.mutex);
  for (ContextObject* context : w.contexts) context->held = false;
  for (std::uint32_t i = 0; i < kDevices; ++i)
    if (DeviceShared* const device = device_at(i); device != nullptr)
      device->lost = device->port_down = 0;
}

FAKE_VERBS_EXPORT void fakeVerbsLose(unsigned device) { lose_device(device); }

FAKE_VERBS_EXPORT void fakeVerbsSetPort(unsigned index, int up) {
  World& w = world();
  const std::lock_guard lock(w.mutex);
  DeviceShared* const device = device_at(index);
  if (device == nullptr) return;
  const std::uint32_t down = up != 0 ? 0 : 1;
  if (device->port_down.exchange(down) != down)
    tell(index, down != 0 ? kEventPortErr : kEventPortActive);
}

FAKE_VERBS_EXPORT void fakeVerbsChangeGid(unsigned index) {
  World& w = world();
  const std::lock_guard lock(w.mutex);
  DeviceShared* const device = device_at(index);
  if (device == nullptr) return;
  device->generation.fetch_add(1);
  tell(index, kEventGidChange);
}

FAKE_VERBS_EXPORT void fakeVerbsHold(unsigned device, int hold) {
  World& w = world();
  const std::lock_guard lock(w.mutex);
  for (ContextObject* context : w.contexts) {
    if (context->device_index != device) continue;
    {
      const Turns::Call call(context->turns);
      context->held = hold != 0;
    }
    w.host->wake(context->index);
  }
}

FAKE_VERBS_EXPORT int ibv_fork_init() { return gone() ? EINVAL : 0; }

FAKE_VERBS_EXPORT const char* ibv_wc_status_str(IbvWcStatus status) {
  switch (status) {
    case kWcSuccess:
      return "success";
    case kWcLocLenErr:
      return "local length error";
    case kWcLocQpOpErr:
      return "local QP operation error";
    case kWcLocProtErr:
      return "local protection error";
    case kWcWrFlushErr:
      return "Work Request Flushed Error";
    case kWcRemInvReqErr:
      return "remote invalid request error";
    case kWcRemAccessErr:
      return "remote access error";
    case kWcRemOpErr:
      return "remote operation error";
    case kWcRetryExcErr:
      return "transport retry counter exceeded";
    case kWcRnrRetryExcErr:
      return "RNR retry counter exceeded";
    case kWcGeneralErr:
      return "general error";
    default:
      return "unknown";
  }
}

FAKE_VERBS_EXPORT const char* ibv_event_type_str(IbvEventType type) {
  switch (type) {
    case kEventCqErr:
      return "CQ error";
    case kEventQpFatal:
      return "local work queue catastrophic error";
    case kEventQpReqErr:
      return "invalid request local work queue error";
    case kEventQpAccessErr:
      return "local access violation work queue error";
    case kEventCommEst:
      return "communication established";
    case kEventDeviceFatal:
      return "local catastrophic error";
    case kEventPortActive:
      return "port active";
    case kEventPortErr:
      return "port error";
    case kEventGidChange:
      return "GID table change";
    default:
      return "unknown";
  }
}

}  // namespace linkspan::transport::verbs::fake
