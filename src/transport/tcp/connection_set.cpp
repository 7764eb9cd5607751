#include "transport/tcp/connection_set.hpp"

#include <algorithm>

#include "transport/tcp/data_connection.hpp"

namespace linkspan::transport::tcp {

void ConnectionSet::add(const std::shared_ptr<DataConnection>& connection) {
  for (const PendingFrame& each : pending_) connection->enqueue(each.frame);
  all_.push_back(connection);
  pending_.clear();
}

void ConnectionSet::remove(const DataConnection& connection) {
  std::erase_if(all_, [&](const auto& each) { return each.get() == &connection; });
}

std::shared_ptr<DataConnection> ConnectionSet::find_idle() const {
  const auto found = std::ranges::find_if(all_, &DataConnection::is_idle);
  return found != all_.end() ? *found : nullptr;
}

std::shared_ptr<DataConnection> ConnectionSet::enqueue(const Head& head,
                                                       const DataConnection* preferred) {
  if (all_.empty()) {
    pending_.push_back({head.id, encode(head)});
    return nullptr;
  }
  const auto before = std::ranges::find(all_, preferred, &std::shared_ptr<DataConnection>::get);
  std::shared_ptr<DataConnection> by = before != all_.end() ? *before : find_idle();
  if (by == nullptr) by = all_[next_++ % all_.size()];
  by->enqueue(encode(head));
  return by;
}

void ConnectionSet::drop_pending(std::uint64_t id) {
  std::erase_if(pending_, [&](const PendingFrame& each) { return each.id == id; });
}

void ConnectionSet::wake(std::size_t connections) const {
  for (const bool idle : {true, false})
    for (std::size_t i = 0; i < all_.size() && connections != 0; ++i) {
      if (all_[i]->is_idle() != idle) continue;
      all_[i]->wake();
      --connections;
    }
}

void ConnectionSet::wake_all() const {
  for (const auto& each : all_) each->wake();
}

std::uint64_t ConnectionSet::traffic() const {
  std::uint64_t bytes = 0;
  for (const auto& each : all_) bytes += each->traffic();
  return bytes;
}

}  // namespace linkspan::transport::tcp
