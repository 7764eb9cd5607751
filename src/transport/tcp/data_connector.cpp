#include "transport/tcp/data_connector.hpp"

#include <algorithm>
#include <string>

namespace linkspan::transport::tcp {

DataConnector::DataConnector(Channel& channel, ConnectionGroup& group, unsigned first,
                             base::Deadline deadline, const base::Clock& clock)
    : channel_(channel),
      group_(group),
      first_(first),
      connect_by_(deadline),
      drop_at_(base::Deadline::after(
          clock, channel.connects() ? deadline.left() : deadline.left() + kDropsLater)) {
  if (!channel_.connects()) return;
  awaited_ = first_;
  for (unsigned i = 0; i < first_; ++i)
    if (Status status = channel_.open_data_connection(); !status.ok()) group_.fail(status);
}

Status DataConnector::timeout() const {
  std::string what =
      "no data connection to peer " + std::string(channel_.peer_name()) + " was made in time";
  if (!refusal_.ok()) what += "; the last try: " + refusal_.what();
  return {refusal_.ok() || refusal_.code() == Code::no_resource ? Code::timed_out : refusal_.code(),
          Scope::peer, what};
}

void DataConnector::on_connected() noexcept {
  ++connections_;
  if (awaited_ != 0) --awaited_;
}

void DataConnector::on_refused(const Status& why, base::Time now) {
  if (connections_ >= first_) return group_.on_connection_refused();
  if (awaited_ != 0) --awaited_;
  refusal_ = why;
  // Another attempt cannot change these.
  const bool final = why.code() == Code::permission_denied || why.code() == Code::unsupported ||
                     why.code() == Code::corrupt;
  if (final && connections_ == 0 && awaited_ == 0) group_.fail(why);
  if (ask_again_at_) return;
  if (final || (connections_ != 0 && asked_again_ >= kTries)) return group_.on_connection_refused();
  const unsigned doublings = std::min(asked_again_++, 10U);
  ask_again_at_ = now + std::min(kFirstPause * (1U << doublings), kLastPause);
}

void DataConnector::retry(base::Time now) {
  if (group_.has_failed()) return;
  if (connections_ == 0 && drop_at_.passed()) return group_.fail(timeout());
  if (!ask_again_at_ || now < *ask_again_at_) return;
  ask_again_at_.reset();
  while (connections_ + awaited_ < first_) {
    ++awaited_;
    if (Status status = channel_.open_data_connection(); !status.ok())
      return on_refused(status, now);
  }
}

base::Time DataConnector::next_retry(base::Time now) const {
  const base::Time drop = connections_ == 0 ? now + drop_at_.left() : base::Time::max();
  return std::min(drop, ask_again_at_.value_or(base::Time::max()));
}

}  // namespace linkspan::transport::tcp
