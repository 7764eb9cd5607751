// Implements a Store over the network: a client, and the server too if this process was first.
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "base/fork.hpp"
#include "base/mutex.hpp"
#include "store/request_store.hpp"
#include "store/server.hpp"
#include "store/store_client.hpp"

namespace linkspan {
namespace store {
namespace {

using base::Deadline;

/// Names the prefix that torch puts before each key.
constexpr const char* kPrefix = "/";
/// Pause before another attempt to connect, and before workers are counted again.
constexpr int kPauseMs = 10;
/// Time limit for the answer to a canceled wait, which depends on the server only.
constexpr auto kCancel = std::chrono::seconds(5);
constexpr auto kLinger = std::chrono::seconds(5);

void pause(Deadline deadline) { ::poll(nullptr, 0, std::min(kPauseMs, deadline.left_ms())); }

class TcpStore final : public RequestStore {
 public:
  explicit TcpStore(const TcpStoreOptions& options)
      : RequestStore(options.timeout, kPrefix), options_(options) {}
  TcpStore(const TcpStore&) = delete;
  TcpStore& operator=(const TcpStore&) = delete;
  ~TcpStore() override { (void)shut(kLinger); }

  Status open(Deadline deadline) {
    auto addresses = net::resolve(options_.host, options_.port);
    if (!addresses.ok()) return addresses.status();
    addresses_ = *std::move(addresses);
    Status status = settle(deadline);
    if (!status.ok() || options_.workers == 0) return status;
    return count_workers(deadline);
  }

  std::string address() const override { return "tcp:" + addresses_.front().to_string(); }
  bool serves() const override { return serving_; }
  Status close(Duration timeout) override { return shut(timeout); }

 protected:
  Result<Message> exchange(const Request& request, Deadline deadline) override {
    const auto connection_lock = lock_connection(deadline);
    if (Status ready = be_ready(connection_lock, deadline); !ready.ok()) return ready;
    if (Status sent = client_->send(request, deadline); !sent.ok())
      return sent.code() == Code::unsupported ? sent : ended(sent);
    auto answer = client_->receive(request.op, request.keys.size(), limits(), deadline);
    if (!answer.ok()) return ended(answer.status());
    return answer;
  }

  Result<bool> await(const Keys& keys, Deadline deadline) override {
    const auto connection_lock = lock_connection(deadline);
    if (Status ready = be_ready(connection_lock, answer_deadline()); !ready.ok()) return ready;
    Request request;
    request.op = Op::wait;
    request.keys = keys;
    if (Status sent = client_->send(request, answer_deadline()); !sent.ok()) return ended(sent);
    auto answer = client_->receive(Op::wait, 0, limits(), deadline);
    if (answer.ok()) return true;
    if (answer.status().code() != Code::timed_out) return ended(answer.status());
    if (client_->dialect() == Dialect::older) {
      // The older dialect cannot cancel a wait, so the connection is closed; the next call opens
      // another.
      replace(std::nullopt);
      return false;
    }
    return cancel_wait();
  }

 private:
  /// Connects or serves, as the role says, until the deadline.
  Status settle(Deadline deadline) {
    for (;;) {
      if (options_.role != StoreRole::serve) {
        auto met = meet(addresses_, options_.dialect, limits(), deadline);
        if (met.ok()) {
          // Later connections go to the same server, even if the name resolves to others as well.
          if (const auto at = net::peer_of(met->socket().get()); at.ok()) addresses_ = {*at};
          replace(*std::move(met));
          return {};
        }
        const Code code = met.status().code();
        if ((code != Code::unreachable && code != Code::disconnected) ||
            (deadline.passed() && options_.role == StoreRole::connect))
          return met.status();
      }
      if (options_.role != StoreRole::connect) {
        Status served = serve(deadline);
        const bool again = served.code() == Code::busy || served.code() == Code::not_found;
        if (served.ok() || !again || options_.role == StoreRole::serve || deadline.passed())
          return served;
      }
      pause(deadline);
    }
  }

  /// Starts the server and connects to it. Errors busy and not_found as listen_at().
  Status serve(Deadline deadline) {
    // "localhost" may resolve to ::1 first on a host without IPv6.
    const auto ours = std::find_if(addresses_.begin(), addresses_.end(),
                                   [](const net::TcpAddress& each) { return is_local(each).ok(); });
    if (ours == addresses_.end()) return is_local(addresses_.front());
    const net::TcpAddress at = *ours;
    if (!at.is_loopback() && !options_.insecure)
      return {Code::permission_denied, Scope::request,
              "a store at " + at.to_string() +
                  " would be open to everybody who reaches it: TcpStoreOptions::insecure says that "
                  "this is meant"};
    auto socket = listen_at(at);
    if (!socket.ok()) return socket.status();
    auto bound = net::address_of(*socket);
    if (!bound.ok()) return bound.status();
    auto server = Server::start(*std::move(socket), limits(), options_.log);
    if (!server.ok()) return server.status();
    addresses_ = {*bound};
    auto met = meet(addresses_, StoreDialect::current, limits(), deadline);
    if (!met.ok()) return met.status();
    server_ = *std::move(server);
    serving_ = true;
    replace(*std::move(met));
    return {};
  }

  Status count_workers(Deadline deadline) {
    Request request;
    request.op = Op::add;
    request.keys = {kWorkers};
    for (request.number = 1;; request.number = 0) {
      auto come = exchange(request, deadline);
      if (!come.ok()) return come.status();
      if (!serving_ || come->number >= options_.workers) return {};
      if (deadline.passed())
        return {Code::timed_out, Scope::peer,
                std::to_string(come->number) + " of " + std::to_string(options_.workers) +
                    " workers have come"};
      pause(deadline);
    }
  }

