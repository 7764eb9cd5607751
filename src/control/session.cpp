#include "control/session.hpp"

#include <unistd.h>

#include <exception>

#include "base/no_memory.hpp"
#include "net/tcp_socket.hpp"

namespace linkspan::control {
namespace {

constexpr int kFramesPerPoll = 64;

}  // namespace

Session::Session(std::uint64_t id, bool initiated, base::Fd socket, const Identity& us,
                 SessionEvents& events, SessionWriter& writer, const base::Log& log,
                 ExpectedPeer expected)
    : id_(id),
      us_(us),
      events_(events),
      log_(log),
      socket_(id, std::move(socket), us.incarnation, writer),
      expected_(std::move(expected)),
      authenticator_(initiated ? Side::connector : Side::acceptor,
                     requires_auth() && tls() == nullptr) {  // TLS authenticates frames itself
  limit_payload(kMaxUnprovenFrame);
}

Session::~Session() {
  // The last reference was that of a copy on the peer's memory, which has ended.
  if (end_.owes_goodbye())
    (void)base::or_no_memory([&] { return socket_.queue(FrameOp::goodbye, 0, {}, {}); });
}

void Session::limit_payload(std::size_t bytes) {
  socket_.with_channel([&](base::FdChannel& channel) { channel.limit_payload(bytes); });
}

std::string Session::describe() const {
  return (hello().engine.empty() ? "unknown" : hello().engine) + " (peer " + std::to_string(id_) +
         ", " + place() + ")";
}

bool Session::is_this_process() const noexcept { return !is_remote() && pid() == ::getpid(); }

Status Session::send(FrameOp op, std::uint64_t id, std::span<const std::byte> payload,
                     std::span<base::Fd> fds) {
  if (is_disconnected()) return closed();
  return socket_.send(op, id, payload, fds);
}

Status Session::closed() const {
  return {Code::disconnected, Scope::peer, "the connection to " + describe() + " is closed"};
}

Status Session::secure() {
  if (tls() == nullptr) return {};
  auto end = base::TlsEnd::create(tls(), socket_.fd(),
                                  initiated() ? base::TlsSide::connector : base::TlsSide::acceptor);
  if (!end.ok()) return end.status();
  socket_.with_channel([&](base::FdChannel& channel) { channel.secure(*std::move(end)); });
  return {};
}

/// Reads the credentials of the peer from the kernel, and checks its user.
Status Session::read_peer_credentials() {
  auto credentials = base::peer_credentials(socket_.fd());
  if (!credentials.ok()) return credentials.status();
  peer_.pid = credentials->pid;
  peer_.place = "pid " + std::to_string(peer_.pid);
  const bool one_user = base::names_one_user(credentials->uid);
  peer_.same_user = one_user && credentials->uid == ::geteuid();
  if (!us_.any_uid && !peer_.same_user)
    return {Code::permission_denied, Scope::peer,
            "peer of uid " + std::to_string(credentials->uid) + ", this is uid " +
                std::to_string(::geteuid()) +
                (one_user ? "" : " (any user that this user namespace has no number for)") +
                "; EngineOptions::any_uid lets it in"};
  return {};
}

Status Session::start() {
  if (is_remote()) {
    const auto other_end = net::peer_of(socket_.fd());
    peer_.loopback = other_end.ok() && other_end->is_loopback();
    peer_.place = "at " + (other_end.ok() ? other_end->to_string() : "an end that has gone");
    if (Status status = secure(); !status.ok()) return status;
  } else if (Status status = read_peer_credentials(); !status.ok()) {
    return status;
  }
  Hello hello{.engine = us_.engine,
              .process = {},
              .transports = events_.transport_addresses(is_remote()),
              .requires_auth = requires_auth()};
  if (is_remote() && !initiated()) hello.addresses = net::addresses_of(us_.interfaces);
  if (Status status = base::random_bytes(hello.key_share); !status.ok()) return status;
  if (is_remote()) return send(FrameOp::hello, 0, authenticator_.sign(encode(hello)));
  hello.process = base::this_process();
  auto own = base::open_pidfd(::getpid());
  if (!own.ok()) return own.status();
  auto ring = rings_.create();
  if (!ring.ok()) return ring.status();
  base::Fd fds[] = {*std::move(own), *std::move(ring)};
  return send(FrameOp::hello, 0, authenticator_.sign(encode(hello)), fds);
}

Status Session::notify(std::span<const std::byte> message) {
  if (Status status = NotificationRing::check(message); !status.ok()) return status;
  if (!rings_.can_put()) return send(FrameOp::notify, 0, encode_notify(message));
  if (is_disconnected()) return closed();
  bool collect = false;
  Status status = rings_.put(message, collect);
  if (collect) socket_.request_collection();
  return status;
}

std::optional<std::vector<std::byte>> Session::next_notification() {
  auto next = rings_.next();
  if (next.ok()) return *std::move(next);
  log_.write_repeated(base::Repeated::peer, base::Level::error, [&] {
    return "no more notifications of " + describe() + ": " + next.status().to_string();
  });
  return std::nullopt;
}

void Session::on_readable() {
  for (int i = 0; i < kFramesPerPoll && !is_disconnected() && !data_connection_; ++i) {
    auto next = socket_.with_channel(&base::FdChannel::receive);
    if (!next.ok()) {
      if (next.status().code() == Code::disconnected)
        disconnect(Status(Code::disconnected, Scope::peer,
                          "peer " + describe() + ": " + next.status().what()));
      else
        fail(tls() != nullptr && !is_established() ? with_secret(next.status()) : next.status());
      return;
    }
    if (!next->has_value()) return;
    if (Status status = handle(**next); !status.ok()) {
      fail(status);
      return;
    }
  }
}

base::AuthenticatedSocket Session::release_socket(std::optional<base::MacKeys> keys) {
  (void)send(FrameOp::ready, 0, {});
  return socket_.with_channel([&](base::FdChannel& channel) {
    (void)end_.drop();
    return base::AuthenticatedSocket{channel.release_socket(), keys, channel.release_tls()};
  });
}

void Session::answer_error(std::uint64_t id, const Status& status) {
  (void)send(FrameOp::error, id, encode_error(status));
}

void Session::fail(const Status& why) {
  if (is_disconnected()) return end_.report(*this, events_);
  try {
    const bool stranger = !initiated() && !is_established();
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
  // A peer that said goodbye sees end-of-file when this Session is destroyed.
  if (end_.disconnect(why) && !end_.received_goodbye()) socket_.shut_down();
  end_.report(*this, events_);
}

void Session::on_process_end() {
  end_.end_process();
  end_.report(*this, events_);
}

void Session::send_goodbye() {
  if (is_established() && end_.begin_goodbye()) (void)send(FrameOp::goodbye, 0, {});
}

void Session::drop() {
  if (end_.drop()) socket_.shut_down();
}

}  // namespace linkspan::control
