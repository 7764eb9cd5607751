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
    const Status why = decode_error(frame.payload);
    disconnect(stage_ == SessionStage::proving ? with_secret(why) : why);
    return {};
  }
  if (frame.plain)
    return {Code::permission_denied, Scope::peer,
            std::string("the peer speaks no TLS and this side does") + base::kTlsRemedy};
  if (stage_ == SessionStage::greeting && op == FrameOp::data_connection && is_remote() &&
      !initiated()) {
    auto data_connection = decode_data_connection(frame.payload);
    if (!data_connection.ok()) return data_connection.status();
    data_connection_ = *std::move(data_connection);
    peer_.incarnation = frame.header.incarnation;
    return {};
  }
  if (stage_ == SessionStage::greeting) {
    if (op != FrameOp::hello) return {Code::corrupt, Scope::peer, "the peer did not say hello"};
    return on_hello(frame);
  }
  if (frame.header.incarnation != incarnation())
    return {Code::corrupt, Scope::peer, "a frame of another incarnation"};
  if (stage_ == SessionStage::proving) return on_proof(frame);
  if (end_.sent_goodbye() && op != FrameOp::goodbye) return {};
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
      end_.receive_goodbye();
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
  if (!is_remote()) {
    // A forged descriptor could become readable and report a death that did not happen.
    if (frame.fds.empty() || !base::is_pidfd(frame.fds[0].get()))
      return {Code::corrupt, Scope::peer, "hello without a pidfd"};
    if (frame.fds.size() > 1)
      if (Status status = rings_.open(frame.fds[1]); !status.ok()) return status;
    peer_.pidfd = std::move(frame.fds[0]);
    peer_.pidfd.trust();
  }
  if (is_remote() && hello->requires_auth != requires_auth())
    return with_secret(
        {Code::permission_denied, Scope::peer,
         std::string(hello->requires_auth ? "the peer asks for a secret and this side has none"
                                          : "the peer has no secret and this side asks for it") +
             ": give both the same file by LINKSPAN_SECRET_FILE or EngineOptions::secret_file, or "
             "connect with ConnectOptions::secret"});
  peer_.hello = *std::move(hello);
  peer_.incarnation = frame.header.incarnation;
  const std::string& secret = expected_.secret ? *expected_.secret->bytes : us_.secret;
  if (Status status = authenticator_.derive(requires_auth() ? secret : std::string_view(),
                                            us_.incarnation, {frame.payload, incarnation()});
      !status.ok())
    return status;
  if (expected_.secret) expected_.secret->bytes.reset();
  if (!requires_auth()) return establish();
  stage_ = SessionStage::proving;
  // The listening side sends its proof only after it has verified the connecting side's, so a port
  // scanner learns nothing.
  return initiated() ? send_proof() : Status();
}

/// Adds to a refusal which secret connect() tried. An accepting side has only its Engine's.
Status Session::with_secret(const Status& why) const {
  if (why.code() != Code::permission_denied || !initiated() || !requires_auth()) return why;
  return {why.code(), why.scope(),
          why.what() + "; connected with " +
              (expected_.secret ? "ConnectOptions::secret" : "the Engine's secret")};
}

/// Sends the proof. From then on frames have MAC tags, unless TLS is used.
Status Session::send_proof() {
  const auto proof = authenticator_.prove();
  if (!proof.ok()) return proof.status();
  if (Status status = send(FrameOp::proof, 0, encode_proof(proof->mac)); !status.ok())
    return status;
  if (authenticator_.seals())
    socket_.with_channel(
        [&](base::FdChannel& channel) { channel.authenticate_sent(proof->keys.out); });
  return {};
}

Status Session::on_proof(const base::Frame& frame) {
  if (static_cast<FrameOp>(frame.header.op) != FrameOp::proof)
    return {Code::corrupt, Scope::peer, "the peer did not prove that it knows the secret"};
  const auto said = decode_proof(frame.payload);
  const auto right = authenticator_.expected();
  if (!said.ok() || !right.ok()) return said.ok() ? right.status() : said.status();
  if (!base::same_secret(*said, right->mac))
    return with_secret(
        {Code::permission_denied, Scope::peer, "the peer has another secret than this side"});
  if (authenticator_.seals())
    socket_.with_channel(
        [&](base::FdChannel& channel) { channel.authenticate_received(right->keys.in); });
  if (Status status = initiated() ? Status() : send_proof(); !status.ok()) return status;
  return establish();
}

Status Session::establish() {
  if (!expected_.name.empty() && hello().engine != expected_.name)
    return {Code::permission_denied, Scope::peer,
            "the peer there is \"" + hello().engine + "\", and not \"" + expected_.name +
                "\" as ConnectOptions::expect says"};
  if (expected_.incarnation != 0 && incarnation() != expected_.incarnation)
    return {Code::permission_denied, Scope::peer,
            "the peer there is \"" + hello().engine +
                "\", and not the Engine of the address, which has ended or listens at another "
                "host: ask it for Engine::addresses()"};
  if (Status status = events_.on_established(shared_from_this()); !status.ok()) return status;
  stage_ = SessionStage::established;
  limit_payload(base::kMaxPayload);
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
