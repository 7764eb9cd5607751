#include "transport/tcp/data_connection_thread.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include "base/clock.hpp"
#include "base/named_thread.hpp"
#include "base/no_memory.hpp"
#include "transport/tcp/data_connection.hpp"

namespace linkspan::transport::tcp {
namespace {

using namespace std::chrono_literals;

constexpr unsigned kPollsPerEpoll =
    8;  // polls of an only connection's socket between two epoll calls with a yield
constexpr Duration kSleep = 60s;         // unless it is woken
constexpr Duration kDrainTimeout = 10s;  // at the end

/// Polls the connection. Returns false if memory is short: the group fails, and the connection is
/// polled again.
bool serve(int epoll, DataConnection& connection, bool woken, DataConnection::PollResult& result) {
  try {
    result = connection.poll(woken);
    if (!result.over) return true;
    // No event of this connection follows: events come only from sockets in epoll.
    (void)::epoll_ctl(epoll, EPOLL_CTL_DEL, connection.socket(), nullptr);
    connection.group().on_connection_closed(connection);
    return true;
  } catch (const std::exception&) {
    result = {};
  }
  try {
    connection.group().fail(base::no_memory(Scope::peer));
  } catch (const std::exception&) {
    // Tried again at the next poll.
  }
  return false;
}

}  // namespace

Result<std::unique_ptr<DataConnectionThread>> DataConnectionThread::start() {
  auto epoll = base::Fd::from("epoll_create1", ::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.ok()) return epoll.status();
  auto wake_event = base::WakeEvent::create();
  if (!wake_event.ok()) return wake_event.status();
  epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
  if (::epoll_ctl(epoll->get(), EPOLL_CTL_ADD, wake_event->fd(), &event) != 0)
    return Status(Code::system, Scope::process, "epoll_ctl: no room for a thread's bell");
  std::unique_ptr<DataConnectionThread> made(
      new DataConnectionThread(*std::move(epoll), *std::move(wake_event)));
  try {
    made->thread_ = base::named_thread<"ls-tcp">(
        [self = made.get()](const std::stop_token& s) { self->run(s); });
  } catch (const std::exception& error) {
    return Status(Code::system, Scope::process, std::string("no thread: ") + error.what());
  }
  return made;
}

DataConnectionThread::~DataConnectionThread() {
  thread_.request_stop();
  wake();
}

Status DataConnectionThread::add(std::shared_ptr<DataConnection> connection) {
  epoll_event event{.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                    .data = {.ptr = connection.get()}};
  const base::MutexLock lock(mutex_);
  const int socket = connection->socket();
  added_.push_back(std::move(connection));
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket, &event) != 0) {
    added_.pop_back();
    return {Code::system, Scope::process, "epoll_ctl: no room for a data connection"};
  }
  ++count_;
  wake();
  return {};
}

void DataConnectionThread::wake() {
  if (!woken_.exchange(true) && sleeps_) wake_event_.wake();
}

/// Returns true if it was woken.
bool DataConnectionThread::wait(Duration most) {
  std::array<epoll_event, 64> events{};
  sleeps_ = most > Duration::zero();
  if (woken_) most = Duration::zero();  // a later wake() sees that it sleeps
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(most).count();
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                 static_cast<int>(ms));
  sleeps_ = false;
  // A wake() after this is seen by the next wait(), one before it by this one.
  const bool woken = woken_.exchange(false);
  for (int i = 0; i < count; ++i) {
    auto* const connection =
        static_cast<DataConnection*>(events[static_cast<std::size_t>(i)].data.ptr);
    const auto what = events[static_cast<std::size_t>(i)].events;
    if (connection != nullptr) {
      if ((what & EPOLLERR) != 0) connection->on_reset();
      connection->on_ready((what & ~std::uint32_t{EPOLLOUT}) != 0,
                           (what & ~std::uint32_t{EPOLLIN}) != 0);
      continue;
    }
    wake_event_.clear();
  }
  return woken;
}

bool DataConnectionThread::collect(DataConnections& connections) {
  const base::MutexLock lock(mutex_);
  try {
    connections.reserve(connections.size() + added_.size());
  } catch (const std::exception&) {
    return false;
  }
  for (auto& connection : added_) connections.push_back(std::move(connection));
  added_.clear();
  return true;
}

void DataConnectionThread::run(const std::stop_token& stop) {
  const base::Clock& clock = base::Clock::steady();
  DataConnections connections;
  SleepDecision decision(clock.now());
  auto end_by = base::Deadline::after(clock, Duration::max());
  bool any = false, needs_polling = false, ending = false, short_of_memory = false,
       uncollected = false;
  unsigned polls = 0;
  while (!ending || (!connections.empty() && !end_by.passed())) {
    const bool spins = !decision.may_sleep(clock.now());
    // An idle only connection is polled by its socket, which is fastest. Beside traffic that would
    // compete for the socket's lock in the kernel.
    const bool quick =
        spins && !any && !needs_polling && connections.size() == 1 && ++polls % kPollsPerEpoll != 0;
    bool woken = false;
    if (quick) {
      woken = woken_ && woken_.exchange(false);  // as in wait()
      connections.front()->on_ready(true, false);
    } else {
      woken = wait(spins ? Duration::zero() : short_of_memory ? base::kWithoutMemory : kSleep);
    }
    short_of_memory = false;
    if (woken || uncollected) uncollected = short_of_memory = !collect(connections);
    if (!std::exchange(ending, stop.stop_requested()) && ending)
      end_by = base::Deadline::after(clock, kDrainTimeout);
    any = needs_polling = false;
    std::erase_if(connections, [&](const std::shared_ptr<DataConnection>& connection) {
      DataConnection::PollResult result;
      short_of_memory |= !serve(epoll_.get(), *connection, woken, result);
      any |= result.moved;
      needs_polling |= result.needs_polling;
      if (result.over) --count_;
      return result.over;
    });
    decision.on_poll(any, needs_polling, any ? clock.now() : base::Time{});
    if (!any && spins && !quick) std::this_thread::yield();
  }
}

Result<DataConnectionThread*> DataConnectionThreads::next() {
  const base::MutexLock lock(mutex_);
  const auto fewest =
      std::ranges::min_element(all_, {}, [](const auto& each) { return each->connections(); });
  if (fewest != all_.end() && ((*fewest)->connections() == 0 || all_.size() == most_))
    return fewest->get();
  auto made = DataConnectionThread::start();
  if (made.ok()) return all_.emplace_back(*std::move(made)).get();
  if (fewest == all_.end()) return made.status();
  return fewest->get();
}

}  // namespace linkspan::transport::tcp
