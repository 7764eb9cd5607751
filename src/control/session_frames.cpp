// Handles the frames that come to a Session: its handshake, then what the peer requests and
// answers.
#include <string>
#include <utility>

#include "control/session.hpp"

namespace linkspan::control {
namespace {

Status no_room_for_fds() {
  return {Code::system, Scope::process,
          "file descriptors of the peer's found no room in this process (RLIMIT_NOFILE)"};
}

}  // namespace

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

}  // namespace linkspan::control
