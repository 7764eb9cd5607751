#include "tests/support/nccl_net_plugin/connection.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace linkspan::nccl_test {
namespace {

std::string why(const char* call) {
  return std::string(call) + ": " + std::generic_category().message(errno);
}

sockaddr_in socket_address(std::uint32_t address, std::uint32_t port) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = address;
  to.sin_port = static_cast<in_port_t>(port);
  return to;
}

base::Fd new_socket() {
  return base::Fd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

void send_at_once(int socket) {
  const int yes = 1;
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

/// Returns the GPU of the context; null if none was current, or none is needed. An error is the
/// driver's.
Result<std::unique_ptr<Gpu>> gpu_of(cuda::CUcontext context) {
  if (context == nullptr || !kKind.takes_gpus) return std::unique_ptr<Gpu>();
  return Gpu::open(context);
}

}  // namespace

Exchange::State Exchange::send(int socket, const Hello& hello) {
  while (sent_ < sizeof hello) {
    const ssize_t sent = ::send(socket, reinterpret_cast<const std::byte*>(&hello) + sent_,
                                sizeof hello - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0)
      sent_ += static_cast<std::size_t>(sent);
    else if (errno == EAGAIN || errno == EINPROGRESS)
      return State::pending;
    else if (errno != EINTR)
      return State::broken;
  }
  return State::over;
}

Exchange::State Exchange::receive(int socket, Hello& hello) {
  while (received_ < sizeof hello) {
    const ssize_t got = ::recv(socket, reinterpret_cast<std::byte*>(&coming_) + received_,
                               sizeof hello - received_, MSG_DONTWAIT);
    if (got == 0) errno = ECONNRESET;
    if (got > 0)
      received_ += static_cast<std::size_t>(got);
    else if (got < 0 && errno == EAGAIN)
      return State::pending;
    else if (errno != EINTR)
      return State::broken;
  }
  hello = coming_;
  return State::over;
}

int Listener::open(void* context, void* handle, std::unique_ptr<Listener>& made) {
  Result<Settings> settings = Settings::from_environment();
  if (!settings.ok()) return refuse(kInvalidUsage, settings.status().what());
  sockaddr_in at = socket_address(0, 0);
  if (::inet_pton(AF_INET, settings->address.c_str(), &at.sin_addr) != 1)
    return refuse(kInvalidUsage, "no IPv4 address: " + settings->address);
  base::Fd socket = new_socket();
  socklen_t length = sizeof at;
  if (!socket.valid() || ::bind(socket.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 ||
      ::listen(socket.get(), 64) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&at), &length) != 0)
    return refuse(kSystemError, why("listen"));
  Random random{std::random_device{}()};
  const Handle where{kHandleMagic, at.sin_addr.s_addr, at.sin_port, random(), 0};
  std::memset(handle, 0, kHandleBytes);
  std::memcpy(handle, &where, sizeof where);
  made.reset(new Listener(context, *std::move(settings), std::move(socket), where.nonce));
  return kOk;
}

int Listener::accept(std::unique_ptr<ReceiveComm>& made) {
  if (const int failure = failures_.of(settings_, "accept"); failure != kOk) return failure;
  if (++tries_ <= settings_.null_comms) return kOk;
  if (!coming_.valid()) {
    coming_ = base::Fd(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    exchange_ = {};
    if (!coming_.valid())
      return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED
                 ? int{kOk}
                 : refuse(kSystemError, why("accept"));
    send_at_once(coming_.get());
  }
  Hello hello{};
  const Exchange::State state = exchange_.receive(coming_.get(), hello);
  if (state == Exchange::State::pending) return kOk;
  const Hello answer{kAnswerMagic, nonce_};
  if (state == Exchange::State::broken || hello.magic != kAskMagic || hello.nonce != nonce_ ||
      exchange_.send(coming_.get(), answer) != Exchange::State::over) {
    coming_ = base::Fd();
    inform("somebody came who was no peer, or went");
    return kOk;
  }
  Result<std::unique_ptr<Gpu>> gpu = gpu_of(gpu_);
  if (!gpu.ok()) return refuse(kCudaError, gpu.status().to_string());
  std::unique_ptr<BouncePool> pool;
  if (*gpu && kKind.unpacks) {
    Result<std::unique_ptr<BouncePool>> created = BouncePool::create(**gpu);
    if (!created.ok()) return refuse(kCudaError, created.status().to_string());
    pool = *std::move(created);
  }
  made = std::make_unique<ReceiveComm>(context_, std::move(coming_), settings_, *std::move(gpu),
                                       std::move(pool));
  tries_ = 0;
  return kOk;
}

int Connecting::open(void* context, const Handle& handle, std::unique_ptr<Connecting>& made) {
  Result<Settings> settings = Settings::from_environment();
  if (!settings.ok()) return refuse(kInvalidUsage, settings.status().what());
  base::Fd socket = new_socket();
  if (!socket.valid()) return refuse(kSystemError, why("socket"));
  send_at_once(socket.get());
  sockaddr_in to = socket_address(handle.address, handle.port);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0 &&
      errno != EINPROGRESS)
    return refuse(kRemoteError, why("connect"));
  made.reset(new Connecting(context, *std::move(settings), std::move(socket), handle.nonce));
  return kOk;
}

int Connecting::connect(std::unique_ptr<SendComm>& made) {
  if (const int failure = failures_.of(settings_, "connect"); failure != kOk) return failure;
  if (++tries_ <= settings_.null_comms) return kOk;
  const Hello hello{kAskMagic, nonce_};
  Hello answer{};
  Exchange::State state = exchange_.send(socket_.get(), hello);
  if (state == Exchange::State::over) state = exchange_.receive(socket_.get(), answer);
  if (state == Exchange::State::pending) return kOk;
  if (state == Exchange::State::broken) return refuse(kRemoteError, why("connect"));
  if (answer.magic != kAnswerMagic || answer.nonce != nonce_)
    return refuse(kRemoteError, "connect: who answers is no peer");
  Result<std::unique_ptr<Gpu>> gpu = gpu_of(gpu_);
  if (!gpu.ok()) return refuse(kCudaError, gpu.status().to_string());
  made = std::make_unique<SendComm>(context_, std::move(socket_), settings_, *std::move(gpu));
  return kOk;
}

}  // namespace linkspan::nccl_test
