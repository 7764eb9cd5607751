// tests/support/nccl_net_plugin/receive.cpp - the receiving side of a comm.
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "tests/support/nccl_net_plugin/comm.hpp"
#include "tests/support/nccl_net_plugin/live.hpp"
#include "tests/support/nccl_net_plugin/wire.hpp"

namespace linkspan::nccl_test {

ReceiveComm::ReceiveComm(void* context, base::Fd socket, Settings own, std::unique_ptr<Gpu> gpu,
                         std::unique_ptr<BouncePool> pool)
    : Comm(context, std::move(socket), std::move(own), std::move(gpu), kKind.unpacks),
      pool_(std::move(pool)),
      flushes_(kKind.requests) {
  for (Request& request : flushes_) {
    request.comm = this;
    request.flushes = true;
    live().requests.add(&request, &request);
  }
}

ReceiveComm::~ReceiveComm() {
  for (const Request& request : flushes_) live().requests.remove(&request);
  if (gpu_) gpu_->drain();  // before the pool ends
}

int ReceiveComm::receive(int n, void* data, std::size_t bytes, int tag, void* memory,
                         void** request) {
  *request = nullptr;
  if (n != 1) return refuse(kInvalidArgument, "irecv of " + std::to_string(n) + " buffers");
  Request* begun = nullptr;
  if (const int result = begin(data, bytes, tag, memory, begun); begun == nullptr) return result;
  ++begun_;
  *request = begun;
  progress();
  return kOk;
}

bool ReceiveComm::read(void* into, std::size_t bytes, std::size_t begin) {
  while (offset_ < begin + bytes) {
    const ssize_t got = ::recv(socket_.get(), static_cast<std::byte*>(into) + (offset_ - begin),
                               begin + bytes - offset_, MSG_DONTWAIT);
    if (got > 0) {
      offset_ += static_cast<std::size_t>(got);
    } else if (got == 0) {
      fail(kRemoteError, "the peer has closed its comm");
      return false;
    } else if (errno == EAGAIN) {
      return false;
    } else if (errno != EINTR) {
      fail(kRemoteError, "recv: " + std::generic_category().message(errno));
      return false;
    }
  }
  return true;
}

void ReceiveComm::progress() {
  while (error_ == kOk && moved_ != begun_) {
    Request& request = at(moved_);
    if (!read_message(request)) return;
    moved(request);
  }
}

bool ReceiveComm::read_message(Request& request) {
  if (offset_ < sizeof header_) {
    if (!read(&header_, sizeof header_, 0)) return false;
    if (header_.magic != kMessageMagic) {
      fail(kInternalError, "what comes is no message");
      return false;
    }
    if (header_.bytes > request.room) {
      fail(kInvalidUsage, "a send of " + std::to_string(header_.bytes) +
                              " bytes meets a receive of " + std::to_string(request.room));
      return false;
    }
    if (header_.tag != request.tag) {
      fail(kInvalidUsage, "a send of tag " + std::to_string(header_.tag) +
                              " meets a receive of tag " + std::to_string(request.tag));
      return false;
    }
    request.bytes = header_.bytes;
  }
  if (request.bytes == 0) return true;
  std::byte* into = request.data;
  if (request.memory->gpu && pool_) {
    landing_.resize(kKind.most_bytes);
    into = landing_.data();
  } else if (request.memory->gpu) {
    if (!gpu_->passed(request.staged)) return false;  // of the receive before
    if (const Status status = request.staging.reserve(*gpu_, request.bytes); !status.ok()) {
      fail(status);
      return false;
    }
    into = request.staging.data();
  }
  if (!read(into, request.bytes, sizeof header_)) return false;
  if (moved_ + 1 == settings.corrupt) into[random_() % request.bytes] ^= std::byte{0x40};
  return !request.memory->gpu || land(request, into);
}

bool ReceiveComm::land(Request& request, const std::byte* message) {
  if (!pool_) return request.unflushed = true;
  const std::size_t slot = moved_ % kUnpackSlots;
  const auto landed = pool_->land(slot, {message, request.bytes}, settings.fragment, random_);
  if (!landed.ok()) {
    fail(landed.status());
    return false;
  }
  request.passes = *landed;
  if (moved_ + 1 == settings.list_at) pool_->damage(slot, settings.list);
  return true;
}

void ReceiveComm::finish(Request&) {
  if (pool_) pool_->publish(done_ % kUnpackSlots);
}

int ReceiveComm::flush(int n, void** data, void** memories, void** request) {
  *request = nullptr;
  if (kKind.unpacks) return refuse(kInvalidUsage, "iflush of a comm that unpacks");
  if (n != 1) return refuse(kInvalidArgument, "iflush of " + std::to_string(n) + " buffers");
  if (error_ != kOk) return error_;
  const Memory* const known = find(memories[0]);
  if (const int result = check(known, data[0], 0); result != kOk) return result;
  if (!known->gpu) return refuse(kInvalidUsage, "iflush of host memory");
  if (flushes_begun_ - flushes_done_ == flushes_.size())
    return refuse(kInvalidUsage, "too many flushes at once in a comm");
  std::uint64_t passes = 0;
  for (Request& each : ring_) {
    if (!each.unflushed) continue;
    const auto copied = gpu_->copy(address_of(each.data), each.staging.address(), each.bytes);
    if (!copied.ok()) return refuse(kCudaError, copied.status().to_string());
    each.unflushed = false;
    passes = each.staged = *copied;
  }
  if (passes == 0) return kOk;  // there was nothing to flush
  Request& begun = flushes_[flushes_begun_++ % flushes_.size()];
  begun.passes = passes;
  *request = &begun;
  return kOk;
}

int ReceiveComm::test_flush(Request& request, int* done) {
  if (flushes_begun_ == flushes_done_ || &request != &flushes_[flushes_done_ % flushes_.size()])
    return refuse(kInvalidUsage, "test of a flush that was done or is not the oldest");
  if (const Status status = gpu_->health(); !status.ok()) fail(status);
  if (error_ != kOk) return error_;
  if (!gpu_->passed(request.passes)) return kOk;
  *done = 1;
  ++flushes_done_;
  return kOk;
}

int ReceiveComm::consumed(int n, void* request) {
  if (n != 1) return refuse(kInvalidArgument, "irecvConsumed of " + std::to_string(n));
  if (consumed_ == done_ || request != &at(consumed_))
    return refuse(
        kInvalidUsage,
        "irecvConsumed of a receive that is not the oldest that is done and not consumed");
  const std::size_t slot = consumed_++ % kUnpackSlots;
  if (!pool_) return kOk;
  const Status status = pool_->clear(slot);
  return status.ok() ? int{kOk} : refuse(kCudaError, status.to_string());
}

}  // namespace linkspan::nccl_test
