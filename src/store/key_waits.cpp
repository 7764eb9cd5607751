#include "store/key_waits.hpp"

#include "store/protocol.hpp"

namespace linkspan::store {
namespace {

/// Charges for the entries in both maps.
std::size_t cost_of(const std::string& key) { return 2 * (key.size() + kEntry); }

}  // namespace

void KeyWaits::add(std::uint64_t id, const std::string& key) {
  KeyWait& wait = waits_[id];
  if (!wait.keys.insert(key).second) return;
  waiting_[key].insert(id);
  wait.bytes += cost_of(key);
}

void KeyWaits::remove(std::uint64_t id) {
  const auto wait = waits_.find(id);
  if (wait == waits_.end()) return;
  for (const std::string& key : wait->second.keys) {
    const auto found = waiting_.find(key);
    if (found == waiting_.end()) continue;  // memory was exhausted when it was added
    found->second.erase(id);
    if (found->second.empty()) waiting_.erase(found);
  }
  waits_.erase(wait);
}

std::size_t KeyWaits::allocated(std::uint64_t id) const {
  const auto wait = waits_.find(id);
  return wait == waits_.end() ? 0 : wait->second.bytes;
}

std::optional<std::uint64_t> KeyWaits::pop_complete(const std::string& key) {
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) return std::nullopt;
  std::optional<std::uint64_t> complete;
  while (!complete && !found->second.empty()) {
    const auto wait = waits_.find(*found->second.begin());
    found->second.erase(found->second.begin());
    wait->second.keys.erase(key);
    wait->second.bytes -= cost_of(key);
    if (!wait->second.keys.empty()) continue;
    complete = wait->first;
    waits_.erase(wait);
  }
  if (found->second.empty()) waiting_.erase(found);
  return complete;
}

}  // namespace linkspan::store
