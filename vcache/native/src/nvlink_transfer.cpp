// Implements the C functions: they return CUDA's numbers, and no exception leaves them.
#include "linkspan/nvlink_transfer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <new>
#include <system_error>

#include "vcache/native/src/background.hpp"

namespace linkspan::nvlink {
namespace {

struct Counts {
  std::atomic<std::uint64_t> transfers{0}, bytes{0}, failures{0}, staged{0};
};
Counts counts;

void count(std::uint64_t bytes, bool staged, int code) {
  if (code != NVLINK_TRANSFER_OK) {
    ++counts.failures;
    return;
  }
  ++counts.transfers;
  counts.bytes += bytes;
  counts.staged += staged ? 1 : 0;
}

/// Returns the one Background. Its transfers end when the process ends, except in a forked child,
/// which runs none, and on Windows, which has ended the thread by then.
Background& background() {
  static Background& only =
      *new Background([](const Copy& copy, int code) { count(copy.bytes(), copy.staged(), code); });
#if !defined(_WIN32)
  struct AtExit {
    const base::ForkWatch fork;
    AtExit() = default;
    AtExit(const AtExit&) = delete;
    AtExit& operator=(const AtExit&) = delete;
    ~AtExit() {
      if (!fork.forked()) only.end();
    }
  };
  static const AtExit end;
#endif
  return only;
}

using Text = std::array<char, 1024>;
/// Has the text of this thread's last failure. Is no string, because a failure without memory has a
/// text too.
thread_local Text last_error{};

/// Returns the Outcome of `act`, or makes one of its exception. A string allocates nothing for
/// texts as short as these.
template <class Act>
Outcome caught(const Act& act) noexcept {
  try {
    return act();
  } catch (const std::bad_alloc&) {
    return {NVLINK_TRANSFER_FAILED, "no memory"};
  } catch (const std::system_error&) {
    return {NVLINK_TRANSFER_FAILED, "no thread"};
  } catch (const std::exception&) {
    return {NVLINK_TRANSFER_FAILED, "a defect"};
  }
}

/// Runs `act` for the C function `name`, and reports how it failed.
template <class Act>
int guarded(const char* name, const Act& act) noexcept {
  const Outcome o = caught(act);
  if (o.ok() || o.code == NVLINK_TRANSFER_NOT_READY) return o.code;
  Text text{};
  (void)std::snprintf(text.data(), text.size(), "%s: %s", name, o.text.c_str());
  (void)caught([&]() -> Outcome {
    log(Level::error, text.data());
    return {};
  });
  last_error = text;  // after the callback's own calls
  return o.code;
}

/// Checks the request, then runs `act` on it in the source GPU's context, with the driver's stream.
template <class Act>
Outcome checked(const Side& source, const Side& target, std::uint64_t bytes, void* stream,
                Act act) {
  Outcome why;
  Gpus* const gpus = Gpus::get(why);
  if (gpus == nullptr) return why;
  Copy copy;
  if (Outcome o = Copy::prepare(*gpus, source, target, bytes, copy); !o.ok()) return o;
  const auto scope = copy.enter();
  if (!scope.ok()) return {NVLINK_TRANSFER_FAILED, scope.status().what()};
  cuda::CUstream handle = nullptr;
  if (Outcome o = copy.check_stream(stream, handle); !o.ok()) return o;
  return act(std::move(copy), handle);
}

Outcome transfer(const Side& source, const Side& target, std::uint64_t bytes, void* stream) {
  bool staged = false;
  const auto copy_all = [&](const Copy& copy, cuda::CUstream handle) {
    staged = copy.staged();
    if (Outcome begun = copy.submit(0, bytes, handle); !begun.ok()) return begun;
    return outcome(copy.driver(), copy.driver().cuStreamSynchronize(handle), "cuStreamSynchronize",
                   copy.name());
  };
  Outcome o = caught([&] { return checked(source, target, bytes, stream, copy_all); });
  count(bytes, staged, o.code);
  return o;
}

Outcome unknown(std::uint64_t id) {
  return {NVLINK_TRANSFER_INVALID_VALUE,
          "no transfer has the number " + std::to_string(id) + ", or its end was told"};
}

Outcome ask(std::uint64_t id, Duration wait, std::uint64_t* done_bytes) {
  Outcome end;
  std::uint64_t done = 0;
  if (!background().test(id, wait, end, done)) return unknown(id);
  if (done_bytes != nullptr) *done_bytes = done;
  return end;
}

/// Returns the text of a code of this library, also without a driver.
const char* own_text(int code) {
  switch (code) {
    case NVLINK_TRANSFER_OK:
      return "CUDA_SUCCESS: no error";
    case NVLINK_TRANSFER_INVALID_VALUE:
      return "CUDA_ERROR_INVALID_VALUE: invalid argument";
    case NVLINK_TRANSFER_INVALID_DEVICE_POINTER:
      return "NVLINK_TRANSFER_INVALID_DEVICE_POINTER: neither a handle nor a pointer";
    case NVLINK_TRANSFER_NO_DRIVER:
      return "NVLINK_TRANSFER_NO_DRIVER: no CUDA driver, or one older than 12.0";
    case NVLINK_TRANSFER_NO_DEVICE:
      return "CUDA_ERROR_NO_DEVICE: no GPU is visible";
    case NVLINK_TRANSFER_INVALID_DEVICE:
      return "CUDA_ERROR_INVALID_DEVICE: invalid device ordinal";
    case NVLINK_TRANSFER_INVALID_STREAM:
      return "CUDA_ERROR_INVALID_HANDLE: invalid handle of a stream or another object";
    case NVLINK_TRANSFER_NOT_READY:
      return "CUDA_ERROR_NOT_READY: the transfer goes on";
    case NVLINK_TRANSFER_CAPTURING:
      return "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: the stream records a graph";
    case NVLINK_TRANSFER_TIMED_OUT:
      return "NVLINK_TRANSFER_TIMED_OUT: the transfer ended at its deadline";
    case NVLINK_TRANSFER_CANCELED:
      return "NVLINK_TRANSFER_CANCELED: the transfer was canceled";
    default:
      return nullptr;
  }
}

/// Returns the driver's text for a number. Keeps it for ever, because the caller may expect static
/// text.
const char* describe(int code) {
  if (const char* own = own_text(code); own != nullptr) return own;
  static base::Mutex mutex;
  static auto& texts = *new std::map<int, std::string>;
  const base::MutexLock lock(mutex);
  const auto known = texts.find(code);
  if (known != texts.end()) return known->second.c_str();
  constexpr std::size_t kTexts = 4096;  // limits a caller that tries all numbers
  if (texts.size() >= kTexts) return "unknown error";
  Outcome why;
  Gpus* const gpus = Gpus::get(why);
  const char *name = nullptr, *words = nullptr;
  const auto number = static_cast<cuda::CUresult>(code);
  std::string text = "CUDA error " + std::to_string(code);
  if (gpus != nullptr && gpus->driver().cuGetErrorName(number, &name) == cuda::CUDA_SUCCESS &&
      name != nullptr) {
    text = name;
    if (gpus->driver().cuGetErrorString(number, &words) == cuda::CUDA_SUCCESS && words != nullptr)
      text += std::string(": ") + words;
  }
  return texts.emplace(code, std::move(text)).first->second.c_str();
}

}  // namespace
}  // namespace linkspan::nvlink

