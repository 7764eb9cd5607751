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
/// Counts for a connection beside its texts.
constexpr std::size_t kConnection = std::size_t{2} << 10;
constexpr auto kFindIdlePause = std::chrono::seconds(1);  // to look for one costs a walk over all
/// No more requests of a connection are done before it has taken its answers down to this.
constexpr std::size_t kUnsent = std::size_t{1} << 20;

/// The user's callback.
class LogOutlet final : public base::LogQueue::Outlet {
 public:
  explicit LogOutlet(Server::Log log) : log_(std::move(log)) {}
  void deliver(base::Level, std::string_view line) override { log_(line); }

 private:
  const Server::Log log_;
};

/// Server thread only.
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
  stream_descriptor socket;  // its loan
  asio::steady_timer patience;
  RequestParser parser;
  std::string out;
  std::size_t sent = 0;  // of out
  bool reading = false, writing = false, timed = false, has_spoken = false;
  bool broken = false;            // what was done for it has thrown
  std::set<std::string> awaited;  // keys that are not there yet
  std::string woken;              // a queue that it was woken for, and has not popped yet
  base::Time moved = base::Clock::steady().now();  // when a byte came or went
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
  /// Where memory ends the connection that is served is closed, and the others go on.
  void run() {
    while (!io_.stopped()) {
      try {
        if (any_broken_) drop_broken();
        if (accepts_again_) accept_again();
        const base::Time now = base::Clock::steady().now();
        log_suppressed(lines_.pop_suppressed(now));
        serving_ = 0;  // an exception from here on is of no connection served before
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

  /// The connection with that number, if it is there still, which is served from now on.
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

  /// Closes the oldest connection that has asked nothing, else the one that is idle the longest.
  /// False: none may go.
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

  /// A client that is connected and idle may stay so; one that is midway and gets no further may
  /// not. `further`: since the last time.
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
      if (!late.has_spoken && !late.parser.midway()) return drop(id, {});  // as torch 1.13's second
      // Else the kernel would keep what it does not read.
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

  /// Serves `bytes`, or where there are none the requests that waited for room for their answers.
  /// Closes a connection for which there is no memory: `each` may be gone after this.
  void serve_bytes(std::uint64_t id, Connection& each, std::string_view bytes) {
    try {
      each.parser.feed(bytes);
      serve(id, each, !bytes.empty());
    } catch (const std::bad_alloc&) {
      if (connections_.contains(id)) drop(id, "no memory for what it asks");
    }
  }

  /// Does what it asks as far as it takes the answers. The connection may be gone after it.
  /// `further`: bytes came.
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
    // torch 1.13: the wait has timed out in the client, which does not read the answer any more.
    if (each.parser.dialect() == Dialect::older) forget_wait(id, each);
    const std::string woken = std::exchange(each.woken, {});
    const bool pops = request.op == Op::queue_pop && request.keys[0] == woken;
    if (!woken.empty() && !pops) wake(woken, true);  // it does not want the value
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

  /// A second wait takes the first one's place.
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
      if (found == waiting_.end()) continue;  // there was no memory for it
      found->second.erase(id);
      if (found->second.empty()) waiting_.erase(found);
    }
    each.awaited.clear();
    each.awaited_bytes = 0;
  }

  /// A value of a queue goes to one connection: the first that waits for this queue alone.
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
        // Not now: it may be the one whose requests are being done.
        asio::post(io_, [this, id] {
          if (Connection* const woken = serving(id)) serve_bytes(id, *woken, {});
        });
        if (!only_one) continue;
        waits.woken = key;
        break;
      } catch (const std::exception&) {
        waits.broken = any_broken_ = true;  // no memory: another one is woken in its place
      }
    }
    if (found->second.empty()) waiting_.erase(found);
  }

  /// Returns false if no connection reads it.
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

  /// In `awaited` and in `waiting_`.
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
  // Without memory the acceptor may wait for nothing, which is no end.
  const asio::executor_work_guard<asio::io_context::executor_type> keeps_running_{
      io_.get_executor()};
  // Used by the server's thread only, until it is joined:
  net::Acceptor acceptor_{io_, [this](base::Fd socket) { admit(std::move(socket)); }};
  Table table_;
  std::map<std::uint64_t, std::unique_ptr<Connection>> connections_;
  std::map<std::string, std::set<std::uint64_t>>
      waiting_;                      // by key, the connections that wait for it
  std::set<std::uint64_t> unasked_;  // connections that have asked nothing; the oldest first
  bool found_none_ = false;          // make_room() did, before next_search_
  base::Time next_search_{};
  std::uint64_t last_id_ = 0;
  std::uint64_t serving_ = 0;  // a connection; 0: none
  bool any_broken_ = false, accepts_again_ = false;
  std::size_t buffered_ = 0;
  base::RepeatedLine lines_;  // of log_
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
  } catch (const std::exception& error) {  // of Asio, of the thread
    return Status(Code::system, Scope::process, std::string("no event loop: ") + error.what());
  }
}

}  // namespace linkspan::store
