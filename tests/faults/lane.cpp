#include "tests/faults/lane.hpp"

#include <algorithm>
#include <numeric>

namespace linkspan::test {
namespace {

constexpr std::size_t kEnoughToLookAt = 256;  // pieces that came
constexpr std::uint32_t kPage = 1024;

/// A transfer of one of four shapes within `bytes` bytes; pages also as indices.
struct Shot {
  std::vector<Block> blocks;
  std::vector<std::uint32_t> local, remote;

  Shot(Random& random, std::uint64_t local_at, std::uint64_t remote_at, std::uint64_t bytes) {
    constexpr std::uint64_t kStride = 4096;
    switch (random() % 4) {
      case 0:
        blocks = {{local_at, remote_at, bytes}};
        break;
      case 1:
        for (std::uint64_t at = 0; at < bytes; at += kStride)
          blocks.push_back({local_at + at + 3, remote_at + at + 5, 3000 + random() % 1000});
        break;
      case 2:
        local.resize(bytes / kPage);
        std::iota(local.begin(), local.end(), 0u);
        remote = local;
        std::shuffle(local.begin(), local.end(), random);
        for (std::size_t i = 0; i < local.size(); ++i)
          blocks.push_back({local_at + std::uint64_t{local[i]} * kPage,
                            remote_at + std::uint64_t{remote[i]} * kPage, kPage});
        break;
      default:
        blocks = {{local_at + random() % 1000, remote_at + random() % 1000, 8}};
    }
  }
};

}  // namespace

void Lane::aim(Op op, Peer peer, RemoteRegion remote, std::uint64_t offset,
               std::uint64_t remote_seed) {
  op_ = op;
  peer_ = std::move(peer);
  remote_ = std::move(remote);
  offset_ = offset;
  remote_seed_ = remote_seed;
  near_.fill(++near_seed_);
}

Status Lane::launch(Random& random) {
  const std::uint64_t part = bytes_ / kDepth;
  for (std::uint64_t i = 0; i < kDepth; ++i) {
    const std::uint64_t here = i * part, there = offset_ + here;
    const Shot shot(random, here, there, part);
    const Pages pages{kPage, here, there, shot.local, shot.remote};
    const TransferOptions options{.after = after_, .low_latency = i % 2 == 0};
    auto moved = shot.local.empty()
                     ? (op_ == Op::write ? peer_.write(near_.region, remote_, shot.blocks, options)
                                         : peer_.read(near_.region, remote_, shot.blocks, options))
                     : (op_ == Op::write ? peer_.write(near_.region, remote_, pages, options)
                                         : peer_.read(near_.region, remote_, pages, options));
    if (!moved.ok()) return moved.status();
    flights_.push_back({*std::move(moved), shot.blocks});
  }
  return {};
}

void Lane::land(const Flight& flight, const Status& end) {
  broken_ += end.ok() ? 0 : 1;
  if (op_ == Op::write) return;
  for (const Block& b : flight.blocks) {
    if (end.ok())
      came_.push_back({b.local_offset, remote_seed_, b.remote_offset, b.bytes});
    else
      undefined_.push_back({b.local_offset, b.bytes});
  }
}

std::string Lane::poll() {
  std::string wrong = near_.difference(near_seed_, came_, undefined_);
  came_.clear();
  undefined_.clear();
  near_.fill(++near_seed_);
  return wrong;
}

Status Lane::pump(Random& random) {
  if (!std::all_of(flights_.begin(), flights_.end(), [](auto& f) { return f.transfer.done(); }))
    return {};
  Status first;
  for (const Flight& flight : std::exchange(flights_, {})) {
    Status end = flight.transfer.status();
    land(flight, end);
    if (first.ok()) first = std::move(end);
  }
  if (came_.size() > kEnoughToLookAt && wrong_.empty()) wrong_ = poll();
  Status launched = launch(random);
  return first.ok() ? launched : first;
}

std::string Lane::settle(base::Deadline limit) {
  std::string wrong = std::exchange(wrong_, {});
  for (const Flight& flight : flights_) {
    const Status end = flight.transfer.wait(limit.left());
    if (!flight.transfer.done()) return "not quiet in time: " + end.to_string();
    if (!end.ok() && end.code() != Code::disconnected && wrong.empty()) wrong = end.to_string();
    land(flight, end);
  }
  flights_.clear();
  peer_ = {};
  remote_ = {};
  return wrong;
}

std::string Lane::last_round(Random& random, std::vector<Expected>& there) {
  const std::uint64_t broken = broken_;
  if (const Status status = launch(random); !status.ok()) return status.to_string();
  if (op_ == Op::write)
    for (const Flight& flight : flights_)
      for (const Block& b : flight.blocks)
        there.push_back({b.remote_offset, near_seed_, b.local_offset, b.bytes});
  const std::string wrong = settle(base::Deadline::after(base::Clock::steady(), 10s));
  if (!wrong.empty()) return wrong;
  return broken_ == broken ? poll() : "a transfer with a peer that lives was not ok";
}

}  // namespace linkspan::test
