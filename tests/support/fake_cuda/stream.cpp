// tests/support/fake_cuda/stream.cpp - streams, events and copies.
//
// A stream's thread takes the first entry, works on it without the lock, and only then removes it:
// so an entry counts for the depth until it has ended. What an entry touches is looked up when it
// is submitted, as an error of the call, and must be there until it has run: else the device is
// lost with 700, as after any access to memory that was freed.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "tests/support/fake_cuda/fake_cuda.hpp"

namespace linkspan::cuda::fake {
namespace {

/// Returns the next random number of the seed, by splitmix64.
std::uint64_t chance() {
  static std::atomic<std::uint64_t> state{[] {
    const char* seed = std::getenv("FAKE_CUDA_SEED");
    return (seed != nullptr ? std::strtoull(seed, nullptr, 10) : 0) ^
           std::hash<std::string_view>()(FAKE_CUDA_BUILD);
  }()};
  constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15;
  std::uint64_t x = state.fetch_add(kStep) + kStep;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

/// Copies in pieces, in an order that starts anywhere, so that nothing can rely on bytes before the
/// end. Small copies are whole words, as on a GPU.
void move(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kWhole = 64, kPieces = 4;
  const bool overlap = to < from + bytes && from < to + bytes;
  if (bytes == 8 && reinterpret_cast<std::uintptr_t>(to) % 8 == 0) {  // a kernel may poll it
    std::uint64_t word = 0;
    if (reinterpret_cast<std::uintptr_t>(from) % 8 == 0)  // and a kernel may add to the other
      word = std::atomic_ref(*reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(from)))
                 .load(std::memory_order_acquire);
    else
      std::memcpy(&word, from, sizeof word);
    std::atomic_ref(*reinterpret_cast<std::uint64_t*>(to)).store(word, std::memory_order_release);
    return;
  }
  if (bytes <= kWhole || overlap) {
    std::memmove(to, from, bytes);
    return;
  }
  const std::size_t cut = bytes / kPieces - chance() % 16, first = chance() % kPieces;
  for (std::size_t i = 0; i < kPieces; ++i) {
    const std::size_t piece = (first + i) % kPieces, at = piece * cut;
    std::memcpy(to + at, from + at, piece + 1 == kPieces ? bytes - at : cut);
  }
}

/// Pause between two polls of a word that a stream waits for.
constexpr std::chrono::microseconds kLook{20};
/// After that time await() says what stands still.
constexpr std::chrono::seconds kLong{5};
/// One entry in kSeldom begins late, by kLatest at most.
constexpr std::uint64_t kSeldom = 16;
constexpr std::chrono::duration<std::uint64_t, std::micro> kLatest{300};

void run(Stream& stream) {
  World& w = world();
  Lock lock(w.mutex);
  for (;;) {
    while (!w.ended && !stream.ready() && !(stream.closing && stream.entries.empty())) {
      if (!stream.entries.empty() && stream.entries.front().until)
        stream.wake.wait_for(lock, kLook);
      else
        stream.wake.wait(lock);
    }
    if (w.ended || stream.entries.empty()) break;
    const Entry& entry = stream.entries.front();
    if (entry.work && !stream.device.lost) {
      stream.running = true;
      lock.unlock();
      if (chance() % kSeldom == 0)  // as late as any
        std::this_thread::sleep_for(std::chrono::microseconds(chance() % kLatest.count()));
      const CUresult r = entry.work();
      lock.lock();
      stream.running = false;
      if (r != CUDA_SUCCESS) stream.device.lost = true;
    }
    const bool wake_others = entry.mark != nullptr || stream.device.lost;
    if (entry.mark) entry.mark->reached = true;
    stream.depth -= entry.counts() ? 1 : 0;
    stream.entries.pop_front();
    ++stream.finished;
    if (wake_others)
      w.wake_all();
    else
      w.changed.notify_all();
  }
  stream.exited = true;
}

Stream* start_stream(Device& device) {
  World& w = world();
  std::erase_if(w.retired, [](const std::unique_ptr<Stream>& stream) {
    if (!stream->exited) return false;
    stream->thread.join();
    return true;
  });
  auto made = std::make_unique<Stream>(device);
  Stream* stream = made.get();
  stream->serial = ++w.last_stream;
  const auto handle = reinterpret_cast<CUstream>(stream);
  w.streams[handle] = std::move(made);
  try {
    stream->thread = std::thread([stream] { run(*stream); });
  } catch (...) {
    w.streams.erase(handle);
    throw;
  }
  return stream;
}

CUresult copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream handle) {
  Call call(handle);
  if (call.error != CUDA_SUCCESS || bytes == 0) return call.error;
  const auto target = range(to, bytes), source = range(from, bytes);
  if (!target || !source || !accessible(*call.device, *target) ||
      !accessible(*call.device, *source))
    return CUDA_ERROR_INVALID_VALUE;
  std::vector<std::byte> staged;  // pageable memory is read before the call returns
  if (!source->owner) staged.assign(source->view, source->view + bytes);
  const CUresult r = submit(
      call, {.after = nullptr,
             .work =
                 [target = *target, source = *source, staged = std::move(staged), bytes] {
                   if (!live(target) || !live(source)) return CUDA_ERROR_ILLEGAL_ADDRESS;
                   move(target.view, staged.empty() ? source.view : staged.data(), bytes);
                   return live(target) && live(source) ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
                 },
             .mark = nullptr});
  // ... and written before it does.
  const bool wait = !target->owner && !call.stream->capture;
  return r == CUDA_SUCCESS && wait ? drain(call.lock, *call.stream) : r;
}

std::string describe_streams() {
  std::string all;
  const auto tell = [&all](const Stream& s) {
    const Entry* const first = s.entries.empty() ? nullptr : &s.entries[0];
    const std::pair<bool, const char*> facts[] = {{s.running, "running"},
                                                  {s.ready(), "ready"},
                                                  {first && first->after, "behind an event"},
                                                  {first && first->until, "behind a word"},
                                                  {s.closing, "destroyed"},
                                                  {s.device.held, "held"},
                                                  {s.device.lost, "lost"},
                                                  {s.device.giving_back != 0, "memory is freed"}};
    all += "  a stream of device " + std::to_string(s.device.ordinal) + ": " +
           std::to_string(s.finished) + " of " + std::to_string(s.submitted) + " entries ended";
    for (const auto& [is, what] : facts)
      if (is) all += std::string(", ") + what;
    all += '\n';
  };
  for (const auto& [handle, stream] : world().streams) tell(*stream);
  for (const auto& stream : world().retired) tell(*stream);
  return all;
}

Event* find_event(CUevent handle) {
  const auto found = world().events.find(handle);
  return found != world().events.end() ? found->second.get() : nullptr;
}

}  // namespace

