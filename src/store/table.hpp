// store/table.hpp - what a store holds: keys, and queues. Requests in, the bytes of their
// answers out; no sockets, no time.
//
// The server has one.
// Threads: externally synchronised.
// Invariants: entries() <= Limits::entries and stored() <= Limits::stored, which is at least what
// the table allocates; a request that would
// pass them changes nothing. What a request does depends on those before it only.
#pragma once

#include <list>
#include <map>
#include <string>

#include "store/protocol.hpp"

namespace linkspan::store {

class Table {
 public:
  explicit Table(const Limits& limits) : limits_(&limits) {}

  /// A key, or a queue that is not empty.
  bool has(const std::string& name) const;
  /// Of any request but wait, cancel_wait and validate, which are the server's. no_resource: beyond
  /// the limits; invalid_argument: `add` to what is no number. The protocol has words for neither.
  Result<std::string> apply(Request request);

  std::size_t entries() const noexcept { return entries_; }
  std::size_t stored() const noexcept { return stored_; }

 private:
  Status room_for(std::size_t entries, std::size_t bytes) const;
  Status put(const std::string& key, std::string value);
  Status put_all(Request& request);
  Result<std::string> add(const std::string& key, std::int64_t amount);
  Result<std::string> compare_set(Request& request);
  Status append(const std::string& key, std::string value);
  Status push(const std::string& queue, std::string value);
  std::string pop(const std::string& queue);
  Result<std::string> list(const std::vector<std::string>& keys) const;
  Result<std::string> list_all() const;
  const std::string& value_of(const std::string& key) const;
  bool erase(const std::string& key);

  const Limits* limits_;
  // Ordered: hashes that a peer can foresee collide when it wants.
  std::map<std::string, std::string> values_;
  std::map<std::string, std::list<std::string>> queues_;  // none is empty; a deque allocates 512 B
  std::size_t entries_ = 0, stored_ = 0;
};

/// Whether it may change a Table.
bool changes(Op op) noexcept;

}  // namespace linkspan::store
