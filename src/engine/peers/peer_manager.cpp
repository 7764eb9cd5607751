#include "engine/peers/peer_manager.hpp"

#include <algorithm>

#include "base/interrupt.hpp"
#include "base/options.hpp"
#include "base/socket_dir.hpp"
#include "control/socket_address.hpp"
#include "engine/diagnostics/report.hpp"
#include "engine/peers/session_channel.hpp"

namespace linkspan::engine {
namespace {

/// Returns invalid_argument unless the secret of a connection has 16 to 4096 bytes and goes with
/// the security of the Engine.
Status check_secret(const std::string& secret, Security security) {
  if (security != Security::insecure)
    return base::check_secret(secret, "ConnectOptions::secret", Scope::request);
  return {Code::invalid_argument, Scope::request,
          "ConnectOptions::secret contradicts security=\"insecure\" of this Engine: open it with "
          "another security, or connect without a secret"};
}

}  // namespace

Status PeerManager::listen(std::string_view address) {
  const base::Options& options = uses_.options;
  const std::string made_up = std::to_string(uses_.identity.incarnation);
  auto at = control::parse_address(address.empty() ? made_up : address, options.socket_dir);
  if (!at.ok()) return at.status();
  at->incarnation = 0;  // an address of addresses(), perhaps of an Engine that has ended
  if (at->path.starts_with(options.socket_dir + "/"))
    if (Status status = control::secure_folder(options.socket_dir,
                                               base::setting_of_socket_dir(options.socket_dir));
        !status.ok())
      return status;
  const auto bound = control_->listen(*at);
  if (!bound.ok()) return bound.status();
  const base::MutexLock lock(mutex_);
  (bound->is_tcp() ? tcp_ : unix_) = *bound;
  address_ = bound->to_string();
  return {};
}

std::string PeerManager::address() const {
  const base::MutexLock lock(mutex_);
  return address_;
}

std::string PeerManager::addresses() const {
  std::vector<control::SocketAddress> all;
  {
    const base::MutexLock lock(mutex_);
    if (!unix_.path.empty()) all.push_back(unix_);
    if (!tcp_.host.empty()) all.push_back(tcp_);
  }
  if (!all.empty() && all.back().is_tcp()) {
    const control::SocketAddress first = all.back();
    const bool any = first.host == "0.0.0.0" || first.host == "::";
    std::vector<net::TcpAddress> more;
    // A listener that no other host reaches is at no interface.
    if (any || net::parse_host(first.host)) more = net::addresses_of(uses_.identity.interfaces);
    if (any) {
      all.pop_back();
      if (const auto host = net::addresses_of_host(); host.ok())
        more.insert(more.end(), host->begin(), host->end());
    }
    for (const net::TcpAddress& each : more)
      if (all.size() < control::kMaxAddresses &&
          (first.host != "0.0.0.0" || each.raw.ss_family == AF_INET) &&
          std::ranges::find(all, each.host(), &control::SocketAddress::host) == all.end())
        all.push_back({.host = each.host(), .port = first.port});
    if (any && (all.empty() || !all.back().is_tcp()))  // a host without a network
      all.push_back({.host = first.host == "::" ? "::1" : "127.0.0.1", .port = first.port});
  }
  std::string text;
  for (control::SocketAddress& each : all) {
    each.incarnation = uses_.identity.incarnation;
    text += (text.empty() ? "" : ",") + each.to_string();
  }
  return text;
}

Result<PeerManager::MetPeer> PeerManager::connect(std::string_view address,
                                                  const ConnectOptions& options) {
  const auto at = control::parse_addresses(address, uses_.options.socket_dir);
  if (!at.ok()) return at.status();
  if (!options.secret.empty())
    if (Status s = check_secret(options.secret, uses_.identity.security); !s.ok()) return s;
  for (const control::SocketAddress& each : *at)
    if (each.is_tcp() && each.port == 0)
      return Status(
          Code::invalid_argument, Scope::request,
          each.to_string() + ": nobody is at port 0; Engine::address() there names the port");
  auto session =
      control_->connect(*at, base::Deadline::in(options.timeout), options.expect, options.secret);
  if (!session.ok()) return session.status();
  return MetPeer{(*session)->id(), (*session)->hello().engine};
}

Result<PeerManager::MetPeer> PeerManager::connect_shared(const std::string& address,
                                                         base::Deadline deadline) {
  for (;;) {
    const auto shared = find_shared(address, deadline);
    if (!shared.ok()) return shared.status();
    if (!*shared) break;
    if (is_up((*shared)->id)) return **shared;
    forget_shared((*shared)->id);
  }
  std::optional<MetPeer> met;
  std::shared_ptr<void> ended(nullptr, [&](void*) {  // also if memory ends before
    const base::MutexLock lock(mutex_);
    const auto shared = shared_.find(address);
    if (met)
      shared->second = std::move(met);
    else
      shared_.erase(shared);
    event_.notify_all();
  });
  auto peer = connect(address, {.timeout = deadline.left()});
  if (peer.ok()) met = *peer;
  ended.reset();
  if (peer.ok() && !is_up(peer->id)) forget_shared(peer->id);  // it ended before it was shared
  return peer;
}

/// Returns the peer that was met at the address; null if this thread is to connect.
Result<std::optional<PeerManager::MetPeer>> PeerManager::find_shared(const std::string& address,
                                                                     base::Deadline deadline) {
  const base::MutexLock lock(mutex_);
  for (;;) {
    const auto [shared, first] = shared_.try_emplace(address);
    if (first || shared->second) return shared->second;
    if (closed_) return Status(Code::canceled, Scope::process, "the Engine is closed");
    if (deadline.passed())
      return Status(Code::timed_out, Scope::request,
                    address + ": another thread has not connected in time");
    if (base::wait_or_interrupted(event_, mutex_, deadline)) return base::interrupted();
  }
}

void PeerManager::forget_shared(std::uint64_t peer) {
  const base::MutexLock lock(mutex_);
  std::erase_if(shared_, [&](const auto& each) { return each.second && each.second->id == peer; });
}

bool PeerManager::is_up(std::uint64_t peer) const {
  const auto found = uses_.peers.find(peer);
  return found != nullptr && found->state() == PeerState::up;
}

Result<PeerManager::MetPeer> PeerManager::accept(Duration timeout) {
  const base::Deadline deadline = base::Deadline::in(timeout);
  const base::MutexLock lock(mutex_);
  while (accepted_.empty()) {
    if (closed_) return Status(Code::canceled, Scope::process, "the Engine is closed");
    if (deadline.passed()) return Status(Code::timed_out, Scope::request, "no peer has connected");
    if (base::wait_or_interrupted(event_, mutex_, deadline)) return base::interrupted();
  }
  MetPeer peer = std::move(accepted_.front());
  accepted_.pop_front();
  return peer;
}

void PeerManager::close() {
  const base::MutexLock lock(mutex_);
  closed_ = true;
  event_.notify_all();
}

std::vector<control::TransportAddress> PeerManager::transport_addresses(bool remote) const {
  std::vector<control::TransportAddress> all;
  for (const auto& transport : uses_.transports)
    if (reaches(*transport, remote))
      all.push_back({std::string(transport->name()), transport->address()});
  return all;
}

Status PeerManager::on_established(const std::shared_ptr<control::Session>& session) {
  const Transports& transports = uses_.transports;
  auto peer = std::make_shared<PeerScheduler>(session, uses_.peers, transports, uses_.log);
  for (std::size_t i = 0; i < transports.size(); ++i) {
    for (const control::TransportAddress& each : session->hello().transports) {
      if (each.name != transports[i]->name() || !reaches(*transports[i], session->is_remote()))
        continue;
      auto channel = std::make_unique<SessionChannel>(
          session, each.name, *control_,
          [&inbox = uses_.inbox](const control::Session& from, std::vector<std::byte> payload,
                                 std::uint64_t after) {
            inbox.on_write(from, std::move(payload), after);
          },
          [this, raw = peer.get()] {
            uses_.peers.activate(*raw);
            uses_.progress.wake();
          });
      auto endpoint = transports[i]->connect(each.bytes, *channel,
                                             base::Deadline::in(uses_.options.connect_deadline));
      if (!endpoint.ok()) return endpoint.status();
      peer->add_endpoint(i, std::move(channel), *std::move(endpoint));
    }
  }
  uses_.peers.add(peer);
  return {};
}

void PeerManager::on_up(const std::shared_ptr<control::Session>& session) {
  const base::Log& log = uses_.log;
  log.write_repeated(base::Repeated::life, base::Level::info, [&] {
    const auto peer = uses_.peers.find(session->id());
    const std::string paths = peer == nullptr ? std::string() : peer->describe_paths();
    // Nothing was imported yet, so the line names no path that is taken.
    return "peer " + std::to_string(session->id()) + " " + quoted(session->hello().engine) + " (" +
           session->place() + ", incarnation " + hex_of(session->incarnation()) + ") up" +
           (paths.empty() ? ", but no transport of ours reaches it" : paths);
  });
  if (session->initiated() && session->is_on_loopback() && !reported_loopback_.exchange(true) &&
      log.enabled(base::Level::warning))
    log.write(base::Level::warning,
              session->describe() +
                  " is on this host but was met by TCP: its memory is not mapped, transfers take "
                  "TCP and not NVLink or shared memory. Connect to its unix: address for those; "
                  "require \"local\" refuses what goes by a network");
  uses_.inbox.add_peer(session);
  const base::MutexLock lock(mutex_);
  if (!session->initiated()) accepted_.push_back({session->id(), session->hello().engine});
  event_.notify_all();
}

void PeerManager::on_disconnected(control::Session& session) {
  uses_.log.write_repeated(base::Repeated::life, base::Level::info, [&] {
    return "lost " + session.describe() + ": " + session.failure().what();
  });
  if (const auto peer = uses_.peers.find(session.id())) peer->on_lost();
  uses_.progress.wake();
}

void PeerManager::on_terminated(control::Session& session) {
  uses_.inbox.remove_peer(session);
  forget_shared(session.id());
  {
    const base::MutexLock lock(mutex_);
    if (accepted_.size() > kMaxUnaccepted)
      std::erase_if(accepted_, [&](const MetPeer& each) { return each.id == session.id(); });
  }
  if (const auto peer = uses_.peers.find(session.id())) peer->on_gone();
  uses_.progress.wake();
}

void PeerManager::on_transport_message(control::Session& session,
                                       const control::TransportMessage& message,
                                       std::span<base::Fd> fds) {
  const auto peer = uses_.peers.find(session.id());
  const Status status = peer == nullptr ? Status(Code::unsupported, Scope::request,
                                                 "no transport \"" + message.transport + "\"")
                                        : peer->on_transport_message(message, fds);
  uses_.progress.wake();
  fail_or_log(session, status);
}

void PeerManager::on_data_connection(control::Session& session, const std::string& transport,
                                     Result<base::AuthenticatedSocket> socket) {
  const auto peer = uses_.peers.find(session.id());
  const Status status = peer == nullptr ? Status(Code::unsupported, Scope::request,
                                                 "no streams of \"" + transport + "\" here")
                                        : peer->on_data_connection(transport, std::move(socket));
  uses_.progress.wake();
  fail_or_log(session, status);
}

/// Ends the session of a peer that broke the rules; any other failure is a line in the log.
void PeerManager::fail_or_log(control::Session& session, const Status& status) const {
  if (status.code() == Code::corrupt)
    session.fail(status);
  else if (!status.ok())
    uses_.log.write_repeated(base::Repeated::peer, base::Level::warning,
                             [&] { return session.describe() + ": " + status.to_string(); });
}

}  // namespace linkspan::engine
