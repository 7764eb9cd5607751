// tests/support/nccl_net_plugin/send.cpp - the sending side of a comm.
#include <sys/socket.h>

#include <cerrno>
#include <system_error>

#include "tests/support/nccl_net_plugin/comm.hpp"
#include "tests/support/nccl_net_plugin/wire.hpp"

namespace linkspan::nccl_test {

int SendComm::send(void* data, std::size_t bytes, int tag, void* memory, void** request) {
  *request = nullptr;
  Request* begun = nullptr;
  if (const int result = begin(data, bytes, tag, memory, begun); begun == nullptr) return result;
  if (begun->memory->gpu && bytes != 0) {
    if (const Status status = begun->staging.reserve(*gpu_, bytes); !status.ok())
      return refuse(kCudaError, status.to_string());
    const auto copied = gpu_->copy(begun->staging.address(), address_of(data), bytes);
    if (!copied.ok()) return refuse(kCudaError, copied.status().to_string());
    begun->passes = *copied;
  }
  ++begun_;
  *request = begun;
  progress();  // test() reports the failure
  return kOk;
}

void SendComm::progress() {
  while (error_ == kOk && moved_ != begun_) {
    Request& request = at(moved_);
    if (gpu_ && !gpu_->passed(request.passes)) return;
    if (!write(request)) return;
    moved(request);
  }
}

bool SendComm::write(Request& request) {
  const MessageHeader header{kMessageMagic, request.tag, request.bytes};
  const std::byte* const data =
      request.memory->gpu && request.bytes != 0 ? request.staging.data() : request.data;
  while (offset_ < sizeof header + request.bytes) {
    const bool head = offset_ < sizeof header;
    const std::byte* const from = head ? reinterpret_cast<const std::byte*>(&header) + offset_
                                       : data + (offset_ - sizeof header);
    const std::size_t left =
        head ? sizeof header - offset_ : sizeof header + request.bytes - offset_;
    const int more = head && request.bytes != 0 ? MSG_MORE : 0;
    const ssize_t sent = ::send(socket_.get(), from, left, MSG_DONTWAIT | MSG_NOSIGNAL | more);
    if (sent >= 0) {
      offset_ += static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN) {
      return false;
    } else if (errno != EINTR) {
      fail(kRemoteError, "send: " + std::generic_category().message(errno));
      return false;
    }
  }
  return true;
}

}  // namespace linkspan::nccl_test
