#include "transport/nccl_net/staged.hpp"

#include <algorithm>
#include <utility>

#include "transport/nccl_net/work_queue.hpp"

namespace linkspan::transport::nccl_net {

Staged::Staged(Comm& comm, const cuda::Device& device, const StagingOptions& options,
               Direction direction)
    : comm_(comm),
      device_(device),
      options_(options),
      direction_(direction),
      staging_(options.buffer_bytes, *options.staging_streams) {}

Staged::~Staged() {
  for (BufferState& state : states_)
    if (state.buffer != nullptr && !state.in_gpu) release(state);
}

Result<std::size_t> Staged::stage(const WorkRequest& work, std::size_t first) {
  if (!staging_.room(device_)) return std::size_t{0};
  runs_.clear();
  std::uint64_t left = options_.buffer_bytes;
  for (std::size_t i = first; i < work.messages.size() && work.messages[i].bytes <= left &&
                              runs_.size() < copy::Staging::kRuns;
       ++i) {
    runs_.push_back({.gpu = work.messages[i].address, .bytes = work.messages[i].bytes});
    left -= work.messages[i].bytes;
  }
  const bool to_gpu = direction_ == Direction::to_gpu;
  auto buffer = staging_.acquire(
      {.device = &device_, .runs = runs_, .to_gpu = to_gpu, .ctas = options_.ctas});
  if (!buffer.ok()) return buffer.status();
  BufferState& state = states_[(*buffer)->index()];
  if (state.registration == nullptr) {
    const auto memory = (*buffer)->memory();
    auto made = comm_.add_memory(memory.data(), memory.size(), abi::kHost);
    if (!made.ok()) {
      staging_.release(**buffer);
      return made.status();
    }
    state.registration = *std::move(made);
  }
  state = {.registration = std::move(state.registration),
           .buffer = *buffer,
           .use = RegionUse(work.memory),
           .cookie = ++last_cookie_,
           .messages = runs_.size()};
  if (!to_gpu)
    if (Status status = submit(state); !status.ok()) return status;
  beginning_.push_back(&state);
  return state.messages;
}

Status Staged::submit(BufferState& state) {
  Status status = staging_.submit(*state.buffer);
  state.in_gpu = status.ok();
  if (!status.ok())
    state = {.registration = std::move(state.registration)};  // submit() has released it
  return status;
}

void Staged::release(BufferState& state) {
  staging_.release(*state.buffer);
  state = {.registration = std::move(state.registration)};
}

std::optional<MessagePlace> Staged::next() const {
  const BufferState& state = *beginning_.front();
  if (state.in_gpu) return std::nullopt;
  return MessagePlace{state.buffer->at(state.begun), state.registration.get(), state.cookie};
}

void Staged::begun(bool empty) {
  BufferState& state = *beginning_.front();
  if (++state.begun == state.messages) beginning_.pop_front();
  if (empty) (void)done(state.cookie, false);
}

Status Staged::done(std::uint64_t cookie, bool whole) {
  BufferState& state = *std::ranges::find(states_, cookie, &BufferState::cookie);
  state.whole &= whole;
  if (++state.done != state.messages) return {};
  if (direction_ == Direction::to_gpu && state.whole) return submit(state);
  release(state);
  return {};
}

bool Staged::is_in_flight(std::uint64_t cookie) const {
  return std::ranges::find(states_, cookie, &BufferState::cookie) != states_.end();
}

Result<bool> Staged::poll() {
  bool moved = false;
  while (Buffer* const buffer = staging_.next_done()) {
    BufferState& state = states_[buffer->index()];
    state.in_gpu = false;
    moved = true;
    if (!buffer->status().ok()) return buffer->status();
    if (direction_ == Direction::to_gpu) release(state);
  }
  return moved;
}

bool Staged::is_quiet() const { return std::ranges::none_of(states_, &BufferState::in_gpu); }

void Staged::deregister() {
  for (BufferState& state : states_) state.registration.reset();
}

}  // namespace linkspan::transport::nccl_net
