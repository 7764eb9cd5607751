#include "control/session.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <exception>

#include "base/no_memory.hpp"
#include "net/tcp_socket.hpp"

namespace linkspan::control {
namespace {

constexpr int kFramesPerPoll = 64;
constexpr std::size_t kMaxDataConnections = 256;  // beside a session, ever

}  // namespace

Session::Session(std::uint64_t id, bool initiated, base::Fd socket, const Identity& us,
                 SessionEvents& events, SessionWriter& writer, const base::Log& log)
    : id_(id),
      initiated_(initiated),
      remote_(!base::is_unix_socket(socket.get())),
      us_(us),
      events_(events),
      writer_(writer),
      log_(log),
      socket_(socket.get()),
      channel_(std::move(socket)) {
  const base::MutexLock lock(mutex_);
  channel_.limit_payload(kMaxUnprovenFrame);
}

Session::~Session() {
  // The last reference was that of a copy on the peer's memory, which has ended.
  if (goodbye_received_ && !goodbye_sent_ && !dropped_) (void)queue(FrameOp::goodbye, 0, {}, {});
}

std::string Session::describe() const {
  return (hello_.engine.empty() ? "unknown" : hello_.engine) + " (peer " + std::to_string(id_) +
         ", " + place_ + ")";
}

bool Session::is_this_process() const noexcept { return !remote_ && pid_ == ::getpid(); }

Status Session::send(FrameOp op, std::uint64_t id, std::span<const std::byte> payload,
                     std::span<base::Fd> fds) {
  if (disconnected_)
    return {Code::disconnected, Scope::peer, "the connection to " + describe() + " is closed"};
  if (Status status = queue(op, id, payload, fds); !status.ok()) return status;
  arm_write();
  return {};
}

/// Makes the Control thread send what is left. Without memory for that the connection ends, which
/// the Control thread sees.
void Session::arm_write() noexcept {
  try {
    if (wants_write()) writer_.write_when_ready(id_);
  } catch (const std::exception&) {
    ::shutdown(socket_, SHUT_RDWR);
  }
}

Status Session::queue(FrameOp op, std::uint64_t id, std::span<const std::byte> payload,
                      std::span<base::Fd> fds) {
  if (remote_ && !fds.empty())  // the kernel would drop them silently
    return {Code::unsupported, Scope::request, "no file descriptor travels over TCP"};
  const base::MutexLock lock(mutex_);
  if (Status status = channel_.queue(header_of(op, id), payload, fds); !status.ok()) return status;
  // The rest is sent when the socket has room. A broken connection shows as end-of-file.
  (void)flush_queued();
  return {};
}

base::FrameHeader Session::header_of(FrameOp op, std::uint64_t id) const noexcept {
  return {.length = 0,
          .version = base::kProtocolVersion,
          .op = static_cast<std::uint16_t>(op),
          .id = id,
          .incarnation = us_.incarnation};
}

Status Session::flush_queued() noexcept {
  try {
    Status status = channel_.flush();
    if (!collect_owed_ || !channel_.queue(header_of(FrameOp::collect, 0), {}, {}).ok())
      return status;
    collect_owed_ = false;
    return channel_.flush();
  } catch (const std::exception&) {
    return base::no_memory(Scope::peer);
  }
}

bool Session::wants_write() {
  const base::MutexLock lock(mutex_);
  return collect_owed_ || channel_.wants_write();
}

Status Session::flush() {
  const base::MutexLock lock(mutex_);
  return flush_queued();
}

bool Session::has_buffered() {
  const base::MutexLock lock(mutex_);
  return channel_.has_buffered();
}

bool Session::has_received() {
  const base::MutexLock lock(mutex_);
  return channel_.has_received();
}

std::size_t Session::allocated_bytes() {
  const base::MutexLock lock(mutex_);
  return channel_.allocated_bytes();
}

Status Session::secure() {
  if (us_.tls == nullptr) return {};
  auto tls = base::TlsEnd::create(us_.tls, socket_,
                                  initiated_ ? base::TlsSide::connector : base::TlsSide::acceptor);
  if (!tls.ok()) return tls.status();
  const base::MutexLock lock(mutex_);
  channel_.secure(*std::move(tls));
  return {};
}

/// Reads the credentials of the peer from the kernel, and checks its user.
Status Session::read_peer_credentials() {
  auto credentials = base::peer_credentials(socket_);
  if (!credentials.ok()) return credentials.status();
  pid_ = credentials->pid;
  place_ = "pid " + std::to_string(pid_);
  const bool one_user = base::names_one_user(credentials->uid);
  same_user_ = one_user && credentials->uid == ::geteuid();
  if (!us_.any_uid && !same_user_)
    return {Code::permission_denied, Scope::peer,
            "peer of uid " + std::to_string(credentials->uid) + ", this is uid " +
                std::to_string(::geteuid()) +
                (one_user ? "" : " (any user that this user namespace has no number for)") +
                "; EngineOptions::any_uid lets it in"};
  return {};
}

Status Session::start() {
  if (remote_) {
    const auto other_end = net::peer_of(socket_);
    loopback_ = other_end.ok() && other_end->is_loopback();
    place_ = "at " + (other_end.ok() ? other_end->to_string() : "an end that has gone");
    if (Status status = secure(); !status.ok()) return status;
  } else if (Status status = read_peer_credentials(); !status.ok()) {
    return status;
  }
  Hello hello{.engine = us_.engine,
              .process = {},
              .transports = events_.transport_addresses(remote_),
              .requires_auth = requires_auth()};
  if (remote_ && !initiated_) hello.addresses = net::addresses_of(us_.interfaces);
  if (Status status = base::random_bytes(hello.key_share); !status.ok()) return status;
  if (remote_) {
    our_hello_ = encode(hello);
    return send(FrameOp::hello, 0, our_hello_);
  }
  hello.process = base::this_process();
  auto own = base::open_pidfd(::getpid());
  if (!own.ok()) return own.status();
  auto ring = NotificationRing::create();
  if (!ring.ok()) return ring.status();
  base::Fd fds[] = {*std::move(own), ring->release_fd()};
  incoming_.emplace(*std::move(ring));
  our_hello_ = encode(hello);
  return send(FrameOp::hello, 0, our_hello_, fds);
}

Status Session::notify(std::span<const std::byte> message) {
  if (Status status = NotificationRing::check(message); !status.ok()) return status;
  if (!outgoing_) return send(FrameOp::notify, 0, encode_notify(message));
  if (disconnected_)
    return {Code::disconnected, Scope::peer, "the connection to " + describe() + " is closed"};
  Status status = outgoing_->put(message);
  const bool full = status.code() == Code::no_resource;
  if (full ? !collecting_ : status.ok() && outgoing_->consume_doorbell_request())
    request_collection();
  collecting_ = full;
  return status;
}

/// Sends a `collect`, or leaves it to the flush that makes room for it.
void Session::request_collection() noexcept {
  {
    const base::MutexLock lock(mutex_);
    collect_owed_ = true;
    (void)flush_queued();
  }
  arm_write();
}

std::optional<std::vector<std::byte>> Session::next_notification() {
  if (!incoming_) return std::nullopt;
  auto next = incoming_->next();
  if (next.ok()) return *std::move(next);
  log_.write_repeated(base::Repeated::peer, base::Level::error, [&] {
    return "no more notifications of " + describe() + ": " + next.status().to_string();
  });
  incoming_.reset();
  return std::nullopt;
}

void Session::on_readable() {
  for (int i = 0; i < kFramesPerPoll && !disconnected_ && !data_connection_; ++i) {
    Result<std::optional<base::Frame>> next = [&] {
      const base::MutexLock lock(mutex_);
      return channel_.receive();
    }();
    if (!next.ok()) {
      if (next.status().code() == Code::disconnected)
        disconnect(Status(Code::disconnected, Scope::peer,
                          "peer " + describe() + ": " + next.status().what()));
      else
        fail(next.status());
      return;
    }
    if (!next->has_value()) return;
    if (Status status = handle(**next); !status.ok()) {
      fail(status);
      return;
    }
  }
}

Result<Session::DataConnectionOffer> Session::offer_data_connection(std::string transport) {
  DataConnectionOffer offer{
      {.transport = std::move(transport), .number = ++data_connections_offered_}, {}};
  const auto key = data_connection_key(key_, offer.hello.transport, offer.hello.number);
  if (!key.ok()) return key.status();
  const auto proof = auth_mac(*key, side());
  const auto keys = mac_keys_of(*key, side());
  if (!proof.ok() || !keys.ok()) return proof.ok() ? keys.status() : proof.status();
  offer.hello.proof = *proof;
  if (appends_mac()) offer.seals = *keys;
  return offer;
}

Result<std::optional<base::MacKeys>> Session::admit(const DataConnectionHello& hello) {
  const Status no(Code::permission_denied, Scope::peer,
                  "a data connection of a session that is none");
  if (!is_established()) return no;
  const auto key = data_connection_key(key_, hello.transport, hello.number);
  if (!key.ok()) return key.status();
  const auto right = auth_mac(*key, other(side()));
  const auto keys = mac_keys_of(*key, side());
  if (!right.ok() || !keys.ok()) return right.ok() ? keys.status() : right.status();
  if (!base::same_secret(hello.proof, *right)) return no;
  if (data_connections_admitted_.size() >= kMaxDataConnections ||
      !data_connections_admitted_.insert(hello.number).second)
    return Status(Code::permission_denied, Scope::peer, "a data connection that was made before");
  return appends_mac() ? std::optional(*keys) : std::nullopt;
}

base::AuthenticatedSocket Session::release_socket(std::optional<base::MacKeys> keys) {
  (void)send(FrameOp::ready, 0, {});
  const base::MutexLock lock(mutex_);
  dropped_ = true;
  disconnected_ = true;
  return {channel_.release_socket(), keys, channel_.release_tls()};
}

void Session::answer_error(std::uint64_t id, const Status& status) {
  (void)send(FrameOp::error, id, encode_error(status));
}

void Session::fail(const Status& why) {
  if (disconnected_) return report_end();
  try {
    const bool stranger = !initiated_ && !is_established();
    log_.write_repeated(stranger ? base::Repeated::stranger : base::Repeated::peer,
                        base::Level::warning,
                        [&] { return "peer " + describe() + " is dropped: " + why.to_string(); });
    answer_error(0, why);
  } catch (const std::exception&) {
    // No memory for the message.
  }
  disconnect(why);
}

void Session::disconnect(const Status& why) {
  if (!disconnected_.exchange(true)) {
    failure_ = why;
    // Keeps the fd number, while the peer sees end-of-file. A peer that said goodbye sees it when
    // this Session is destroyed.
    if (!goodbye_received_) ::shutdown(socket_, SHUT_RDWR);
  }
  report_end();
}

void Session::on_process_end() {
  process_ended_ = true;
  report_end();
}

/// Reports disconnection and termination. May throw if memory is exhausted; the caller retries.
void Session::report_end() {
  if (terminated_ || !disconnected_ || dropped_) return;
  if (is_established() && !disconnect_reported_) {
    disconnect_reported_ = true;
    try {
      events_.on_disconnected(*this);
    } catch (...) {
      disconnect_reported_ = false;  // retried next time
      throw;
    }
  }
  // A process that only closed its socket may still copy; one that died may have a forked child
  // that holds the socket and the GPU's files (fact: Death.NothingLandsAfterProcessAndSocketEnded).
  if (is_established() && !goodbye_received_ && !process_ended_ && !remote_) return;
  terminated_ = true;
  if (!is_established()) return;
  try {
    events_.on_terminated(*this);
  } catch (...) {
    terminated_ = false;  // retried next time
    throw;
  }
}

void Session::send_goodbye() {
  if (!is_established() || std::exchange(goodbye_sent_, true)) return;
  (void)send(FrameOp::goodbye, 0, {});
}

void Session::drop() {
  dropped_ = true;
  if (!disconnected_.exchange(true)) ::shutdown(socket_, SHUT_RDWR);
}

}  // namespace linkspan::control
