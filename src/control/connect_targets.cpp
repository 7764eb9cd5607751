#include "control/connect_targets.hpp"

#include <algorithm>
#include <utility>

namespace linkspan::control {
namespace {

/// `disconnected`: closed without a reply, by a listener that is shutting down or by a proxy
/// without a backend.
bool is_worth_a_retry(Code code) {
  return code == Code::not_found || code == Code::unreachable || code == Code::no_resource ||
         code == Code::disconnected;
}

}  // namespace

ConnectTargets::ConnectTargets(std::span<const SocketAddress> addresses, bool leaves_host,
                               base::Deadline deadline)
    : several_(addresses.size() > 1) {
  for (const SocketAddress& each : addresses)
    if (!each.is_tcp()) targets_.push_back({each});
  for (const SocketAddress& each : addresses) {
    if (!each.is_tcp()) continue;
    auto hosts = several_ && deadline.passed()
                     ? Result<std::vector<net::TcpAddress>>(
                           Status(Code::timed_out, Scope::request, "no time was left for it"))
                     : resolve(each, leaves_host);
    if (!hosts.ok()) {
      refuse(each.to_string(), hosts.status());
      continue;
    }
    const auto same = std::ranges::find_if(targets_, [&](const Target& known) {
      return known.address.is_tcp() && known.address.incarnation == each.incarnation;
    });
    if (same == targets_.end())
      targets_.push_back({each, *std::move(hosts)});
    else
      same->hosts.insert(same->hosts.end(), hosts->begin(), hosts->end());
  }
}

void ConnectTargets::refuse(const std::string& address, const Status& status) {
  if (refusal_.ok()) refusal_ = status;
  refused_ += (refused_.empty() ? "" : "; ") + address + ": " + status.what();
}

void ConnectTargets::fail(Status status, const std::optional<net::TcpAddress>& answered) {
  if (status.code() == Code::timed_out && !full_.ok()) status = full_;
  const Code code = status.code();
  full_ = code == Code::no_resource ? status : Status();
  last_ = status;
  Target& target = targets_[at_];
  const bool of_several = answered && target.hosts.size() > 1;
  if (is_worth_a_retry(code) && !(of_several && code == Code::disconnected)) {
    // An Engine of this host whose socket is full stays a local peer: TCP is not tried instead.
    at_ = !target.address.is_tcp() && code == Code::no_resource ? targets_.size() : at_ + 1;
    return;
  }
  refuse(of_several ? answered->to_string() : target.address.to_string(), status);
  if (of_several)
    std::erase_if(target.hosts, [&](const net::TcpAddress& host) {
      return host.to_string() == answered->to_string();
    });
  else
    targets_.erase(targets_.begin() + static_cast<std::ptrdiff_t>(at_));
}

std::optional<Status> ConnectTargets::outcome(base::Deadline deadline) const {
  if (refusal_.ok()) return std::nullopt;
  if (targets_.empty() && !several_) return refusal_;
  // The Engine of a socket that is not there runs on another host.
  const bool ended =
      targets_.empty() || deadline.passed() || (!has_tcp() && last_.code() == Code::not_found);
  if (!ended) return std::nullopt;
  std::string text = refused_;
  if (!targets_.empty()) text += "; " + targets_.back().address.to_string() + ": " + last_.what();
  return Status(refusal_.code(), refusal_.scope(), std::move(text));
}

bool ConnectTargets::has_tcp() const noexcept {
  return !targets_.empty() && targets_.back().address.is_tcp();
}

}  // namespace linkspan::control
