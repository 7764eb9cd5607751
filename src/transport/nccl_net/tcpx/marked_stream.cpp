#include "transport/nccl_net/tcpx/marked_stream.hpp"

#include <algorithm>

#include "copy/chooser.hpp"

namespace linkspan::transport::nccl_net::tcpx {

Status MarkedStream::mark(const cuda::DeviceScope& scope, std::size_t entries, Mark& mark) {
  if (between_.empty()) next_query_ = clock_.now() + copy::kOverdue;
  between_.push_back(entries + 1);
  in_stream_ += between_.back();
  mark = ++marks_;
  Status written = flag_.write(scope, stream_, marks_, 0, true);
  if (!written.ok()) next_query_ = clock_.now();
  return written;
}

Status MarkedStream::poll() {
  if (between_.empty()) return {};
  const Mark before = reached_;
  reach(std::min(flag_.value(), marks_));
  const base::Time now = clock_.now();
  if (reached_ != before) next_query_ = now + copy::kOverdue;
  if (between_.empty() || now < next_query_) return {};
  next_query_ = now + copy::kQueryInterval;
  const auto scope = device_.enter();
  const Status answer = scope.ok() ? stream_.query(*scope) : scope.status();
  if (answer.ok()) reach(marks_);
  // Pending, or the driver cannot answer now: not known to be quiet.
  return answer.scope() == Scope::process ? answer : Status();
}

void MarkedStream::reach(Mark mark) noexcept {
  for (; reached_ < mark; ++reached_) {
    in_stream_ -= between_.front();
    between_.pop_front();
  }
}

}  // namespace linkspan::transport::nccl_net::tcpx
