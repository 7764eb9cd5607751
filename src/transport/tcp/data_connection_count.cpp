#include "transport/tcp/data_connection_count.hpp"

#include <algorithm>
#include <utility>

namespace linkspan::transport::tcp {

void DataConnectionCount::work(base::Time now, bool busy) noexcept {
  if (busy_) {
    unseen_ += now - seen_;
    window_.time += now - seen_;
  }
  seen_ = now;
  busy_ = busy;
}

unsigned DataConnectionCount::update(std::uint64_t bytes, unsigned connections) noexcept {
  unseen_ = {};
  if (std::exchange(came_, connections) != connections || connections < wanted_) {
    window_ = {.from = bytes};
    return wanted_;
  }
  if (!window_.is_over(bytes)) return wanted_;
  const double rate = window_.rate(bytes);
  rested_ += window_.time;
  window_ = {.from = bytes};
  if (std::exchange(fresh_, false)) return wanted_;
  if (rate_ && rate < kGain * *rate_) {
    if (++in_vain_ == kWindows) rest();
  } else if (rate_ || rested_ >= pause_) {
    if (rate_) pause_ = {};
    rate_ = rate;
    in_vain_ = 0;
    fresh_ = true;
    wanted_ = std::min(2 * wanted_, most_);
  }
  return wanted_;
}

void DataConnectionCount::on_connection_refused() noexcept {
  if (wanted_ != 0) --wanted_;
  if (rate_) rest();  // once for each doubling
}

void DataConnectionCount::rest() noexcept {
  rate_.reset();
  rested_ = {};
  pause_ = std::max(kPause, 2 * pause_);
}

}  // namespace linkspan::transport::tcp