namespace nvlink = linkspan::nvlink;
using linkspan::nvlink::Outcome;
using linkspan::nvlink::Side;

int perform_direct_transfer(int source_gpu, uint64_t source_ptr, int target_gpu,
                            uint64_t target_ptr, uint64_t size_bytes, const void* src_ipc_handle,
                            unsigned src_ipc_handle_size, const void* dst_ipc_handle,
                            unsigned dst_ipc_handle_size, uint64_t src_offset_bytes,
                            uint64_t dst_offset_bytes, void* stream) {
  if (size_bytes == 0) return NVLINK_TRANSFER_OK;
  return nvlink::guarded("perform_direct_transfer", [&] {
    return nvlink::transfer(
        {"source", source_gpu, source_ptr, src_ipc_handle, src_ipc_handle_size, src_offset_bytes},
        {"target", target_gpu, target_ptr, dst_ipc_handle, dst_ipc_handle_size, dst_offset_bytes},
        size_bytes, stream);
  });
}

int nvlink_transfer_begin(int source_gpu, uint64_t source_ptr, int target_gpu, uint64_t target_ptr,
                          uint64_t size_bytes, const void* src_ipc_handle,
                          unsigned src_ipc_handle_size, const void* dst_ipc_handle,
                          unsigned dst_ipc_handle_size, uint64_t src_offset_bytes,
                          uint64_t dst_offset_bytes, void* stream, uint32_t timeout_ms,
                          uint64_t* id) {
  return nvlink::guarded("nvlink_transfer_begin", [&]() -> Outcome {
    if (id == nullptr) return {NVLINK_TRANSFER_INVALID_VALUE, "id is null"};
    const auto run = [&](nvlink::Copy copy, linkspan::cuda::CUstream handle) {
      return nvlink::background().begin(std::move(copy), handle,
                                        std::chrono::milliseconds(timeout_ms), *id);
    };
    Outcome o = nvlink::caught([&] {
      if (size_bytes == 0) return run({}, nullptr);
      return nvlink::checked(
          {"source", source_gpu, source_ptr, src_ipc_handle, src_ipc_handle_size, src_offset_bytes},
          {"target", target_gpu, target_ptr, dst_ipc_handle, dst_ipc_handle_size, dst_offset_bytes},
          size_bytes, stream, run);
    });
    if (!o.ok()) ++nvlink::counts.failures;
    return o;
  });
}