  /// Returns whether the keys were there before the server heard of it.
  Result<bool> cancel_wait() {
    Request request;
    request.op = Op::cancel_wait;
    const Deadline deadline = base::Deadline::in(kCancel);
    if (Status sent = client_->send(request, deadline); !sent.ok()) return ended(sent);
    for (bool there = false;; there = true) {
      auto answer = client_->receive(Op::cancel_wait, 0, limits(), deadline);
      if (!answer.ok()) return ended(answer.status());
      if (answer->number == kWaitCanceled) return there;
      if (there)
        return ended({Code::corrupt, Scope::peer, "the store's server answers a wait twice"});
    }
  }

  /// Reserves the connection for one call. lock_connection() returns null if other calls had it
  /// until the deadline, and in a forked child, where no call would ever free it. (Not
  /// std::timed_mutex, because clang 14's ThreadSanitizer does not know its calls.)
  struct UnlockConnection {
    void operator()(TcpStore* store) const { store->unlock_connection(); }
  };
  using ConnectionLock = std::unique_ptr<TcpStore, UnlockConnection>;

  ConnectionLock lock_connection(Deadline deadline) LINKSPAN_EXCLUDES(mutex_) {
    if (fork_.forked()) return nullptr;
    const base::MutexLock lock(mutex_);
    while (busy_) {
      if (deadline.passed()) return nullptr;
      free_.wait(mutex_, deadline);
    }
    busy_ = true;
    return ConnectionLock(this);
  }

  void unlock_connection() LINKSPAN_EXCLUDES(mutex_) {
    const base::MutexLock lock(mutex_);
    busy_ = false;
    free_.notify_all();
  }

  /// Connects if there is no connection. The caller has the connection lock.
  Status be_ready(const ConnectionLock& connection_lock, Deadline deadline)
      LINKSPAN_EXCLUDES(mutex_) {
    if (fork_.forked())
      return {Code::invalid_argument, Scope::request,
              "this Store is the parent's: a forked child opens its own"};
    if (!connection_lock)
      return {Code::timed_out, Scope::request, "other calls of this Store take the whole time"};
    {
      const base::MutexLock lock(mutex_);
      if (closing_) return closed();
    }
    if (!failure_.ok()) return failure_;
    if (client_ && client_->midway())
      return ended({Code::disconnected, Scope::peer, "given up when memory ended in an answer"});
    if (client_) return {};
    auto met = meet(addresses_, StoreDialect::older, limits(), deadline);
    if (!met.ok()) return ended(met.status());
    replace(*std::move(met));
    return {};
  }

  static Status closed() { return {Code::canceled, Scope::request, "the Store is closed"}; }

  /// Closes the unusable connection. All later calls return this failure.
  Status ended(const Status& why) LINKSPAN_EXCLUDES(mutex_) {
    replace(std::nullopt);
    {
      const base::MutexLock lock(mutex_);
      if (closing_) return closed();
    }
    const bool overdue = why.code() == Code::timed_out;
    failure_ = Status(why.code() == Code::corrupt ? Code::corrupt : Code::disconnected, Scope::peer,
                      overdue ? "given up when an answer was overdue" : why.what());
    return overdue ? why : failure_;
  }

  void replace(std::optional<StoreClient> by) LINKSPAN_EXCLUDES(mutex_) {
    std::optional<StoreClient> old = std::exchange(client_, std::move(by));
    const base::MutexLock lock(mutex_);
    if (shown_ >= 0) ::shutdown(shown_, SHUT_RDWR);  // a forked child may have it, too
    shown_ = client_ ? client_->socket().get() : -1;
    old.reset();  // only now, when close() cannot read its number any more
  }

  Status shut(Duration timeout) LINKSPAN_EXCLUDES(mutex_) {
    if (fork_.forked()) {
      // its thread exists in the parent only, and a join would never return
      (void)server_.release();
      return {};
    }
    const Deadline deadline = base::Deadline::in(timeout);
    {
      const base::MutexLock lock(mutex_);
      if (std::exchange(closing_, true)) return {};
      if (shown_ >= 0) ::shutdown(shown_, SHUT_RDWR);
    }
    const auto connection_lock = lock_connection(base::Deadline::in(kCancel));
    if (connection_lock) replace(std::nullopt);
    if (server_ == nullptr) return {};
    Status drained = server_->drain(deadline);
    server_.reset();
    return drained;
  }

  const TcpStoreOptions options_;
  const base::ForkWatch fork_;
  std::vector<net::TcpAddress> addresses_;  // these two do not change after open
  bool serving_ = false;
  std::unique_ptr<Server> server_;
  // Guarded by the connection lock:
  std::optional<StoreClient> client_;
  Status failure_;

  base::Mutex mutex_;
  base::Condition free_;
  bool busy_ LINKSPAN_GUARDED_BY(mutex_) = false;  // the connection lock is owned
  int shown_ LINKSPAN_GUARDED_BY(mutex_) = -1;     // client_'s descriptor, for close()
  bool closing_ LINKSPAN_GUARDED_BY(mutex_) = false;
};

}  // namespace
}  // namespace store

Result<std::unique_ptr<Store>> open_tcp_store(const TcpStoreOptions& options) {
  const auto refuse = [](const char* why) -> Result<std::unique_ptr<Store>> {
    return Status(Code::invalid_argument, Scope::request, why);
  };
  if (options.timeout <= Duration::zero()) return refuse("a timeout that is not positive");
  if (options.port == 0 && options.role != StoreRole::serve)
    return refuse("port 0 is for who serves: nobody could find it");
  auto store = std::make_unique<store::TcpStore>(options);
  const auto deadline = base::Deadline::in(options.timeout);
  if (Status status = store->open(deadline); !status.ok()) {
    (void)store->close(Duration::zero());
    return status;
  }
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace linkspan
