// tests/unit/c_api_fixture.hpp - handles of linkspan.h that free themselves, and what tests ask of
// a failure.
//
// Threads: as linkspan.h says.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>

#include "linkspan/linkspan.h"

namespace linkspan::test {

inline constexpr std::int64_t kSecond = 1'000'000'000, kLong = 20 * kSecond;

#define EXPECT_OK(call) EXPECT_EQ(call, LINKSPAN_OK) << linkspan_last_error()
#define ASSERT_OK(call) ASSERT_EQ(call, LINKSPAN_OK) << linkspan_last_error()

/// A handle that frees itself; `&` of it is where a call puts one.
template <class T, void (*Free)(T*)>
class Owned {
 public:
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { Free(is_); }
  T** operator&() {  // NOLINT(google-runtime-operator): as C takes it
    Free(std::exchange(is_, nullptr));
    return &is_;
  }
  operator T*() const { return is_; }  // NOLINT(google-explicit-constructor): likewise

 private:
  T* is_ = nullptr;
};
using EngineC = Owned<linkspan_engine, linkspan_engine_free>;
using PeerC = Owned<linkspan_peer, linkspan_peer_free>;
using RegionC = Owned<linkspan_region, linkspan_region_free>;
using RemoteC = Owned<linkspan_remote_region, linkspan_remote_region_free>;
using SetC = Owned<linkspan_region_set, linkspan_region_set_free>;
using PreparedC = Owned<linkspan_prepared, linkspan_prepared_free>;
using CapturedC = Owned<linkspan_captured_transfer, linkspan_captured_transfer_free>;
using TransferC = Owned<linkspan_transfer, linkspan_transfer_free>;
using FutureC = Owned<linkspan_future, linkspan_future_free>;
using QueueC = Owned<linkspan_completion_queue, linkspan_completion_queue_free>;
using NotificationsC = Owned<linkspan_notifications, linkspan_notifications_free>;
using ExplanationC = Owned<linkspan_explanation, linkspan_explanation_free>;

inline bool says(const std::string& part) {
  return std::string(linkspan_last_error()).find(part) != std::string::npos;
}

inline std::string taken(char* text) {
  std::string out = text == nullptr ? "(null)" : text;
  linkspan_text_free(text);
  return out;
}

inline void quiet_logs(void*, int, const char*, std::size_t) {}

inline linkspan_engine_options options_of(const char* name) {
  linkspan_engine_options out = LINKSPAN_ENGINE_OPTIONS_INIT;
  out.name = name;
  out.use_gpu = 0;
  out.log = quiet_logs;
  return out;
}

}  // namespace linkspan::test
