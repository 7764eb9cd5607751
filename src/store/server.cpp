#include "store/server.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <exception>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "base/log_queue.hpp"
#include "base/mutex.hpp"
#include "base/named_thread.hpp"
#include "base/no_memory.hpp"
#include "base/repeated_line.hpp"
#include "net/acceptor.hpp"
#include "net/descriptor_watch.hpp"
#include "net/tcp_socket.hpp"
#include "store/table.hpp"

namespace linkspan::store {
namespace {

using asio::posix::stream_descriptor;

constexpr std::size_t kServerRead = std::size_t{64} << 10;
/// Memory that is charged for a connection beside its texts.
constexpr std::size_t kConnection = std::size_t{2} << 10;
constexpr auto kFindIdlePause = std::chrono::seconds(1);  // a search visits all connections
/// Limit of a connection's unsent answers. Above it no further requests of the connection are
/// served.
constexpr std::size_t kUnsent = std::size_t{1} << 20;

/// Calls the user's callback.
class LogOutlet final : public base::LogQueue::Outlet {
 public:
  explicit LogOutlet(Server::Log log) : log_(std::move(log)) {}
  void deliver(base::Level, std::string_view line) override { log_(line); }

 private:
  const Server::Log log_;
};

/// Describes one client. Server thread only.
struct Connection {
  Connection(asio::io_context& io, const Limits& limits, base::Fd fd)
      : owner(std::move(fd)), socket(io), patience(io), parser(limits) {}
  ~Connection() {
    if (socket.is_open()) (void)socket.release();
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  std::size_t unsent() const noexcept { return out.size() - sent; }
  bool busy() const noexcept { return !has_spoken || parser.midway() || unsent() != 0; }
  bool may_go(base::Time now, Duration idle) const {
    return !busy() && awaited.empty() && woken.empty() && now - moved >= idle;
  }

  base::Fd owner;
  stream_descriptor socket;  // borrows owner's descriptor
  asio::steady_timer patience;
  RequestParser parser;
  std::string out;
  std::size_t sent = 0;  // bytes of `out` that were sent
  bool reading = false, writing = false, timed = false, has_spoken = false;
  bool broken = false;            // serving it has thrown
  std::set<std::string> awaited;  // keys that it waits for
  std::string woken;              // a queue that it was woken for and has not popped yet
  base::Time moved = base::Clock::steady().now();  // when a byte was last received or sent
  std::size_t awaited_bytes = 0, counted = 0;
};

class AsioServer final : public Server {
 public:
  AsioServer(const Limits& limits, Log log) : limits_(limits), table_(limits_) {
    if (log) log_.emplace(std::make_unique<LogOutlet>(std::move(log)));
  }
  AsioServer(const AsioServer&) = delete;
  AsioServer& operator=(const AsioServer&) = delete;
  ~AsioServer() override {
    io_.stop();
    if (thread_.joinable()) thread_.join();
    log_suppressed(lines_.pop_all_suppressed());
    connections_.clear();
  }

  Status start(base::Fd listening) {
    if (Status status = acceptor_.listen(std::move(listening)); !status.ok()) return status;
    thread_ = base::named_thread<"ls-store">([this] { run(); });
    return {};
  }

  Status drain(base::Deadline deadline) override LINKSPAN_EXCLUDES(mutex_) {
    const base::MutexLock lock(mutex_);
    while (clients_ != 0) {
      if (deadline.passed())
        return {Code::timed_out, Scope::peer,
                std::to_string(clients_) + " clients of the store had not finished"};
      changed_.wait(mutex_, deadline);
    }
    return {};
  }

