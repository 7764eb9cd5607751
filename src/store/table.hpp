// store/table.hpp - the content of a store: keys and queues. Takes requests and returns the bytes
// of their answers; no sockets, no time. The server owns one.
//
// Threads: externally synchronised.
// Invariants: entries() <= Limits::entries and stored() <= Limits::stored, which is at least what
// the table allocates; a request that would exceed them changes nothing. The result of a request
// depends on earlier requests only.
#pragma once

#include <list>
#include <map>
#include <string>

#include "store/protocol.hpp"

namespace linkspan::store {

class Table {
 public:
  explicit Table(const Limits& limits) : limits_(&limits) {}

  /// Returns true for a key, or a queue that is not empty.
  bool has(const std::string& name) const;
  /// Executes a request and returns its answer; wait, cancel_wait and validate are up to the
  /// server. no_resource: beyond the limits. invalid_argument: `add` to a value that is not a
  /// number. The protocol has no answer for either.
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
  // Ordered: a peer can make predictable hashes collide.
  std::map<std::string, std::string> values_;
  std::map<std::string, std::list<std::string>> queues_;  // never empty; a deque allocates 512 B
  std::size_t entries_ = 0, stored_ = 0;
};

/// Returns true if the request may change a Table.
bool changes(Op op) noexcept;

}  // namespace linkspan::store
