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

Status no_room_for_fds() {
  return {Code::system, Scope::process,
          "file descriptors of the peer's found no room in this process (RLIMIT_NOFILE)"};
}

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

Status Session::handle(base::Frame& frame) {
  const auto op = static_cast<FrameOp>(frame.header.op);
  // The peer refused this session. It may do so after we established it; then id is 0.
  if (op == FrameOp::error && (!is_established() || (!is_up() && frame.header.id == 0))) {
    disconnect(decode_error(frame.payload));
    return {};
  }
  if (frame.plain)
    return {Code::permission_denied, Scope::peer,
            std::string("the peer speaks no TLS and this side does") + base::kTlsRemedy};
  if (stage_ == SessionStage::greeting && op == FrameOp::data_connection && remote_ &&
      !initiated_) {
    auto data_connection = decode_data_connection(frame.payload);
    if (!data_connection.ok()) return data_connection.status();
    data_connection_ = *std::move(data_connection);
    incarnation_ = frame.header.incarnation;
    return {};
  }
  if (stage_ == SessionStage::greeting) {
    if (op != FrameOp::hello) return {Code::corrupt, Scope::peer, "the peer did not say hello"};
    return on_hello(frame);
  }
  if (frame.header.incarnation != incarnation_)
    return {Code::corrupt, Scope::peer, "a frame of another incarnation"};
  if (stage_ == SessionStage::proving) return on_proof(frame);
  if (goodbye_sent_ && op != FrameOp::goodbye) return {};
  switch (op) {
    case FrameOp::ready:
      if (stage_ == SessionStage::established) {
        stage_ = SessionStage::up;
        events_.on_up(*this);
      }
      return {};
    case FrameOp::import:
      return on_import(frame);
    case FrameOp::imported: {
      if (frame.fds_lost) {
        events_.on_import_reply(*this, frame.header.id, no_room_for_fds());
        return {};
      }
      auto descriptor = decode_imported(frame.payload);
      if (!descriptor.ok()) return descriptor.status();
      events_.on_import_reply(*this, frame.header.id,
                              ExportedRegion{*std::move(descriptor), std::move(frame.fds)});
      return {};
    }
    case FrameOp::ask_set: {
      auto ask = decode_ask_set(frame.payload);
      if (!ask.ok()) return ask.status();
      events_.on_set_request(*this, frame.header.id, *std::move(ask));
      return {};
    }
    case FrameOp::set: {
      auto set = decode_set(frame.payload);
      if (!set.ok()) return set.status();
      events_.on_set_reply(*this, frame.header.id, *std::move(set));
      return {};
    }
    case FrameOp::error:
      events_.on_import_reply(*this, frame.header.id, decode_error(frame.payload));
      return {};
    case FrameOp::notify: {
      auto payload = decode_notify(frame.payload);
      if (!payload.ok()) return payload.status();
      events_.on_notification(*this, *std::move(payload));
      return {};
    }
    case FrameOp::collect:
      events_.on_collect_request(*this);
      return {};
    case FrameOp::goodbye:
      goodbye_received_ = true;
      disconnect(Status(Code::disconnected, Scope::peer,
                        "peer " + describe() + " has closed this connection, or its Engine"));
      return {};
    case FrameOp::for_transport: {
      auto message = decode_for_transport(frame.payload);
      if (!message.ok()) return message.status();
      events_.on_transport_message(*this, *std::move(message), frame.fds);
      return {};
    }
    case FrameOp::offer:
    case FrameOp::accept:
    case FrameOp::finished:
    case FrameOp::withdraw:
      return events_.on_message_frame(*this, frame);
    case FrameOp::hello:
    case FrameOp::proof:
    case FrameOp::data_connection:
      break;
  }
  answer_error(frame.header.id,
               Status(Code::unsupported, Scope::request,
                      "this release knows no op " + std::to_string(frame.header.op)));
  return {};
}

