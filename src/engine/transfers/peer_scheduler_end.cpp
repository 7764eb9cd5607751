// PeerScheduler: the begin and the end of a peer, and its messages for the transports.
#include <algorithm>
#include <utility>

#include "engine/transfers/peer_scheduler.hpp"

namespace linkspan::engine {

Status not_connected(std::uint64_t peer) {
  return {Code::disconnected, Scope::peer,
          "peer " + std::to_string(peer) + " is not connected any more"};
}

void PeerScheduler::add_endpoint(std::size_t transport, std::unique_ptr<transport::Channel> channel,
                                 std::unique_ptr<transport::Endpoint> endpoint) {
  const base::MutexLock lock(mutex_);
  endpoints_.add(transport, std::move(channel), std::move(endpoint));
}

PeerState PeerScheduler::state() {
  const base::MutexLock lock(mutex_);
  return status_.closing && status_.state == PeerState::up ? PeerState::lost : status_.state;
}

bool PeerScheduler::is_connected() {
  const base::MutexLock lock(mutex_);
  return status_.state == PeerState::up;
}

bool PeerScheduler::closing() {
  const base::MutexLock lock(mutex_);
  return status_.closing;
}

Status PeerScheduler::may_begin() {
  const base::MutexLock lock(mutex_);
  return check_up();
}

Status PeerScheduler::check_up() const {
  if (status_.state != PeerState::up) return not_connected(session_->id());
  if (!status_.closing) return {};
  return {Code::disconnected, Scope::peer,
          "peer " + std::to_string(session_->id()) + " is being closed by this side"};
}

Status PeerScheduler::notify(std::span<const std::byte> message) {
  const base::MutexLock lock(mutex_);
  if (Status status = check_up(); !status.ok()) return status;
  Status status = frames_.notify(message);
  if (status.ok()) ++counters_.notifications_sent;
  return status;
}

Status PeerScheduler::on_transport_message(const control::TransportMessage& message,
                                           std::span<base::Fd> fds) {
  Status status(Code::unsupported, Scope::request, "no transport \"" + message.transport + "\"");
  std::vector<std::shared_ptr<void>>
      dead;  // imports whose owner waits for our confirmation that they are closed
  const base::MutexLock lock(mutex_);
  touch();
  endpoints_.for_each([&](std::size_t i, transport::Endpoint& endpoint) {
    if (transports_[i]->name() == message.transport)
      status = endpoint.on_message(message.op, message.bytes, fds);
  });
  dead = rendezvous_.sweep();
  advance(base::Clock::steady().now());
  return status;
}

Status PeerScheduler::on_data_connection(std::string_view transport,
                                         Result<base::AuthenticatedSocket> socket) {
  Status status(Code::unsupported, Scope::request,
                "no streams of \"" + std::string(transport) + "\" here");
  const base::MutexLock lock(mutex_);
  touch();
  endpoints_.for_each([&](std::size_t i, transport::Endpoint& endpoint) {
    if (transports_[i]->name() == transport)
      status = endpoint.on_data_connection(std::move(socket));
  });
  advance(base::Clock::steady().now());
  return status;
}

void PeerScheduler::on_lost() {
  const base::MutexLock lock(mutex_);
  touch();
  lose();
  advance(base::Clock::steady().now());
}

void PeerScheduler::lose() {
  if (status_.state != PeerState::up) return;
  status_.state = PeerState::lost;
  const Status why(Code::disconnected, Scope::peer, "peer " + session_->describe() + " is lost");
  for (const auto& transfer : queue_) stop(*transfer, why);
  const auto lose_one =
      [&](const std::shared_ptr<TransferState>& transfer) LINKSPAN_TSA(no_thread_safety_analysis) {
        transfer->message != nullptr ? end_waiting_message(*transfer, why) : stop(*transfer, why);
      };
  stream_waits_.for_each(lose_one);
  frames_.drop_unsent();
  rendezvous_.on_peer_lost();
}

void PeerScheduler::on_gone() {
  const base::MutexLock lock(mutex_);
  touch();
  lose();
  endpoints_.peer_terminated();
  status_.draining = true;
  finish_teardown();
  advance(base::Clock::steady().now());
}

/// Makes a disconnected peer gone once no data of it can arrive any more.
void PeerScheduler::finish_teardown() {
  if (!status_.draining || !endpoints_.drained()) return;
  status_.draining = false;
  status_.state = PeerState::gone;
  rendezvous_.on_peer_gone();
  events_.on_quiet();
}

void PeerScheduler::refuse(const Status& why) {
  const base::MutexLock lock(mutex_);
  touch();
  status_.refusal = why;
  endpoints_.stop_serving();
  cancel_all();
}

bool PeerScheduler::close() {
  const base::MutexLock lock(mutex_);
  if (status_.state == PeerState::gone) return false;
  touch();
  status_.closing = true;
  endpoints_.stop_serving();
  cancel_all();
  return true;
}

bool PeerScheduler::blocks_its_close(CloseBlocker blocker) {
  const base::MutexLock lock(mutex_);
  if (blocker == CloseBlocker::transfers) return !transfers_.empty();
  if (blocker != CloseBlocker::copies) return status_.state != PeerState::gone;
  bool copies = false;
  endpoints_.for_each([&](std::size_t i, const transport::Endpoint& endpoint) {
    copies |= !transports_[i]->capabilities().leaves_host &&
              endpoint.poll_hint().when != transport::PollHint::When::idle;
  });
  return copies;
}

bool PeerScheduler::blocks_engine_close(CloseBlocker blocker) {
  const base::MutexLock lock(mutex_);
  switch (blocker) {
    case CloseBlocker::transfers:
      return !transfers_.empty();
    case CloseBlocker::copies:
      return !endpoints_.idle();
    case CloseBlocker::memory:
      return (status_.state != PeerState::gone && !regions_.exported.empty()) || !endpoints_.idle();
    case CloseBlocker::messages:
      break;
  }
  return status_.state == PeerState::up && session_->is_remote() &&
         session_->socket().wants_write();
}

void PeerScheduler::close_endpoints() {
  const base::MutexLock lock(mutex_);
  endpoints_.close();
}

void PeerScheduler::count_import(const std::shared_ptr<ImportedRegion>& region) {
  const base::MutexLock lock(mutex_);
  ++(region != nullptr ? counters_.imports : counters_.imports_failed);
  if (region == nullptr) return;
  auto& all = regions_.imported;
  if (all.size() == all.capacity())  // rarely, even if many come and go
    std::erase_if(all, [](const auto& each) { return each.expired(); });
  all.push_back(region);
}

void PeerScheduler::count_export(std::uint64_t serial) {
  const base::MutexLock lock(mutex_);
  ++counters_.keys_sent;
  if (serial != 0) regions_.exported.insert(serial);
}

void PeerScheduler::retracted(std::uint64_t serial) {
  const base::MutexLock lock(mutex_);
  regions_.exported.erase(serial);
}

std::vector<std::shared_ptr<ImportedRegion>> PeerScheduler::imported() {
  std::vector<std::shared_ptr<ImportedRegion>> all;
  const base::MutexLock lock(mutex_);
  for (const auto& each : regions_.imported)
    if (auto region = each.lock()) all.push_back(std::move(region));
  return all;
}

}  // namespace linkspan::engine
