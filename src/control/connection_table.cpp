#include "control/connection_table.hpp"

#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <exception>
#include <optional>
#include <utility>

#include "control/session_data_connections.hpp"
#include "net/descriptor_watch.hpp"

namespace linkspan::control {
namespace {

using asio::posix::stream_descriptor;

/// Pause before fds are sent again for which the kernel had no room.
constexpr auto kPauseWhenFull = std::chrono::milliseconds(20);

// Made at load, for when memory is exhausted; not destroyed, as the Control thread may run at exit.
const Status& not_served = *new Status(  // NOLINT(cert-err58-cpp)
    Code::no_resource, Scope::peer, "this process could not serve the peer, for want of memory");

Status handshake_timed_out() {
  return {Code::timed_out, Scope::peer, "the handshake took too long"};
}

}  // namespace

/// One Session and what the event loop waits for on its behalf.
struct ConnectionTable::ConnectionEntry {
  ConnectionEntry(asio::io_context& io, std::shared_ptr<Session> s,
                  const SessionDataConnections::Uses& uses)
      : session(std::move(s)),
        socket(io),
        pidfd(io),
        handshake(io),
        full(io),
        data_connections(std::make_shared<SessionDataConnections>(session, uses)) {}

  std::shared_ptr<Session> session;       // shared with the engine's peer, as its Channel
  net::BorrowedDescriptor socket, pidfd;  // of the Session, for waiting
  asio::steady_timer handshake, full;
  std::string source;                    // its address, of a remote one
  bool known = false;                    // counted as a peer of that address
  bool writing = false, broken = false;  // an operation for it has thrown
  // Shared, because a pending open holds a weak reference.
  std::shared_ptr<SessionDataConnections> data_connections;
  std::shared_ptr<ConnectResult> result;  // shared with connect(); null: an incoming connection
};

ConnectionTable::ConnectionTable(asio::io_context& io, const Identity& us, SessionEvents& events,
                                 const base::Log& log, PendingConnects& connects)
    : io_(io), us_(us), events_(events), log_(log), connects_(connects) {}

ConnectionTable::~ConnectionTable() = default;

ConnectionTable::ConnectionEntry* ConnectionTable::find(std::uint64_t id) {
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : found->second.get();
}

/// Evicts a pending handshake if an incoming connection needs its room. no_resource: there is none
/// to evict, or too many connections are open.
Status ConnectionTable::make_room(bool incoming, const std::string& source) {
  if (entries_.size() >= us_.limits.peers)
    return {Code::no_resource, Scope::peer,
            std::to_string(us_.limits.peers) +
                " connections are open here, which is all that it takes: try again"};
  if (!incoming) return {};
  return pending_.make_room(
      source,
      [&](std::uint64_t id) {
        return !entries_.at(id)->session->socket().with_channel(&base::FdChannel::has_received);
      },
      [&](std::uint64_t id, const Status& why) {
        entries_.at(id)->session->fail(why);
        update(id);
      });
}

/// Sends `why` as far as the socket accepts it, and closes.
void ConnectionTable::reject(base::Fd socket, const Status& why) {
  base::FdChannel channel(std::move(socket));
  (void)channel.queue({.length = 0,
                       .op = static_cast<std::uint16_t>(FrameOp::error),
                       .id = 0,
                       .incarnation = us_.incarnation},
                      encode_error(why), {});
  (void)channel.flush();
}

void ConnectionTable::adopt(base::Fd socket, Duration handshake,
                            std::shared_ptr<ConnectResult> result) {
  if (ending_) {  // closes it
    if (result != nullptr) connects_.decide(*result, PendingConnects::closing());
    return;
  }
  std::string source;
  if (!base::is_unix_socket(socket.get())) {
    net::prepare(socket, us_.limits.silence);
    const auto from = net::peer_of(socket.get());
    source = from.ok() ? PendingHandshakes::source_of(*from) : "?";
  }
  if (const Status room = make_room(result == nullptr, source); !room.ok()) {
    reject(std::move(socket), room);
    if (result != nullptr) connects_.decide(*result, room);
    return;
  }
  const std::uint64_t id = ++last_id_;
  auto session =
      std::make_shared<Session>(id, result != nullptr, std::move(socket), us_, events_, *this, log_,
                                result != nullptr ? std::move(result->expect) : ExpectedPeer());
  entries_.emplace(id,
                   std::make_unique<ConnectionEntry>(
                       io_, session, SessionDataConnections::Uses{opener_, us_, events_, log_}));
  serve(id, [&](ConnectionEntry& entry) {
    entry.result = std::move(result);
    entry.source = source;
    if (entry.result == nullptr) pending_.add(id, source);
    Status started = net::watch(entry.socket, session->socket().fd());
    if (started.ok()) started = session->start();
    if (started.ok() && entry.result == nullptr && !session->is_remote())
      started = processes_.add(id, session->pid());
    if (!started.ok()) session->fail(started);
    entry.handshake.expires_after(handshake);
    entry.handshake.async_wait([this, id](const asio::error_code& error) {
      if (error) return;
      serve(id, [&](ConnectionEntry& late) {
        if (late.session->is_up()) return;
        late.session->fail(handshake_timed_out());
        update(id);
      });
    });
    if (update(id)) read_next(entry);
  });
}

/// Runs an operation for one peer. If it throws (memory is exhausted), only this peer is
/// disconnected.
template <class What>
void ConnectionTable::serve(std::uint64_t id, const What& what) {
  ConnectionEntry* const entry = find(id);
  if (entry == nullptr) return;
  try {
    what(*entry);
  } catch (const std::exception&) {
    if (ConnectionEntry* const broken = find(id)) broken->broken = any_broken_ = true;
  }
}

bool ConnectionTable::drop_broken() {
  if (!std::exchange(any_broken_, false)) return true;
  for (auto next = entries_.begin(); next != entries_.end();) {
    const auto& [id, entry] = *next++;
    if (!entry->broken) continue;
    serve(id, [this, id = id](ConnectionEntry& broken) {
      broken.session->fail(not_served);
      broken.broken = false;  // lost, at least
      update(id);
    });
  }
  return !any_broken_;
}

/// Bounds the memory of incoming connections that are not established to PeerLimits::unproven
/// together: closes the largest one.
void ConnectionTable::bound_unproven() {
  std::size_t total = 0, most = 0;
  Session* largest = nullptr;
  for (const auto& [id, entry] : entries_) {
    Session& session = *entry->session;
    if (session.initiated() || session.is_established() || session.is_disconnected()) continue;
    const std::size_t bytes = session.socket().with_channel(&base::FdChannel::allocated_bytes);
    total += bytes;
    if (bytes <= most) continue;
    most = bytes;
    largest = &session;
  }
  if (total <= us_.limits.unproven) return;
  const std::uint64_t id = largest->id();
  largest->fail(Status(Code::no_resource, Scope::peer,
                       std::to_string(total) +
                           " bytes are kept here for connections that have not "
                           "shown who they are, " +
                           std::to_string(us_.limits.unproven) + " at most: try again"));
  asio::post(io_, [this, id] {
    if (find(id) != nullptr) update(id);
  });
}

void ConnectionTable::read_next(ConnectionEntry& entry) {
  const auto read = [this, id = entry.session->id()](const asio::error_code& error) {
    if (error) return;
    serve(id, [&](ConnectionEntry& ready) {
      ready.session->on_readable();
      if (ready.session->data_connection()) return adopt_data_connection(ready);
      watch_process(ready);
      bound_unproven();
      if (!update(id) || ready.session->is_disconnected()) return;
      read_next(ready);
      write_more(id);  // what TLS did not send before it had heard the peer
    });
  };
  if (entry.session->socket().with_channel(&base::FdChannel::has_buffered))
    asio::post(io_, [read] { read({}); });
  else
    entry.socket.async_wait(stream_descriptor::wait_read, read);
}

/// Passes a data connection to the session that expects it, or closes it.
void ConnectionTable::adopt_data_connection(ConnectionEntry& entry) {
  Session& from = *entry.session;
  Result<std::optional<base::MacKeys>> seals =
      Status(Code::permission_denied, Scope::peer, "a data connection of a session that is none");
  std::shared_ptr<Session> session;
  for (const auto& [id, each] : entries_) {
    if (!each->session->is_remote() || each->session->initiated() ||
        !each->session->is_established() || each->session->is_disconnected() ||
        each->session->incarnation() != from.incarnation())
      continue;
    session = each->session;
    seals = session->authenticator().admit(*from.data_connection());
    if (seals.ok()) break;
  }
  if (seals.ok()) {
    (void)entry.socket.release();
    events_.on_data_connection(*session, from.data_connection()->transport,
                               from.release_socket(*seals));
  } else {
    from.fail(seals.status());
  }
  forget(from.id());
}

void ConnectionTable::write_more(std::uint64_t id) {
  ConnectionEntry* entry = find(id);
  if (entry == nullptr || entry->writing || entry->session->is_disconnected()) return;
  const Status flushed = entry->session->socket().flush();
  if (!entry->session->socket().wants_write()) return;
  entry->writing = true;
  const auto again = [this, id](const asio::error_code& error) {
    serve(id, [&](ConnectionEntry& ready) {
      ready.writing = false;
      if (!error) write_more(id);
    });
  };
  if (flushed.code() != Code::no_resource)
    return entry->socket.async_wait(stream_descriptor::wait_write, again);
  // The socket has room, but the kernel has none for more fds in flight.
  entry->full.expires_after(kPauseWhenFull);
  entry->full.async_wait(again);
}

void ConnectionTable::watch_process(ConnectionEntry& entry) {
  if (entry.pidfd.is_open() || entry.session->pidfd() < 0) return;
  if (const Status status = net::watch(entry.pidfd, entry.session->pidfd()); !status.ok())
    return entry.session->fail(status);
  entry.pidfd.async_wait(stream_descriptor::wait_read,
                         [this, id = entry.session->id()](const asio::error_code& error) {
                           if (error) return;
                           serve(id, [&](ConnectionEntry& ended) {
                             ended.session->on_process_end();
                             update(id);
                           });
                         });
}

/// Updates the entry after any event: reports to connect() and removes a terminated session.
/// Returns false if it was removed.
bool ConnectionTable::update(std::uint64_t id) {
  ConnectionEntry& entry = *entries_.at(id);
  const bool lost = entry.session->is_disconnected();
  entry.data_connections->open();
  const bool known = !entry.source.empty() && entry.session->is_established() && !lost;
  if (entry.known != known)
    known ? pending_.add_peer(entry.source) : pending_.remove_peer(entry.source);
  entry.known = known;
  if (entry.session->is_up() || lost) {
    pending_.remove(id);
    entry.handshake.cancel();
    if (const auto result = std::exchange(entry.result, nullptr); result != nullptr) {
      if (lost)
        connects_.decide(*result, entry.session->failure());
      else if (!connects_.decide(*result, {}, entry.session))  // connect() has answered without it
        entry.session->fail(handshake_timed_out());
    }
  }
  if (!entry.session->is_terminated()) {
    if (lost) processes_.leave(id);
    return true;
  }
  forget(id);
  return false;
}

void ConnectionTable::forget(std::uint64_t id) {
  pending_.remove(id);
  processes_.remove(id);
  entries_.erase(id);
}

void ConnectionTable::open_data_connection(std::uint64_t session, std::string transport) {
  ConnectionEntry* const entry = find(session);
  if (entry == nullptr || ending_) return;
  entry->data_connections->ask(std::move(transport));
  entry->data_connections->open();
}

void ConnectionTable::fail(std::uint64_t session, const Status& why) {
  serve(session, [&](ConnectionEntry& entry) {
    entry.session->fail(why);
    update(session);
  });
}

void ConnectionTable::write_when_ready(std::uint64_t session) {
  asio::post(io_, [this, session] { write_more(session); });
}

void ConnectionTable::send_goodbye(std::uint64_t session) {
  if (ConnectionEntry* const entry = find(session)) entry->session->send_goodbye();
}

void ConnectionTable::send_goodbye() {
  ending_ = true;
  opener_.close();
  for (auto& [id, entry] : entries_) entry->session->send_goodbye();
}

bool ConnectionTable::flush() {
  bool unsent = false;
  for (auto& [id, entry] : entries_) {
    if (!entry->session->is_disconnected()) (void)entry->session->socket().flush();
    unsent |= !entry->session->is_disconnected() && entry->session->socket().wants_write();
  }
  return !unsent;
}

void ConnectionTable::drop() {
  for (auto& [id, entry] : entries_) entry->session->drop();
}

void ConnectionTable::clear() {
  entries_.clear();
  opener_.close();
}

}  // namespace linkspan::control