 private:
  /// Runs the event loop. If memory is exhausted, it closes the connection that is served and goes
  /// on with the others.
  void run() {
    while (!io_.stopped()) {
      try {
        if (any_broken_) drop_broken();
        if (accepts_again_) accept_again();
        const base::Time now = base::Clock::steady().now();
        log_suppressed(lines_.pop_suppressed(now));
        serving_ = 0;  // exceptions from here on concern no connection
        if (const auto due = lines_.due())
          io_.run_one_until(*due);
        else
          io_.run_one();
      } catch (const std::exception&) {
        any_broken_ = accepts_again_ = true;
        if (const auto found = connections_.find(serving_); found != connections_.end())
          found->second->broken = true;
      }
    }
  }

  void accept_again() {
    io_.run_one_for(base::kWithoutMemory);
    acceptor_.resume();
    accepts_again_ = false;
  }

  void drop_broken() {
    for (auto next = connections_.begin(); next != connections_.end();) {
      const auto each = next++;
      if (each->second->broken) drop(each->first, {});
    }
    any_broken_ = false;
  }

  /// Returns the connection with that number, null if it is closed. Exceptions from then on concern
  /// this connection.
  Connection* serving(std::uint64_t id) {
    serving_ = id;
    const auto found = connections_.find(id);
    return found == connections_.end() ? nullptr : found->second.get();
  }

  void admit(base::Fd socket) {
    if (connections_.size() >= limits_.connections && !make_room())
      return tell(std::to_string(limits_.connections) + " connections are open: no more");
    net::prepare(socket);
    const std::uint64_t id = ++last_id_;
    Connection& each =
        *connections_.emplace(id, std::make_unique<Connection>(io_, limits_, std::move(socket)))
             .first->second;
    try {
      begin(id, each);
    } catch (const std::exception&) {
      if (connections_.contains(id)) each.broken = any_broken_ = true;
    }
  }

  void begin(std::uint64_t id, Connection& each) {
    unasked_.insert(id);
    if (const Status status = net::watch(each.socket, each.owner.get()); !status.ok())
      return drop(id, status.what());
    if (!count(each)) return drop(id, "all connections together buffer too much");
    be_patient(id, each, true);
    read_next(id, each);
  }

  /// Closes the oldest connection without a request, else the one that has been idle the longest.
  /// Returns false if none may be closed.
  bool make_room() {
    if (!unasked_.empty()) {
      drop(*unasked_.begin(), "it had asked nothing, and another one came");
      return true;
    }
    const base::Time now = base::Clock::steady().now();
    if (found_none_ && now < next_search_) return false;
    const auto longest = std::min_element(
        connections_.begin(), connections_.end(), [&](const auto& a, const auto& b) {
          const auto rank = [&](const Connection& each) {
            return std::pair(!each.may_go(now, limits_.idle), each.moved);
          };
          return rank(*a.second) < rank(*b.second);
        });
    found_none_ = longest == connections_.end() || !longest->second->may_go(now, limits_.idle);
    next_search_ = now + kFindIdlePause;
    if (found_none_) return false;
    drop(longest->first, "it was idle, and another one came");
    return true;
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
      const Connection* const found = error ? nullptr : serving(id);
      if (found == nullptr) return;
      const Connection& late = *found;
      if (!late.timed || late.patience.expiry() > std::chrono::steady_clock::now()) return;
      // torch 1.13 opens a second connection without a request.
      if (!late.has_spoken && !late.parser.midway()) return drop(id, {});
      // Resets the connection; otherwise the kernel would keep the unread answers.
      const linger at_once{.l_onoff = 1, .l_linger = 0};
      (void)::setsockopt(late.owner.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
      drop(id, late.unsent() != 0 ? "it does not read its answers"
                                  : "a request that it began has no end");
    });
  }