bool live(const Range& range) {
  const Lock lock(world().mutex);
  return range.all([](const Allocation& each) { return each.live; });
}

void World::wake_all() {
  for (const auto& [handle, stream] : streams) stream->wake.notify_all();
  for (const auto& stream : retired) stream->wake.notify_all();
  changed.notify_all();
}

void World::await(Lock& lock, const std::function<bool()>& condition) {
  using Clock = std::chrono::steady_clock;
  for (auto next = Clock::now() + kLong; !condition();) {
    changed.wait_until(lock, next);
    if (Clock::now() < next) continue;
    next += kLong;
    const bool missed = condition();
    std::fprintf(stderr, "fake_cuda: a thread of process %d %s\n%s", static_cast<int>(getpid()),
                 missed ? "has missed a wake-up" : "stands still", describe_streams().c_str());
  }
}

Call::Call(CUstream handle) : lock(world().mutex) {
  if (reinterpret_cast<std::uintptr_t>(handle) <= 2) {
    enter(current_device());
    if (error != CUDA_SUCCESS) return;
    if (device->default_stream == nullptr) device->default_stream = start_stream(*device);
    stream = device->default_stream;
    return;
  }
  const auto found = world().streams.find(handle);
  if (found == world().streams.end()) {
    error = CUDA_ERROR_INVALID_HANDLE;
    return;
  }
  enter(&found->second->device);
  if (error == CUDA_SUCCESS) stream = found->second.get();
}

