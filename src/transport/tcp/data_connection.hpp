// transport/tcp/data_connection.hpp - one socket to a peer.
//
// Threads: say(), send_now(), wake(), is_idle(), traffic() any thread; the rest its thread's
// (data_connection_thread.hpp).
// Invariants: it is over once its wire has failed and no GPU copies for it; then its socket is
// closed and the wire has been told.
#pragma once

#include <memory>
#include <vector>

#include "base/fd.hpp"
#include "transport/tcp/connection_group.hpp"
#include "transport/tcp/receiver.hpp"
#include "transport/tcp/sender.hpp"

namespace linkspan::transport::tcp {

class DataConnectionThread;

struct DataConnectionOptions {
  std::uint64_t peer = 0;                           ///< Incarnation of the Engine there.
  copy::StagingStreams* staging_streams = nullptr;  ///< Outlives it.
  unsigned ctas = ~0U;                              ///< As copy::Order::ctas.
};

class DataConnection {
 public:
  DataConnection(std::shared_ptr<ConnectionGroup> group, base::AuthenticatedSocket socket,
                 const DataConnectionOptions& options, DataConnectionThread& thread)
      : group_(std::move(group)),
        thread_(thread),
        socket_(std::move(socket.socket)),
        tls_(std::move(socket.tls)),
        sender_(*group_, socket_.get(), tls_.get(), *options.staging_streams, options.ctas),
        receiver_(*group_, socket_.get(), tls_.get(), options.peer, *options.staging_streams,
                  options.ctas) {
    if (!socket.keys) return;
    sender_.seal(socket.keys->out);
    receiver_.expect_seals(socket.keys->in);
  }
  DataConnection(const DataConnection&) = delete;
  DataConnection& operator=(const DataConnection&) = delete;
  ~DataConnection() = default;

  void enqueue(std::vector<std::byte> frame) { sender_.enqueue(std::move(frame)); }
  /// What was said, and a small batch, without the connection's thread if that does nothing.
  void send_now();
  void wake();
  bool is_idle() const noexcept { return sender_.is_idle(); }

  /// Bytes that the other side's kernel has taken, and that came.
  std::uint64_t traffic() const;

  int socket() const noexcept { return socket_.get(); }
  ConnectionGroup& group() noexcept { return *group_; }
  void on_ready(bool readable, bool writable) noexcept {
    readable_ |= readable;
    sends_ |= writable;
    if (writable) sender_.on_writable();
  }
  /// As epoll tells. Who has given up does so: what the kernel holds of him is not to land any
  /// more.
  void on_reset() noexcept { reset_ = true; }
  struct PollResult {
    bool moved = false;          ///< And may go on at once.
    bool needs_polling = false;  ///< A GPU, or the clock, which tell nobody.
    bool over = false;
  };
  /// `rung`: somebody has woken its thread.
  PollResult poll(bool woken);

 private:
  const std::shared_ptr<ConnectionGroup> group_;  // also the Endpoint's and other connections'
  DataConnectionThread& thread_;
  const base::Fd socket_;
  const std::unique_ptr<base::TlsEnd> tls_;  // none: it is not encrypted
  // To be looked at. What nobody has woken is left alone: others are at it as well.
  bool readable_ = true, sends_ = true, reset_ = false;
  std::uint64_t seen_revocations_ = 0;  // of the wire's revocations
  Sender sender_;
  Receiver receiver_;
};

}  // namespace linkspan::transport::tcp
