#include "transport/nccl_net/staged.hpp"

#include <algorithm>
#include <utility>

#include "transport/nccl_net/flow.hpp"

namespace linkspan::transport::nccl_net {

Staged::Staged(Comm& comm, const cuda::Device& device, const Options& options, Way way)
    : comm_(comm),
      device_(device),
      options_(options),
      way_(way),
      staging_(options.slot_bytes, *options.lanes) {}

Staged::~Staged() {
  for (Part& part : parts_)
    if (part.slot != nullptr && !part.in_gpu) release(part);
}

Result<std::size_t> Staged::take(const Order& order, std::size_t first) {
  if (!staging_.room(device_)) return std::size_t{0};
  runs_.clear();
  std::uint64_t left = options_.slot_bytes;
  for (std::size_t i = first; i < order.pieces.size() && order.pieces[i].bytes <= left &&
                              runs_.size() < copy::Staging::kRuns;
       ++i) {
    runs_.push_back({.gpu = order.pieces[i].address, .bytes = order.pieces[i].bytes});
    left -= order.pieces[i].bytes;
  }
  const bool to_gpu = way_ == Way::to_gpu;
  auto slot = staging_.acquire(
      {.device = &device_, .runs = runs_, .to_gpu = to_gpu, .ctas = options_.ctas});
  if (!slot.ok()) return slot.status();
  Part& part = parts_[(*slot)->index()];
  if (part.registration == nullptr) {
    const auto memory = (*slot)->memory();
    auto made = comm_.add_memory(memory.data(), memory.size(), abi::kHost);
    if (!made.ok()) {
      staging_.release(**slot);
      return made.status();
    }
    part.registration = *std::move(made);
  }
  part = {.registration = std::move(part.registration),
          .slot = *slot,
          .use = RegionUse(order.memory),
          .cookie = ++last_cookie_,
          .messages = runs_.size()};
  if (!to_gpu)
    if (Status status = submit(part); !status.ok()) return status;
  beginning_.push_back(&part);
  return part.messages;
}

Status Staged::submit(Part& part) {
  Status status = staging_.submit(*part.slot);
  part.in_gpu = status.ok();
  if (!status.ok()) part = {.registration = std::move(part.registration)};  // given back
  return status;
}

void Staged::release(Part& part) {
  staging_.release(*part.slot);
  part = {.registration = std::move(part.registration)};
}

std::optional<Place> Staged::next() const {
  const Part& part = *beginning_.front();
  if (part.in_gpu) return std::nullopt;
  return Place{part.slot->at(part.begun), part.registration.get(), part.cookie};
}

void Staged::begun(bool empty) {
  Part& part = *beginning_.front();
  if (++part.begun == part.messages) beginning_.pop_front();
  if (empty) (void)done(part.cookie, false);
}

Status Staged::done(std::uint64_t cookie, bool whole) {
  Part& part = *std::ranges::find(parts_, cookie, &Part::cookie);
  part.whole &= whole;
  if (++part.done != part.messages) return {};
  if (way_ == Way::to_gpu && part.whole) return submit(part);
  release(part);
  return {};
}

bool Staged::holds(std::uint64_t cookie) const {
  return std::ranges::find(parts_, cookie, &Part::cookie) != parts_.end();
}

Result<bool> Staged::poll() {
  bool moved = false;
  while (Slot* const slot = staging_.next_done()) {
    Part& part = parts_[slot->index()];
    part.in_gpu = false;
    moved = true;
    if (!slot->status().ok()) return slot->status();
    if (way_ == Way::to_gpu) release(part);
  }
  return moved;
}

bool Staged::is_quiet() const { return std::ranges::none_of(parts_, &Part::in_gpu); }

void Staged::deregister() {
  for (Part& part : parts_) part.registration.reset();
}

}  // namespace linkspan::transport::nccl_net