  void read_next(std::uint64_t id, Connection& each) {
    if (each.reading || each.unsent() > kUnsent) return;
    each.reading = true;
    each.socket.async_wait(stream_descriptor::wait_read, [this, id](const asio::error_code& error) {
      Connection* const found = error ? nullptr : serving(id);
      if (found == nullptr) return;
      Connection& ready = *found;
      ready.reading = false;
      const ssize_t got = ::recv(ready.owner.get(), input_.data(), input_.size(), 0);
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
      if (connections_.contains(id)) drop(id, "no memory for what it asks");
    }
  }

  /// Serves the connection's requests while it takes the answers. `each` may be gone on return.
  /// `further`: bytes have arrived.
  void serve(std::uint64_t id, Connection& each, bool further) {
    bool more = true;
    for (;;) {
      const std::size_t before = each.unsent();
      if (!flush(each)) return drop(id, {});
      further |= each.unsent() != before;
      if (!more || each.unsent() > kUnsent) break;
      while (more && each.unsent() <= kUnsent) {
        auto request = each.parser.next();
        if (!request.ok()) return drop(id, request.status().what());
        more = request->has_value();
        if (!more) break;
        further = true;
        if (!std::exchange(each.has_spoken, true)) {
          unasked_.erase(id);
          count_client(1);
        }
        if (Status status = serve(id, each, *std::move(*request)); !status.ok())
          return drop(id, status.what());
      }
    }
    if (!count(each)) return drop(id, "all connections together buffer too much");
    if (further) each.moved = base::Clock::steady().now();
    be_patient(id, each, further);
    if (each.unsent() != 0) write_later(id, each);
    read_next(id, each);
  }

  Status serve(std::uint64_t id, Connection& each, Request request) {
    // With torch 1.13 a new request means that the client's wait has timed out; it does not read
    // the answer to that wait any more.
    if (each.parser.dialect() == Dialect::older) forget_wait(id, each);
    const std::string woken = std::exchange(each.woken, {});
    const bool pops = request.op == Op::queue_pop && request.keys[0] == woken;
    if (!woken.empty() && !pops) wake(woken, true);  // the client does not want the value
    if (request.op == Op::wait) return wait(id, each, request);
    if (request.op == Op::cancel_wait) {
      forget_wait(id, each);
      each.out.push_back(static_cast<char>(kWaitCanceled));
      return {};
    }
    const Op op = request.op;
    std::vector<std::string> changed;
    if (changes(op) && op != Op::delete_key && op != Op::queue_pop) changed = request.keys;
    auto answer = table_.apply(std::move(request));
    if (!answer.ok()) return answer.status();
    each.out += *answer;
    for (const std::string& key : changed) wake(key, op == Op::queue_push);
    return {};
  }

  /// Starts a wait, in the place of an earlier one.
  Status wait(std::uint64_t id, Connection& each, const Request& request) {
    forget_wait(id, each);
    for (const std::string& key : request.keys)
      if (!table_.has(key) && each.awaited.insert(key).second) {
        waiting_[key].insert(id);
        each.awaited_bytes += cost_of_wait(key);
      }
    if (each.awaited.empty()) each.out.push_back(static_cast<char>(kStopWaiting));
    return {};
  }

  void forget_wait(std::uint64_t id, Connection& each) {
    for (const std::string& key : each.awaited) {
      const auto found = waiting_.find(key);
      if (found == waiting_.end()) continue;  // memory was exhausted when it was added
      found->second.erase(id);
      if (found->second.empty()) waiting_.erase(found);
    }
    each.awaited.clear();
    each.awaited_bytes = 0;
  }

  /// Wakes the connections that miss this key alone; only the first one if `only_one`, since a
  /// value of a queue goes to one connection.
  void wake(const std::string& key, bool only_one) {
    const auto found = waiting_.find(key);
    if (found == waiting_.end() || !table_.has(key)) return;
    while (!found->second.empty()) {
      const std::uint64_t id = *found->second.begin();
      found->second.erase(found->second.begin());
      Connection& waits = *connections_.at(id);
      waits.awaited.erase(key);
      waits.awaited_bytes -= cost_of_wait(key);
      if (!waits.awaited.empty()) continue;
      try {
        waits.out.push_back(static_cast<char>(kStopWaiting));
        // Served later, because `id` may be the connection whose requests are being served now.
        asio::post(io_, [this, id] {
          if (Connection* const woken = serving(id)) serve_bytes(id, *woken, {});
        });
        if (!only_one) continue;
        waits.woken = key;
        break;
      } catch (const std::exception&) {
        waits.broken = any_broken_ = true;  // no memory: the next connection is woken instead
      }
    }
    if (found->second.empty()) waiting_.erase(found);
  }

  /// Sends what the socket takes. Returns false if the connection is broken.
  static bool flush(Connection& each) {
    while (each.unsent() != 0) {
      const ssize_t sent =
          ::send(each.owner.get(), each.out.data() + each.sent, each.unsent(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) return errno == EAGAIN;
      each.sent += static_cast<std::size_t>(sent);
      if (each.sent > kUnsent) each.out.erase(0, std::exchange(each.sent, 0));
    }
    each.sent = 0;
    each.out.clear();
    if (each.out.capacity() > kServerRead) each.out.shrink_to_fit();
    return true;
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

  /// Charges for the entries in `awaited` and in `waiting_`.
  static std::size_t cost_of_wait(const std::string& key) { return 2 * (key.size() + kEntry); }

  bool count(Connection& each) {
    const std::size_t now =
        kConnection + each.parser.allocated() + heap_of(each.out) + each.awaited_bytes;
    buffered_ = buffered_ - std::exchange(each.counted, now) + now;
    return buffered_ <= limits_.buffered;
  }

  void drop(std::uint64_t id, const std::string& why) {
    const auto found = connections_.find(id);
    forget_wait(id, *found->second);
    unasked_.erase(id);
    const std::string woken = std::move(found->second->woken);
    buffered_ -= found->second->counted;
    const bool counted = found->second->has_spoken;
    connections_.erase(found);
    if (counted) count_client(-1);
    if (!woken.empty()) wake(woken, true);
    if (!why.empty()) tell("a connection was closed: " + why);
  }

  void count_client(int change) LINKSPAN_EXCLUDES(mutex_) {
    const base::MutexLock lock(mutex_);
    clients_ += change;
    changed_.notify_all();
  }

  void tell(const std::string& what) {
    if (!log_) return;
    const base::Time now = base::Clock::steady().now();
    log_suppressed(lines_.pop_suppressed(now));
    if (lines_.count(now)) log_->push(base::Level::warning, "store: " + what);
  }

  void log_suppressed(std::size_t lines) {
    if (lines != 0)
      log_->push(base::Level::warning,
                 "store: " + std::to_string(lines) + " more connections were closed");
  }

  const Limits limits_;
  std::optional<base::LogQueue> log_;
  asio::io_context io_{1};
  // Keeps run() going when the acceptor, for lack of memory, waits for nothing.
  const asio::executor_work_guard<asio::io_context::executor_type> keeps_running_{
      io_.get_executor()};
  // The server's thread alone uses these until it is joined:
  net::Acceptor acceptor_{io_, [this](base::Fd socket) { admit(std::move(socket)); }};
  Table table_;
  std::map<std::uint64_t, std::unique_ptr<Connection>> connections_;
  std::map<std::string, std::set<std::uint64_t>> waiting_;  // connections that wait, by key
  std::set<std::uint64_t> unasked_;  // connections without a request; the oldest first
  bool found_none_ = false;          // make_room() found none before next_search_
  base::Time next_search_{};
  std::uint64_t last_id_ = 0;
  std::uint64_t serving_ = 0;  // number of the connection; 0: none
  bool any_broken_ = false, accepts_again_ = false;
  std::size_t buffered_ = 0;
  base::RepeatedLine lines_;  // limits the lines of log_
  std::array<char, kServerRead> input_{};

  base::Mutex mutex_;
  base::Condition changed_;
  int clients_ LINKSPAN_GUARDED_BY(mutex_) = 0;
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
