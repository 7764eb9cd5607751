// store/open_connections.hpp - the connections of a server: what each has received and must send,
// what all of them allocate, and which one may be closed to make room.
//
// Threads: externally synchronised.
#pragma once

#include <sys/socket.h>

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/clock.hpp"
#include "store/key_waits.hpp"
#include "store/protocol.hpp"

namespace linkspan::store {

/// Queues the answers that the socket of a connection has not accepted yet.
class AnswerBuffer {
 public:
  /// Maximum of unsent(). Above it no further requests of the connection are served.
  static constexpr std::size_t kFull = std::size_t{1} << 20;

  void append(std::string_view bytes) { bytes_ += bytes; }
  void append(WaitAnswer answer) { bytes_.push_back(static_cast<char>(answer)); }
  std::size_t unsent() const noexcept { return bytes_.size() - sent_; }
  bool full() const noexcept { return unsent() > kFull; }
  std::size_t allocated() const noexcept { return heap_of(bytes_); }
  /// Sends what the socket accepts. Returns false if the connection is broken.
  bool flush(int socket);

 private:
  std::string bytes_;
  std::size_t sent_ = 0;
};

/// Describes one client.
struct Connection {
  Connection(asio::io_context& io, const Limits& limits)
      : socket(io), patience(io), parser(limits) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  /// Ends the connection for the client even while a forked child has a copy of the socket.
  ~Connection() { ::shutdown(socket.native_handle(), SHUT_RDWR); }

  bool busy() const noexcept { return !has_spoken || parser.midway() || out.unsent() != 0; }

  asio::posix::stream_descriptor socket;
  asio::steady_timer patience;
  RequestParser parser;
  AnswerBuffer out;
  bool reading = false, writing = false, timed = false, has_spoken = false;
  bool broken = false;  // serving it has thrown
  std::string woken;    // a queue that it was woken for and has not popped yet
  base::Time moved = base::Clock::steady().now();  // when a byte was last received or sent
  std::size_t counted = 0;                         // its part of OpenConnections::count()
};

class OpenConnections {
 public:
  /// Both outlive this object.
  OpenConnections(const Limits& limits, const KeyWaits& waits) : limits_(limits), waits_(waits) {}

  std::uint64_t add(asio::io_context& io);
  Connection* find(std::uint64_t id);  ///< Null: it is closed.
  void erase(std::uint64_t id);
  bool full() const noexcept { return connections_.size() >= limits_.connections; }
  /// Returns true for the first request of a connection.
  bool note_request(std::uint64_t id, Connection& each);
  /// Counts what a connection allocates now. Returns false if it is too much for all together.
  bool count(std::uint64_t id, Connection& each);
  /// Returns the oldest connection without a request, else the one that has been idle the longest,
  /// and why it may be closed. nullopt: none may be.
  std::optional<std::pair<std::uint64_t, const char*>> evictable();
  /// Marks a connection, if it is open, because serving it has thrown.
  void mark_broken(std::uint64_t id);
  /// Returns a marked connection; its caller erases it. nullopt: there is none.
  std::optional<std::uint64_t> find_broken();

 private:
  const Limits& limits_;
  const KeyWaits& waits_;
  std::map<std::uint64_t, std::unique_ptr<Connection>> connections_;
  std::set<std::uint64_t> unasked_;  // those without a request; the oldest first
  base::Time next_search_{};         // evictable() has found none before it
  std::uint64_t last_id_ = 0;
  bool any_broken_ = false;
  std::size_t buffered_ = 0;
};

}  // namespace linkspan::store
