// transport/tcp/data_connection.hpp - one socket to a peer, with its Sender and Receiver.
//
// Threads: enqueue(), send_now(), wake(), is_idle(), traffic() any thread; the rest the
// connection's thread (data_connection_thread.hpp).
// Invariants: it is over once its group has failed and no GPU copies for it; then the socket is
// closed and the group has been informed.
#pragma once

#include <memory>
#include <vector>

#include "transport/tcp/connection_group.hpp"
#include "transport/tcp/data_socket.hpp"
#include "transport/tcp/receiver.hpp"
#include "transport/tcp/sender.hpp"

namespace linkspan::transport::tcp {

class DataConnectionThread;

struct DataConnectionOptions {
  std::uint64_t peer = 0;                           ///< Incarnation of the peer's Engine.
  copy::StagingStreams* staging_streams = nullptr;  ///< Outlives the connection.
  unsigned ctas = ~0U;                              ///< As copy::Order::ctas.
};

class DataConnection {
 public:
  DataConnection(std::shared_ptr<ConnectionGroup> group, base::AuthenticatedSocket socket,
                 const DataConnectionOptions& options, DataConnectionThread& thread)
      : group_(std::move(group)),
        thread_(thread),
        socket_(std::move(socket.socket), std::move(socket.tls)),
        sender_(*group_, socket_, *options.staging_streams, options.ctas),
        receiver_(*group_, socket_, options.peer, *options.staging_streams, options.ctas) {
    if (!socket.keys) return;
    sender_.seal(socket.keys->out);
    receiver_.expect_seals(socket.keys->in);
  }
  DataConnection(const DataConnection&) = delete;
  DataConnection& operator=(const DataConnection&) = delete;
  ~DataConnection() = default;

  void enqueue(std::vector<std::byte> frame) { sender_.enqueue(std::move(frame)); }
  /// Sends queued frames and a small batch from the caller's thread, if the connection's thread is
  /// idle.
  void send_now();
  void wake();
  bool is_idle() const noexcept { return sender_.is_idle(); }

  std::uint64_t traffic() const noexcept { return socket_.traffic(); }

  int socket() const noexcept { return socket_.fd(); }
  ConnectionGroup& group() noexcept { return *group_; }
  void on_ready(bool readable, bool writable) noexcept {
    readable_ |= readable;
    sends_ |= writable;
    if (writable) sender_.on_writable();
  }
  /// Called on EPOLLERR. A peer resets a connection when it abandons its transfers; data still in
  /// our receive buffer must then not be written to memory.
  void on_reset() noexcept { reset_ = true; }
  struct PollResult {
    bool moved = false;          ///< Something moved, so more may follow at once.
    bool needs_polling = false;  ///< Waits for a GPU or the clock, which raise no event.
    bool over = false;
  };
  /// Sends and receives what it can. `woken`: its thread was woken by wake().
  PollResult poll(bool woken);

 private:
  const std::shared_ptr<ConnectionGroup> group_;  // shared with the Endpoint and other connections
  DataConnectionThread& thread_;
  DataSocket socket_;
  // Directions to poll. A direction without an event is left alone, as other threads may use it.
  bool readable_ = true, sends_ = true, reset_ = false;
  std::uint64_t seen_revocations_ = 0;  // last value of the group's revocations()
  Sender sender_;
  Receiver receiver_;
};

}  // namespace linkspan::transport::tcp
