// transport/tcp/connection_set.hpp - the data connections of a ConnectionGroup: which one sends a
// frame, and which wake.
//
// Threads: under the mutex of the ConnectionGroup.
// Invariants: frames that are queued before the first connection exists wait for it, in order.
#pragma once

#include <memory>
#include <vector>

#include "transport/tcp/frame.hpp"

namespace linkspan::transport::tcp {

class DataConnection;

class ConnectionSet {
 public:
  bool empty() const noexcept { return all_.empty(); }
  std::size_t size() const noexcept { return all_.size(); }
  void add(const std::shared_ptr<DataConnection>& connection);
  void remove(const DataConnection& connection);

  /// Returns null if all connections have something to send.
  std::shared_ptr<DataConnection> find_idle() const;
  /// Enqueues a frame on `preferred` if that is still here, else on any connection. Returns the
  /// connection, which the caller makes send; null: none exists yet.
  std::shared_ptr<DataConnection> enqueue(const Head& head,
                                          const DataConnection* preferred = nullptr);
  /// Drops frames of that number that wait for the first connection.
  void drop_pending(std::uint64_t id);
  /// Wakes as many connections, idle ones first and always in the same order, so that consecutive
  /// small requests hit a thread that is still spinning.
  void wake(std::size_t connections) const;
  void wake_all() const;
  /// Returns the sum of DataConnection::traffic().
  std::uint64_t traffic() const;

 private:
  struct PendingFrame {
    std::uint64_t id;
    std::vector<std::byte> frame;
  };

  std::vector<std::shared_ptr<DataConnection>> all_;  // shared with their threads
  std::size_t next_ = 0;                              // takes a frame if none is idle
  std::vector<PendingFrame> pending_;
};

}  // namespace linkspan::transport::tcp