CUresult submit(Call& call, Entry entry) {
  World& w = world();
  Stream& s = *call.stream;
  if (s.capture) {
    if (!s.capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    s.capture->entries.push_back(std::move(entry));
    return CUDA_SUCCESS;
  }
  w.await(call.lock, [&] {
    return w.ended || s.device.lost ||
           (s.device.giving_back == 0 && (!entry.counts() || s.depth < kStreamDepth));
  });
  if (w.ended) return CUDA_ERROR_DEINITIALIZED;
  if (s.device.lost) return CUDA_ERROR_ILLEGAL_ADDRESS;
  s.depth += entry.counts() ? 1 : 0;
  s.entries.push_back(std::move(entry));
  ++s.submitted;
  s.wake.notify_all();
  return CUDA_SUCCESS;
}

CUresult drain(Lock& lock, Stream& stream) {
  World& w = world();
  w.await(lock, [&, until = stream.submitted] {
    return w.ended || stream.device.lost || stream.finished >= until;
  });
  if (w.ended) return CUDA_ERROR_DEINITIALIZED;
  return stream.device.lost ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}

CUresult drain(Lock& lock, const Device& device) {
  World& w = world();
  w.await(lock, [&] {
    const auto quiet = [&](const std::unique_ptr<Stream>& stream) {
      return &stream->device != &device || stream->entries.empty();
    };
    return w.ended || device.lost ||
           (std::all_of(w.retired.begin(), w.retired.end(), quiet) &&
            std::all_of(w.streams.begin(), w.streams.end(),
                        [&](const auto& entry) { return quiet(entry.second); }));
  });
  if (w.ended) return CUDA_ERROR_DEINITIALIZED;
  return device.lost ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}

CUresult drain_and_hold_up(Lock& lock, Device& device) {
  ++device.giving_back;
  const CUresult r = drain(lock, device);
  if (--device.giving_back == 0) world().changed.notify_all();
  return r;
}

void retire(std::unique_ptr<Stream> stream) {
  stream->closing = true;
  stream->wake.notify_all();
  world().retired.push_back(std::move(stream));
}

void end_streams() {
  World& w = world();
  std::vector<Stream*> all;
  {
    const Lock lock(w.mutex);
    w.ended = true;
    for (const auto& [handle, stream] : w.streams) all.push_back(stream.get());
    for (const auto& stream : w.retired) all.push_back(stream.get());
    w.wake_all();
  }
  for (Stream* stream : all) stream->thread.join();
}

namespace {

struct InFlight {
  CUstream handle;
  std::uint64_t serial, until;
};

std::vector<InFlight> in_flight(const Device& device) {
  std::vector<InFlight> all;
  for (const auto& [handle, stream] : world().streams)
    if (&stream->device == &device) all.push_back({handle, stream->serial, stream->submitted});
  return all;
}

/// Waits for a stream that may end meanwhile.
CUresult drain(Lock& lock, const InFlight& of) {
  World& w = world();
  w.await(lock, [&] {
    const auto found = w.streams.find(of.handle);
    return w.ended || found == w.streams.end() || found->second->serial != of.serial ||
           found->second->device.lost || found->second->finished >= of.until;
  });
  return w.ended ? CUDA_ERROR_DEINITIALIZED : CUDA_SUCCESS;
}

}  // namespace

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int) {
  Call call;
  if (call.error != CUDA_SUCCESS) return call.error;
  if (flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  // Waits, as the real driver does when it makes room for more. Not for a device held by
  // fakeCudaHold(), which would never end.
  constexpr std::uint64_t kRoom = 40;
  if (++call.device->streams_made % kRoom == 0 && !call.device->held)
    for (const InFlight& each : in_flight(*call.device))
      if (const CUresult r = drain(call.lock, each); r != CUDA_SUCCESS) return r;
  *stream = reinterpret_cast<CUstream>(start_stream(*call.device));
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream handle) {
  const Lock lock(world().mutex);
  const auto found = world().streams.find(handle);
  if (found == world().streams.end()) return CUDA_ERROR_INVALID_HANDLE;
  const bool lost = found->second->device.lost;
  retire(std::move(found->second));
  world().streams.erase(found);
  world().changed.notify_all();
  return lost ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream handle) {
  Call call(handle);
  return call.error != CUDA_SUCCESS ? call.error : drain(call.lock, *call.stream);
}

CUresult cuCtxSynchronize() {
  Call call;
  return call.error != CUDA_SUCCESS ? call.error : drain(call.lock, *call.device);
}

CUresult cuStreamQuery(CUstream handle) {
  const Call call(handle);
  if (call.error != CUDA_SUCCESS) return call.error;
  if (call.stream->capture) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  return call.stream->entries.empty() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  const Call call(handle);
  if (call.error != CUDA_SUCCESS) return call.error;
  *context = reinterpret_cast<CUcontext>(&call.stream->device);
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  const Call call(handle);
  if (call.error != CUDA_SUCCESS) return call.error;
  const Capture* capture = call.stream->capture.get();
  *status = capture == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE
            : capture->valid   ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                               : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned) {
  Call call(handle);
  if (call.error != CUDA_SUCCESS) return call.error;
  const Event* found = find_event(event);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (found->capture) {  // the order inside a graph is kept anyhow
    Stream& stream = *call.stream;
    if (stream.capture && stream.capture != found->capture) return CUDA_ERROR_INVALID_VALUE;
    if (!stream.capture) {
      stream.capture = found->capture;
      stream.pulled_in = true;
    }
    for (const auto& [at, other] : world().streams)
      if (other.get() == found->recorded && stream.capture->origin == &stream)
        other->pulled_in = false;
    return CUDA_SUCCESS;
  }
  return submit(call, {.after = found->mark, .work = nullptr, .mark = nullptr});
}

/// Submits the write of a flag of type Value.
template <class Value>
CUresult write_value(CUstream handle, CUdeviceptr address, Value value, unsigned flags) {
  Call call(handle);
  if (call.error != CUDA_SUCCESS) return call.error;
  auto word = range(address, sizeof value);
  if (!word || !word->owner || address % sizeof value != 0 ||
      flags != CU_STREAM_WRITE_VALUE_DEFAULT)
    return CUDA_ERROR_INVALID_VALUE;
  return submit(call, {.after = nullptr,
                       .work =
                           [word = *std::move(word), value] {
                             if (!live(word)) return CUDA_ERROR_ILLEGAL_ADDRESS;
                             std::atomic_ref(*reinterpret_cast<Value*>(word.view))
                                 .store(value, std::memory_order_release);
                             return CUDA_SUCCESS;
                           },
                       .mark = nullptr});
}

CUresult cuStreamWriteValue32(CUstream handle, CUdeviceptr address, std::uint32_t value,
                              unsigned flags) {
  return write_value(handle, address, value, flags);
}

CUresult cuStreamWriteValue64(CUstream handle, CUdeviceptr address, std::uint64_t value,
                              unsigned flags) {
  return write_value(handle, address, value, flags);
}

CUresult cuStreamWaitValue64(CUstream handle, CUdeviceptr address, std::uint64_t value,
                             unsigned flags) {
  Call call(handle);
  if (call.error != CUDA_SUCCESS) return call.error;
  const auto word = range(address, sizeof value);
  if (!word || !word->owner || address % sizeof value != 0 || flags != CU_STREAM_WAIT_VALUE_GEQ)
    return CUDA_ERROR_INVALID_VALUE;
  return submit(
      call,
      {.after = nullptr,
       .work = [word = *word] { return live(word) ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS; },
       .mark = nullptr,
       .until =
           [word = *word, value] {
             const std::atomic_ref seen(*reinterpret_cast<std::uint64_t*>(word.view));
             // Cyclic, as the real one: so a counter may pass the end of its range.
             return !word.owner->live ||
                    static_cast<std::int64_t>(seen.load(std::memory_order_acquire) - value) >= 0;
           }});
}

CUresult cuEventCreate(CUevent* event, unsigned) {
  Call call;
  if (call.error != CUDA_SUCCESS) return call.error;
  auto made = std::make_unique<Event>(Event{.device = *call.device, .mark = {}, .capture = {}});
  *event = reinterpret_cast<CUevent>(made.get());
  world().events[*event] = std::move(made);
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
  const Lock lock(world().mutex);
  return world().events.erase(event) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventRecord(CUevent event, CUstream handle) {
  Call call(handle);
  if (call.error != CUDA_SUCCESS) return call.error;
  Event* found = find_event(event);
  if (found == nullptr || &found->device != call.device) return CUDA_ERROR_INVALID_HANDLE;
  found->capture = call.stream->capture;
  found->recorded = call.stream;
  if (found->capture) return CUDA_SUCCESS;
  const auto mark = found->mark = std::make_shared<Mark>();
  const CUresult r = submit(call, {.after = nullptr, .work = nullptr, .mark = mark});
  if (r == CUDA_SUCCESS) return r;
  mark->reached = true;  // nothing may wait for it
  world().wake_all();
  return r;
}

CUresult cuEventQuery(CUevent event) {
  const Lock lock(world().mutex);
  const Event* found = find_event(event);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (found->device.lost) return CUDA_ERROR_ILLEGAL_ADDRESS;
  return !found->mark || found->mark->reached ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return copy(to, from, bytes, stream);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext,
                           std::size_t bytes, CUstream stream) {
  return copy(to, from, bytes, stream);
}

/// Stores an aligned word atomically, because a kernel may read it meanwhile, as on a GPU.
static void fill(void* to, unsigned char value, std::size_t bytes) {
  if (bytes == sizeof(std::uint32_t) && reinterpret_cast<std::uintptr_t>(to) % bytes == 0)
    std::atomic_ref(*static_cast<std::uint32_t*>(to)).store(value * 0x01010101u);
  else
    std::memset(to, value, bytes);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t bytes, CUstream handle) {
  Call call(handle);
  if (call.error != CUDA_SUCCESS || bytes == 0) return call.error;
  auto target = range(to, bytes);
  if (!target || !target->owner || !accessible(*call.device, *target))
    return CUDA_ERROR_INVALID_VALUE;
  return submit(call, {.after = nullptr,
                       .work =
                           [target = *std::move(target), value, bytes] {
                             if (!live(target)) return CUDA_ERROR_ILLEGAL_ADDRESS;
                             fill(target.view, value, bytes);
                             return CUDA_SUCCESS;
                           },
                       .mark = nullptr});
}

}  // namespace linkspan::cuda::fake
