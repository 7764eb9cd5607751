#include "bench/nccl/lane.hpp"

#include <sys/socket.h>

#include <cerrno>
#include <stdexcept>

namespace linkspan::bench {
namespace {

namespace abi = transport::nccl_net::abi;

/// Returns a byte that depends on its place in a message.
std::byte expected(std::size_t i) { return static_cast<std::byte>(i * 7 + (i >> 8) * 3); }

}  // namespace

void fail(const std::string& what) { throw std::runtime_error(what); }

Lane::Lane(std::size_t bytes, bool receives)
    : receives_(receives), bytes_(bytes), memory_(kSlots * bytes) {
  for (std::size_t i = 0; i < memory_.size() && !receives; ++i) memory_[i] = expected(i % bytes);
}

/// The first bytes of a message are its number.
std::uint64_t& Lane::number(std::uint64_t message) {
  return *reinterpret_cast<std::uint64_t*>(at(message % kSlots));
}

bool Lane::go_on(std::uint64_t may_post) {
  const std::uint64_t before = posted_ + done_;
  if (posted_ < may_post && posted_ - done_ < kSlots) {
    if (!receives_) number(posted_) = posted_;
    if (post(posted_ % kSlots)) ++posted_;
  }
  if (done_ != posted_ && ended(done_ % kSlots)) {
    if (receives_ && number(done_) != done_) fail("a message is not the one that was sent");
    ++done_;
  }
  return posted_ + done_ != before;
}

void Lane::verify() const {
  for (std::size_t i = 0; i < memory_.size() && receives_; ++i)
    if (i % bytes_ >= sizeof(std::uint64_t) && memory_[i] != expected(i % bytes_))
      fail("wrong bytes have come");
}

PluginLane::PluginLane(Net& net, void* comm, std::size_t bytes, bool receives)
    : Lane(bytes, receives), net_(net), comm_(comm) {
  check(net.register_memory(comm, memory().data(), memory().size(), abi::kHost, handle_));
}

PluginLane::~PluginLane() {
  (void)net_.deregister(comm_, handle_);
  (void)(receives() ? net_.close_receive(comm_) : net_.close_send(comm_));
}

void PluginLane::check(int result) {
  if (result != abi::kSuccess) fail("the plugin answers " + std::to_string(result));
}

bool PluginLane::post(std::size_t slot) {
  check(receives() ? net_.receive(comm_, at(slot), bytes(), 0, handle_, requests_[slot])
                   : net_.send(comm_, at(slot), bytes(), 0, handle_, requests_[slot]));
  return requests_[slot] != nullptr;
}

bool PluginLane::ended(std::size_t slot) {
  bool done = false;
  int came = 0;
  check(net_.test(requests_[slot], done, came));
  return done;
}

bool SocketLane::ended(std::size_t slot) {
  std::byte* const from = at(slot) + moved_;
  const std::size_t left = bytes() - moved_;
  const ssize_t moved = receives() ? ::recv(socket_, from, left, MSG_DONTWAIT)
                                   : ::send(socket_, from, left, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (moved == 0 || (moved < 0 && errno != EAGAIN)) fail("a bare socket failed");
  if (moved > 0) moved_ += static_cast<std::size_t>(moved);
  if (moved_ != bytes()) return false;
  moved_ = 0;
  return true;
}

}  // namespace linkspan::bench
