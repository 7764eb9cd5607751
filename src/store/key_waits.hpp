// store/key_waits.hpp - the connections of a server that wait for keys. Pure bookkeeping.
//
// Threads: externally synchronised.
// Invariants: a connection is in the table only while it misses a key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace linkspan::store {

class KeyWaits {
 public:
  /// Adds a key that a connection misses. If it throws, call remove().
  void add(std::uint64_t id, const std::string& key);
  void remove(std::uint64_t id);
  bool has(std::uint64_t id) const { return waits_.contains(id); }
  /// Returns what the waits of a connection allocate.
  std::size_t allocated(std::uint64_t id) const;
  /// Removes `key` from the waits of connections until one misses nothing more, and returns that
  /// one. nullopt: there is none.
  std::optional<std::uint64_t> pop_complete(const std::string& key);

 private:
  struct KeyWait {
    std::set<std::string> keys;
    std::size_t bytes = 0;
  };

  std::map<std::uint64_t, KeyWait> waits_;                  // by connection
  std::map<std::string, std::set<std::uint64_t>> waiting_;  // connections, by key
};

}  // namespace linkspan::store
