#include "store/server.hpp"

#include <sys/socket.h>

#include <array>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <exception>
#include <new>
#include <thread>
#include <utility>

#include "base/named_thread.hpp"
#include "base/no_memory.hpp"
#include "net/acceptor.hpp"
#include "net/descriptor_watch.hpp"
#include "net/tcp_socket.hpp"
#include "store/client_count.hpp"
#include "store/key_waits.hpp"
#include "store/open_connections.hpp"
#include "store/server_log.hpp"
#include "store/table.hpp"

namespace linkspan::store {
namespace {

using asio::posix::stream_descriptor;

constexpr std::size_t kServerRead = std::size_t{64} << 10;

class AsioServer final : public Server {
 public:
  AsioServer(const Limits& limits, Log log) : limits_(limits), log_(std::move(log)) {}
  AsioServer(const AsioServer&) = delete;
  AsioServer& operator=(const AsioServer&) = delete;
  ~AsioServer() override { io_.stop(); }

  Status start(base::Fd listening) {
    if (Status status = acceptor_.listen(std::move(listening)); !status.ok()) return status;
    thread_ = base::named_thread<"ls-store">([this] { run(); });
    return {};
  }

  Status drain(base::Deadline deadline) override { return clients_.drain(deadline); }

 private:
  /// Runs the event loop. If memory is exhausted, it closes the connection that is served and goes
  /// on with the others.
  void run() {
    for (bool thrown = false; !io_.stopped();) {
      try {
        while (const auto broken = connections_.find_broken()) drop(*broken, {});
        if (thrown) {
          io_.run_one_for(base::kWithoutMemory);
          acceptor_.resume();
          thrown = false;
        }
        log_.write_suppressed(base::Clock::steady().now());
        serving_ = 0;  // exceptions from here on concern no connection
        if (const auto due = log_.due())
          io_.run_one_until(*due);
        else
          io_.run_one();
      } catch (const std::exception&) {
        thrown = true;
        connections_.mark_broken(serving_);
      }
    }
  }

  /// Returns the connection with that number, null if it is closed. Exceptions from then on concern
  /// this connection.
  Connection* serving(std::uint64_t id) {
    serving_ = id;
    return connections_.find(id);
  }

  void admit(base::Fd socket) {
    if (connections_.full()) {
      const auto goes = connections_.evictable();
      if (!goes)
        return log_.warn(std::to_string(limits_.connections) + " connections are open: no more");
      drop(goes->first, goes->second);
    }
    net::prepare(socket);
    const std::uint64_t id = connections_.add(io_);
    try {
      begin(id, *connections_.find(id), std::move(socket));
    } catch (const std::exception&) {
      connections_.mark_broken(id);
    }
  }

  void begin(std::uint64_t id, Connection& each, base::Fd socket) {
    if (const Status status = net::assign(each.socket, std::move(socket)); !status.ok())
      return drop(id, status.what());
    if (!connections_.count(id, each)) return drop(id, "all connections together buffer too much");
    be_patient(id, each, true);
    read_next(id, each);
  }

  /// Restarts or stops the clock of a connection. An idle client may stay, but one that is within a
  /// request or answer must make progress. `further`: it has made some since the last call.
  void be_patient(std::uint64_t id, Connection& each, bool further) {
    if (each.timed && !each.busy()) each.patience.cancel();
    const bool restart = each.busy() && (further || !each.timed);
    each.timed = each.busy();
    if (!restart) return;
    each.patience.expires_after(each.has_spoken ? limits_.stall : limits_.silence);
    each.patience.async_wait([this, id](const asio::error_code& error) {
      Connection* const found = error ? nullptr : serving(id);
      if (found == nullptr) return;
      const Connection& late = *found;
      if (!late.timed || late.patience.expiry() > std::chrono::steady_clock::now()) return;
      // torch 1.13 opens a second connection without a request.
      if (!late.has_spoken && !late.parser.midway()) return drop(id, {});
      // Resets the connection; otherwise the kernel would keep the unread answers.
      const linger at_once{.l_onoff = 1, .l_linger = 0};
      (void)::setsockopt(found->socket.native_handle(), SOL_SOCKET, SO_LINGER, &at_once,
                         sizeof at_once);
      drop(id, late.out.unsent() != 0 ? "it does not read its answers"
                                      : "a request that it began has no end");
    });
  }