Status Session::on_hello(base::Frame& frame) {
  if (frame.header.version < 1)
    return {Code::unsupported, Scope::peer,
            "protocol version " + std::to_string(frame.header.version) + "; this release speaks " +
                std::to_string(base::kProtocolVersion)};
  if (frame.fds_lost) return no_room_for_fds();
  auto hello = decode_hello(frame.payload);
  if (!hello.ok()) return hello.status();
  if (frame.header.incarnation == 0 || frame.header.incarnation == us_.incarnation)
    return {Code::invalid_argument, Scope::peer, "an Engine cannot be its own peer"};
  if (!remote_) {
    // A forged descriptor could become readable and report a death that did not happen.
    if (frame.fds.empty() || !base::is_pidfd(frame.fds[0].get()))
      return {Code::corrupt, Scope::peer, "hello without a pidfd"};
    if (frame.fds.size() > 1) {
      auto ring = NotificationRing::open(frame.fds[1]);
      if (!ring.ok()) return ring.status();
      outgoing_.emplace(*std::move(ring));
    }
    pidfd_ = std::move(frame.fds[0]);
    pidfd_.trust();
  }
  if (remote_ && hello->requires_auth == us_.secret.empty())
    return {Code::permission_denied, Scope::peer,
            std::string(hello->requires_auth ? "the peer asks for a secret and this side has none"
                                             : "the peer has no secret and this side asks for it") +
                ": give both the same file by LINKSPAN_SECRET_FILE or EngineOptions::secret_file"};
  hello_ = *std::move(hello);
  incarnation_ = frame.header.incarnation;
  const SignedHello ours{our_hello_, us_.incarnation}, theirs{frame.payload, incarnation_};
  const std::string_view secret = requires_auth() ? us_.secret : std::string_view();
  const auto key = session_key(std::as_bytes(std::span(secret)), initiated_ ? ours : theirs,
                               initiated_ ? theirs : ours);
  if (!key.ok()) return key.status();
  key_ = *key;
  if (!requires_auth()) return establish();
  stage_ = SessionStage::proving;
  // The listening side sends its proof only after it has verified the connecting side's, so a port
  // scanner learns nothing.
  return initiated_ ? send_proof() : Status();
}

/// Sends the proof. From then on frames have MAC tags, unless TLS is used.
Status Session::send_proof() {
  const auto proof = auth_mac(key_, side());
  const auto keys = mac_keys_of(key_, side());
  if (!proof.ok() || !keys.ok()) return proof.ok() ? keys.status() : proof.status();
  if (Status status = send(FrameOp::proof, 0, encode_proof(*proof)); !status.ok()) return status;
  const base::MutexLock lock(mutex_);
  if (appends_mac()) channel_.authenticate_sent(keys->out);
  return {};
}

Status Session::on_proof(const base::Frame& frame) {
  if (static_cast<FrameOp>(frame.header.op) != FrameOp::proof)
    return {Code::corrupt, Scope::peer, "the peer did not prove that it knows the secret"};
  const auto said = decode_proof(frame.payload);
  const auto right = auth_mac(key_, other(side()));
  const auto keys = mac_keys_of(key_, side());
  if (!said.ok()) return said.status();
  if (!right.ok() || !keys.ok()) return right.ok() ? keys.status() : right.status();
  if (!base::same_secret(*said, *right))
    return {Code::permission_denied, Scope::peer, "the peer has another secret than this side"};
  {
    const base::MutexLock lock(mutex_);
    if (appends_mac()) channel_.authenticate_received(keys->in);
  }
  if (Status status = initiated_ ? Status() : send_proof(); !status.ok()) return status;
  return establish();
}

Status Session::establish() {
  if (!expected_.empty() && hello_.engine != expected_)
    return {Code::permission_denied, Scope::peer,
            "the peer there is \"" + hello_.engine + "\", and not \"" + expected_ +
                "\" as ConnectOptions::expect says"};
  if (Status status = events_.on_established(shared_from_this()); !status.ok()) return status;
  stage_ = SessionStage::established;
  {
    const base::MutexLock lock(mutex_);
    channel_.limit_payload(base::kMaxPayload);
  }
  return send(FrameOp::ready, 0, {});
}

Status Session::on_import(const base::Frame& frame) {
  auto asked = decode_import(frame.payload);
  if (!asked.ok()) return asked.status();
  auto found = asked->name.empty() ? events_.on_offer_import_request(*this, asked->serial)
                                   : events_.on_import_request(*this, asked->name, asked->serial);
  Status status = found.ok() ? send(FrameOp::imported, frame.header.id,
                                    encode_imported(found->descriptor), found->fds)
                             : found.status();
  if (!status.ok()) answer_error(frame.header.id, status);
  return {};
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
