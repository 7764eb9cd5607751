#include "tests/support/nccl_net_plugin/comm.hpp"

#include <utility>

#include "tests/support/nccl_net_plugin/live.hpp"

namespace linkspan::nccl_test {
namespace {

constexpr std::uintptr_t kUnpackAlignment = 4096;

}  // namespace

Comm::Comm(void* context, base::Fd socket, Settings own, std::unique_ptr<Gpu> gpu, bool consumes)
    : settings(std::move(own)),
      context_(context),
      socket_(std::move(socket)),
      gpu_(std::move(gpu)),
      random_(settings.seed),
      ring_(kKind.requests),
      consumes_(consumes) {
  for (Request& request : ring_) {
    request.comm = this;
    live().requests.add(&request, &request);
  }
}

Comm::~Comm() {
  for (const Request& request : ring_) live().requests.remove(&request);
  if (begun_ != done_)
    inform("a comm ends with " + std::to_string(begun_ - done_) + " requests in flight");
  if (!memories_.empty())
    refuse(kInvalidUsage, "a comm ends with " + std::to_string(memories_.size()) +
                              " registrations that were not given back");
  if (gpu_) gpu_->drain();
}

void Comm::fail(Answer answer, const std::string& why, Where at) {
  if (error_ == kOk) error_ = refuse(answer, why, at);
  socket_ = base::Fd();
}

int Comm::add_memory(void* data, std::size_t bytes, int type, void** memory) {
  *memory = nullptr;
  if (data == nullptr || bytes == 0) return refuse(kInvalidArgument, "regMr of nothing");
  if (type != kHostPointer && type != kCudaPointer)
    return refuse(kInvalidArgument, "regMr of type " + std::to_string(type));
  const bool gpu = type == kCudaPointer;
  if (!kKind.takes_gpus && (gpu || Gpu::is_its(data)))
    return refuse(kInvalidArgument, "regMr of GPU memory");
  if (gpu && gpu_ == nullptr)
    return refuse(kInvalidUsage, "regMr of GPU memory: no GPU was current at listen or connect");
  if (gpu && !gpu_->is_current())
    return refuse(kInvalidUsage, "regMr of GPU memory: the comm's GPU is not current");
  if (gpu && !gpu_->owns(data, bytes))
    return refuse(kInvalidArgument, "regMr of what is no memory of the comm's GPU");
  if (gpu && kKind.unpacks && reinterpret_cast<std::uintptr_t>(data) % kUnpackAlignment != 0)
    return refuse(kInvalidArgument, "regMr of GPU memory that is not aligned to 4096 bytes");
  auto made = std::make_unique<Memory>(Memory{static_cast<std::byte*>(data), bytes, gpu});
  *memory = made.get();
  memories_[*memory] = std::move(made);
  return kOk;
}

int Comm::remove_memory(void* memory) {
  const Memory* const known = find(memory);
  if (known == nullptr) return refuse(kInvalidArgument, "deregMr of what this comm did not give");
  for (std::uint64_t number = done_; number != begun_ && error_ == kOk; ++number) {
    if (at(number).memory != known) continue;
    inform("memory is given back with requests in flight: the comm has ended");
    error_ = kInvalidUsage;
  }
  for (Request& request : ring_)
    if (request.memory == known) request.unflushed = false;
  if (known->gpu) gpu_->drain();
  memories_.erase(memory);
  return kOk;
}

const Memory* Comm::find(void* memory) const {
  const auto found = memories_.find(memory);
  return found == memories_.end() ? nullptr : found->second.get();
}

int Comm::check(const Memory* known, const void* data, std::size_t bytes) const {
  if (known == nullptr) return refuse(kInvalidArgument, "memory that this comm has not registered");
  const auto begin = reinterpret_cast<std::uintptr_t>(known->base);
  const std::uintptr_t offset = reinterpret_cast<std::uintptr_t>(data) - begin;
  if (offset > known->bytes || bytes > known->bytes - offset)
    return refuse(kInvalidArgument, "bytes outside of the memory that was registered");
  if (known->gpu && !gpu_->is_current())
    return refuse(kInvalidUsage, "the comm's GPU is not current");
  return kOk;
}

int Comm::begin(void* data, std::size_t bytes, int tag, void* memory, Request*& begun) {
  begun = nullptr;
  if (error_ != kOk) return error_;
  const Memory* const known = find(memory);
  if (const int result = check(known, data, bytes); result != kOk) return result;
  if (bytes > kKind.most_bytes)
    return refuse(kInvalidArgument, "a message of " + std::to_string(bytes) + " bytes");
  if (in_flight() >= ring_.size())
    return refuse(kInvalidUsage,
                  "more than " + std::to_string(ring_.size()) + " requests at once in a comm");
  if (random_() % 100 < settings.null_percent) return kOk;
  Request& request = at(begun_);
  if (request.unflushed)
    return refuse(kInvalidUsage, "what was received into GPU memory was never flushed");
  request.memory = known;
  request.data = static_cast<std::byte*>(data);
  request.room = request.bytes = bytes;
  request.tag = tag;
  request.passes = 0;
  begun = &request;
  return kOk;
}

void Comm::moved(Request& request) {
  request.due = Clock::now() + settings.delay;
  ++moved_;
  offset_ = 0;
  if (moved_ != settings.die_after) return;
  fail(kRemoteError, "the connection is closed after " + std::to_string(moved_) +
                         " messages, as LINKSPAN_TEST_PLUGIN_DIE_AFTER says");
}

int Comm::test(Request& request, int* done, int* bytes) {
  *done = 0;
  if (request.flushes) return test_flush(request, done);
  if (done_ == begun_) return refuse(kInvalidUsage, "test of a request that was done");
  if (&request != &at(done_)) {
    for (std::uint64_t number = done_; number != begun_; ++number)
      if (&request == &at(number))
        return refuse(kInvalidUsage, "test of a request that is not the oldest");
    return refuse(kInvalidUsage, "test of a request that was done");
  }
  progress();
  if (done_ == moved_) return error_;
  if (gpu_ && !gpu_->passed(request.passes)) {
    if (const Status status = gpu_->health(); !status.ok()) fail(status);
    return error_;
  }
  if (Clock::now() < request.due) return kOk;
  finish(request);
  *done = 1;
  if (bytes != nullptr) *bytes = static_cast<int>(request.bytes);
  ++done_;
  if (!consumes_) consumed_ = done_;
  return kOk;
}

int Comm::test_flush(Request&, int*) { return refuse(kInternalError, "a flush of a send comm"); }

}  // namespace linkspan::nccl_test