  void read_next(std::uint64_t id, Connection& each) {
    if (each.reading || each.out.full()) return;
    each.reading = true;
    each.socket.async_wait(stream_descriptor::wait_read, [this, id](const asio::error_code& error) {
      Connection* const found = error ? nullptr : serving(id);
      if (found == nullptr) return;
      Connection& ready = *found;
      ready.reading = false;
      const ssize_t got = ::recv(ready.socket.native_handle(), input_.data(), input_.size(), 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return read_next(id, ready);
      if (got <= 0) return drop(id, {});
      serve_bytes(id, ready, {input_.data(), static_cast<std::size_t>(got)});
    });
  }

  /// Serves `bytes`; without any, serves the requests that waited for room for their answers.
  /// Closes the connection if memory is exhausted: `each` may be gone on return.
  void serve_bytes(std::uint64_t id, Connection& each, std::string_view bytes) {
    try {
      each.parser.feed(bytes);
      serve(id, each, !bytes.empty());
    } catch (const std::bad_alloc&) {
      if (connections_.find(id) != nullptr) drop(id, "no memory for what it asks");
    }
  }

  /// Serves the connection's requests while it takes the answers. `each` may be gone on return.
  /// `further`: bytes have arrived.
  void serve(std::uint64_t id, Connection& each, bool further) {
    bool more = true;
    for (;;) {
      const std::size_t before = each.out.unsent();
      if (!each.out.flush(each.socket.native_handle())) return drop(id, {});
      further |= each.out.unsent() != before;
      if (!more || each.out.full()) break;
      while (more && !each.out.full()) {
        auto request = each.parser.next();
        if (!request.ok()) return drop(id, request.status().what());
        more = request->has_value();
        if (!more) break;
        further = true;
        if (connections_.note_request(id, each)) clients_.add(1);
        if (Status status = serve(id, each, *std::move(*request)); !status.ok())
          return drop(id, status.what());
      }
    }
    if (!connections_.count(id, each)) return drop(id, "all connections together buffer too much");
    if (further) each.moved = base::Clock::steady().now();
    be_patient(id, each, further);
    if (each.out.unsent() != 0) write_later(id, each);
    read_next(id, each);
  }

  Status serve(std::uint64_t id, Connection& each, Request request) {
    // With torch 1.13 a new request means that the client's wait has timed out; it does not read
    // the answer to that wait any more.
    if (each.parser.dialect() == Dialect::older) waits_.remove(id);
    const std::string woken = std::exchange(each.woken, {});
    const bool pops = request.op == Op::queue_pop && request.keys[0] == woken;
    if (!woken.empty() && !pops) wake(woken, true);  // the client does not want the value
    if (request.op == Op::wait) return wait(id, each, request);
    if (request.op == Op::cancel_wait) {
      waits_.remove(id);
      each.out.append(kWaitCanceled);
      return {};
    }
    const Op op = request.op;
    std::vector<std::string> changed;
    if (changes(op) && op != Op::delete_key && op != Op::queue_pop) changed = request.keys;
    auto answer = table_.apply(std::move(request));
    if (!answer.ok()) return answer.status();
    each.out.append(*answer);
    for (const std::string& key : changed) wake(key, op == Op::queue_push);
    return {};
  }

  /// Starts a wait, in the place of an earlier one.
  Status wait(std::uint64_t id, Connection& each, const Request& request) {
    waits_.remove(id);
    for (const std::string& key : request.keys)
      if (!table_.has(key)) waits_.add(id, key);
    if (!waits_.has(id)) each.out.append(kStopWaiting);
    return {};
  }

  /// Wakes the connections that miss this key alone; only the first one if `only_one`, since a
  /// value of a queue goes to one connection.
  void wake(const std::string& key, bool only_one) {
    if (!table_.has(key)) return;
    while (const auto id = waits_.pop_complete(key)) {
      try {
        Connection& waits = *connections_.find(*id);
        waits.out.append(kStopWaiting);
        // Served later, because it may be the connection whose requests are being served now.
        asio::post(io_, [this, id = *id] {
          if (Connection* const woken = serving(id)) serve_bytes(id, *woken, {});
        });
        if (!only_one) continue;
        waits.woken = key;
        return;
      } catch (const std::exception&) {
        connections_.mark_broken(*id);  // no memory: the next connection is woken instead
      }
    }
  }

  void write_later(std::uint64_t id, Connection& each) {
    if (std::exchange(each.writing, true)) return;
    each.socket.async_wait(stream_descriptor::wait_write,
                           [this, id](const asio::error_code& error) {
                             Connection* const found = error ? nullptr : serving(id);
                             if (found == nullptr) return;
                             Connection& ready = *found;
                             ready.writing = false;
                             serve_bytes(id, ready, {});
                           });
  }

  void drop(std::uint64_t id, const std::string& why) {
    waits_.remove(id);
    Connection& each = *connections_.find(id);
    const std::string woken = std::move(each.woken);
    const bool counted = each.has_spoken;
    connections_.erase(id);
    if (counted) clients_.add(-1);
    if (!woken.empty()) wake(woken, true);
    if (!why.empty()) log_.warn("a connection was closed: " + why);
  }

  const Limits limits_;
  ServerLog log_;
  asio::io_context io_{1};
  // Keeps run() going when the acceptor, for lack of memory, waits for nothing.
  const asio::executor_work_guard<asio::io_context::executor_type> keeps_running_{
      io_.get_executor()};
  // The server's thread alone uses these until it is joined:
  net::Acceptor acceptor_{io_, [this](base::Fd socket) { admit(std::move(socket)); }};
  Table table_{limits_};
  KeyWaits waits_;
  OpenConnections connections_{limits_, waits_};
  std::uint64_t serving_ = 0;  // number of the connection; 0: none
  std::array<char, kServerRead> input_{};

  ClientCount clients_;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace

Result<std::unique_ptr<Server>> Server::start(base::Fd listening, const Limits& limits, Log log) {
  try {
    auto server = std::make_unique<AsioServer>(limits, std::move(log));
    if (Status status = server->start(std::move(listening)); !status.ok()) return status;
    return std::unique_ptr<Server>(std::move(server));
  } catch (const std::exception& error) {  // from Asio or the thread
    return Status(Code::system, Scope::process, std::string("no event loop: ") + error.what());
  }
}

}  // namespace linkspan::store