int nvlink_transfer_test(uint64_t id, uint64_t* done_bytes) {
  return nvlink::guarded("nvlink_transfer_test",
                         [&] { return nvlink::ask(id, linkspan::Duration::zero(), done_bytes); });
}

int nvlink_transfer_wait(uint64_t id, uint32_t timeout_ms) {
  return nvlink::guarded("nvlink_transfer_wait", [&] {
    return nvlink::ask(id, std::chrono::milliseconds(timeout_ms), nullptr);
  });
}

int nvlink_transfer_cancel(uint64_t id) {
  return nvlink::guarded("nvlink_transfer_cancel", [&] {
    return nvlink::background().cancel(id) ? Outcome{} : nvlink::unknown(id);
  });
}

const char* nvlink_transfer_version(void) { return "0.1.0"; }

const char* nvlink_transfer_error_string(int code) {
  try {
    return nvlink::describe(code);
  } catch (const std::exception&) {
    return "unknown error";
  }
}

const char* nvlink_transfer_last_error(void) { return nvlink::last_error.data(); }

void nvlink_transfer_set_log_callback(nvlink_transfer_log callback, void* user) {
  (void)nvlink::guarded("nvlink_transfer_set_log_callback", [&]() -> Outcome {
    nvlink::set_log(callback, user);
    return {};
  });
}

int nvlink_transfer_set_handle_cache(unsigned max) {
  return nvlink::guarded("nvlink_transfer_set_handle_cache", [&]() -> Outcome {
    if (max > nvlink::HandleCache::kMax)
      return {NVLINK_TRANSFER_INVALID_VALUE, std::to_string(max) + " handles; at most 65536"};
    nvlink::HandleCache::only().keep(max);
    return {};
  });
}

int nvlink_transfer_stats(nvlink_transfer_stats_t* stats) {
  return nvlink::guarded("nvlink_transfer_stats", [&]() -> Outcome {
    constexpr std::size_t kMin = 8;
    if (stats == nullptr || stats->size < kMin)
      return {NVLINK_TRANSFER_INVALID_VALUE, "set stats->size to sizeof(nvlink_transfer_stats_t)"};
    const auto& handles = nvlink::HandleCache::only();
    const nvlink_transfer_stats_t now{.size = stats->size,
                                      .cached_handles = handles.kept(),
                                      .transfers = nvlink::counts.transfers,
                                      .bytes = nvlink::counts.bytes,
                                      .failures = nvlink::counts.failures,
                                      .opens = handles.opens(),
                                      .cache_hits = handles.hits(),
                                      .staged = nvlink::counts.staged,
                                      .open_handles = handles.open_now()};
    // A caller built for another version has fewer fields, or more.
    std::memcpy(stats, &now, std::min<std::size_t>(stats->size, sizeof now));
    return {};
  });
}

// Weak, so that a program which links the CUDA runtime statically keeps its own.
#if defined(__GNUC__) && !defined(_WIN32)
__attribute__((weak))
#endif
const char*
cudaGetErrorString(int code) {
  return nvlink_transfer_error_string(code);
}
