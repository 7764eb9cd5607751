#include "tests/support/nccl_net_plugin/bounce_pool.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <utility>

namespace linkspan::nccl_test {
namespace {

constexpr int kPoison = 0xA5;

/// Returns the next size: mostly a page less its headers, sometimes the short end of a packet, such
/// that all of `left` fits into `entries`.
std::size_t next_size(std::size_t left, std::size_t entries, std::size_t most, Random& random) {
  const std::size_t full = most - random() % std::min<std::size_t>(most, 64);
  const std::size_t wished = random() % 8 == 0 ? 1 + random() % most : full;
  const std::size_t least = (left + entries - 1) / entries;
  return std::min(left, std::max(wished, least));
}

}  // namespace

Result<std::unique_ptr<BouncePool>> BouncePool::create(Gpu& gpu) {
  Result<Block> pool = gpu.device(kPoolBytes);
  if (!pool.ok()) return pool.status();
  Result<Block> kernels = gpu.device(sizeof(UnpackHandle));
  if (!kernels.ok()) return kernels.status();
  Result<Block> lists = gpu.pinned(sizeof(UnpackMeta));
  if (!lists.ok()) return lists.status();
  std::memset(lists->data(), 0, sizeof(UnpackMeta));
  std::unique_ptr<BouncePool> made(
      new BouncePool(gpu, *std::move(pool), *std::move(kernels), *std::move(lists)));

  const UnpackHandle handle{made->lists_.address(), made->pool_.address(), 0};
  Staging staging;
  if (Status status = staging.reserve(gpu, sizeof handle); !status.ok()) return status;
  std::memcpy(staging.data(), &handle, sizeof handle);
  const auto copied = gpu.copy(made->kernels_.address(), staging.address(), sizeof handle);
  if (!copied.ok()) return copied.status();
  gpu.drain();
  made->handle_ = {.netDeviceType = kUnpackDevice,
                   .netDeviceVersion = kUnpackVersion,
                   .handle = reinterpret_cast<void*>(made->kernels_.address()),
                   .size = sizeof handle,
                   .needsProxyProgress = 1};
  return made;
}

Result<std::uint64_t> BouncePool::land(std::size_t slot, std::span<const std::byte> message,
                                       std::size_t fragment, Random& random) {
  Slot& s = slots_[slot];
  for (std::size_t at = 0; at < message.size();) {
    const std::size_t size =
        next_size(message.size() - at, kUnpackFragments - s.list.size(), fragment, random);
    s.list.push_back({.src_off = 0, .len = static_cast<std::uint32_t>(size), .dst_off = at});
    at += size;
  }
  if (s.list.empty()) return 0;  // has passed
  std::vector<std::size_t> cells(std::min(kUnpackFragments, s.list.size() + s.list.size() / 8 + 1));
  std::iota(cells.begin(), cells.end(), 0);
  std::shuffle(cells.begin(), cells.end(), random);
  s.used = cells.size() * kCell;
  if (Status status = s.image.reserve(gpu_, s.used); !status.ok()) return status;
  std::memset(s.image.data(), kPoison, s.used);
  for (std::size_t i = 0; i < s.list.size(); ++i) {
    UnpackEntry& e = s.list[i];
    const std::size_t at = cells[i] * kCell + random() % (kCell - e.len + 1);
    std::memcpy(s.image.data() + at, message.data() + e.dst_off, e.len);
    e.src_off = static_cast<std::uint32_t>(slot * kSlotBytes + at);
  }
  std::shuffle(s.list.begin(), s.list.end(), random);
  return gpu_.copy(pool_.address() + slot * kSlotBytes, s.image.address(), s.used);
}

void BouncePool::damage(std::size_t slot, ListFault fault) {
  std::vector<UnpackEntry>& list = slots_[slot].list;
  if (list.empty()) return;
  std::uint64_t total = 0;
  for (const UnpackEntry& e : list) total += e.len;
  switch (fault) {
    case ListFault::short_by_one:
      --list[0].len;
      break;
    case ListFault::lost:
      list.pop_back();
      break;
    case ListFault::overlap:
      if (list.size() > 1) list[0].dst_off = list[1].dst_off;
      break;
    case ListFault::outside:
      list[0].src_off = static_cast<std::uint32_t>(kPoolBytes);
      break;
    case ListFault::beyond:
      list[0].dst_off = total;
      break;
    case ListFault::none:
      break;
  }
}

void BouncePool::publish(std::size_t slot) {
  const std::vector<UnpackEntry>& list = slots_[slot].list;
  std::copy(list.begin(), list.end(), meta().mem[slot]);
  std::atomic_ref(meta().cnt[slot]).store(list.size(), std::memory_order_release);
}

Status BouncePool::clear(std::size_t slot) {
  Slot& s = slots_[slot];
  std::atomic_ref(meta().cnt[slot]).store(0, std::memory_order_release);
  s.list.clear();
  if (s.used == 0) return {};
  return gpu_.fill(pool_.address() + slot * kSlotBytes, kPoison, std::exchange(s.used, 0)).status();
}

}  // namespace linkspan::nccl_test
