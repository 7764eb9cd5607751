#include "store/open_connections.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace linkspan::store {
namespace {

/// Memory that is charged for a connection beside its texts.
constexpr std::size_t kConnection = std::size_t{2} << 10;
constexpr std::size_t kMaxSpare = std::size_t{64} << 10;  // capacity that an empty buffer keeps
constexpr auto kFindIdlePause = std::chrono::seconds(1);  // a search visits all connections

}  // namespace

bool AnswerBuffer::flush(int socket) {
  while (unsent() != 0) {
    const ssize_t sent = ::send(socket, bytes_.data() + sent_, unsent(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN;
    sent_ += static_cast<std::size_t>(sent);
    if (sent_ > kFull) bytes_.erase(0, std::exchange(sent_, 0));
  }
  sent_ = 0;
  bytes_.clear();
  if (bytes_.capacity() > kMaxSpare) bytes_.shrink_to_fit();
  return true;
}

std::uint64_t OpenConnections::add(asio::io_context& io) {
  std::set<std::uint64_t> added{++last_id_};
  connections_.emplace(last_id_, std::make_unique<Connection>(io, limits_));
  unasked_.merge(added);  // does not throw
  return last_id_;
}

Connection* OpenConnections::find(std::uint64_t id) {
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : found->second.get();
}

void OpenConnections::erase(std::uint64_t id) {
  const auto found = connections_.find(id);
  buffered_ -= found->second->counted;
  unasked_.erase(id);
  connections_.erase(found);
}

bool OpenConnections::note_request(std::uint64_t id, Connection& each) {
  if (std::exchange(each.has_spoken, true)) return false;
  unasked_.erase(id);
  return true;
}

bool OpenConnections::count(std::uint64_t id, Connection& each) {
  const std::size_t now =
      kConnection + each.parser.allocated() + each.out.allocated() + waits_.allocated(id);
  buffered_ = buffered_ - std::exchange(each.counted, now) + now;
  return buffered_ <= limits_.buffered;
}

std::optional<std::pair<std::uint64_t, const char*>> OpenConnections::evictable() {
  if (!unasked_.empty())
    return std::pair(*unasked_.begin(), "it had asked nothing, and another one came");
  const base::Time now = base::Clock::steady().now();
  if (now < next_search_) return std::nullopt;
  const auto is_idle = [&](const auto& each) {
    return !each.second->busy() && !waits_.has(each.first) && each.second->woken.empty() &&
           now - each.second->moved >= limits_.idle;
  };
  const auto longest =
      std::min_element(connections_.begin(), connections_.end(), [&](const auto& a, const auto& b) {
        return std::pair(!is_idle(a), a.second->moved) < std::pair(!is_idle(b), b.second->moved);
      });
  if (longest != connections_.end() && is_idle(*longest))
    return std::pair(longest->first, "it was idle, and another one came");
  next_search_ = now + kFindIdlePause;
  return std::nullopt;
}

void OpenConnections::mark_broken(std::uint64_t id) {
  if (Connection* const each = find(id)) each->broken = any_broken_ = true;
}

std::optional<std::uint64_t> OpenConnections::find_broken() {
  if (!any_broken_) return std::nullopt;
  const auto broken =
      std::ranges::find_if(connections_, [](const auto& each) { return each.second->broken; });
  if (broken != connections_.end()) return broken->first;
  any_broken_ = false;
  return std::nullopt;
}

}  // namespace linkspan::store
