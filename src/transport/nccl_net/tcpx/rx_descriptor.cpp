#include "transport/nccl_net/tcpx/rx_descriptor.hpp"

#include <algorithm>
#include <limits>
#include <string>

namespace linkspan::transport::nccl_net::tcpx {
namespace {

constexpr std::uint64_t kMaxOffset = std::numeric_limits<std::uint32_t>::max();

/// Describes a fragment, or a linear piece, which only occupies its place in the receive.
struct RxEntry {
  std::uint64_t to, from;
  std::uint32_t bytes;
  std::uint32_t number;
  bool linear;

  std::uint64_t end() const noexcept { return to + bytes; }
  std::string name() const {
    return (linear ? "linear piece " : "entry ") + std::to_string(number);
  }
  std::string text() const {
    return name() + " (" + std::to_string(bytes) + " bytes at " + std::to_string(from) +
           (linear ? " of the iovecs" : " of the pool") + ", for " + std::to_string(to) + ")";
  }
};

Status corrupt_descriptor(std::string what, Where at = {}) {
  return {Code::corrupt, Scope::peer, std::move(what), at};
}

Status check_count(std::uint64_t count) {
  if (count <= kMaxFragments) return {};
  return corrupt_descriptor(std::to_string(count) + " fragments, where a receive has at most " +
                            std::to_string(kMaxFragments));
}

/// Checks an entry by itself.
Status check_bounds(const RxEntry& entry, const RxBounds& bounds) {
  if (entry.bytes == 0) return corrupt_descriptor(entry.text() + " has no bytes");
  if (!entry.linear && (entry.from > kMaxOffset || entry.from > bounds.pool_bytes ||
                        entry.bytes > bounds.pool_bytes - entry.from))
    return corrupt_descriptor(entry.text() + " leaves the pool of " +
                              std::to_string(bounds.pool_bytes) + " bytes");
  if (entry.to > bounds.receive_bytes || entry.bytes > bounds.receive_bytes - entry.to)
    return corrupt_descriptor(entry.text() + " leaves the receive of " +
                              std::to_string(bounds.receive_bytes) + " bytes");
  return {};
}

/// Checks that the entries, sorted by place, cover every byte of the receive once.
Status check_cover(std::span<const RxEntry> all, const RxBounds& bounds) {
  std::uint64_t covered = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const RxEntry& entry = all[i];
    if (entry.to < covered)
      return corrupt_descriptor(entry.text() + " overlaps " + all[i - 1].text());
    if (entry.to > covered)
      return corrupt_descriptor("a gap: bytes " + std::to_string(covered) + " to " +
                                std::to_string(entry.to - 1) + " of the receive are in none of " +
                                std::to_string(all.size()) + " entries; the next is " +
                                entry.text());
    covered = entry.end();
  }
  if (covered != bounds.receive_bytes)
    return corrupt_descriptor(std::to_string(all.size()) + " entries have " +
                              std::to_string(covered) + " bytes, the receive has " +
                              std::to_string(bounds.receive_bytes));
  return {};
}

/// Checks and sorts the entries. The plugin's fragments are mostly sorted.
Status check(std::vector<RxEntry>& all, const RxBounds& bounds) {
  for (const RxEntry& entry : all)
    if (Status status = check_bounds(entry, bounds); !status.ok()) return status;
  const auto before = [](const RxEntry& a, const RxEntry& b) { return a.to < b.to; };
  if (!std::is_sorted(all.begin(), all.end(), before))
    std::stable_sort(all.begin(), all.end(), before);
  return check_cover(all, bounds);
}

/// Merges checked entries.
std::vector<LoadMeta> merge(std::span<const RxEntry> all) {
  std::vector<LoadMeta> merged;
  merged.reserve(all.size());
  const auto continues = [&merged](const RxEntry& entry) {
    const LoadMeta& last = merged.back();
    return last.dst_off + last.len == entry.to &&
           std::uint64_t{last.src_off} + last.len == entry.from &&
           entry.bytes <= std::numeric_limits<std::uint32_t>::max() - last.len;
  };
  for (const RxEntry& entry : all) {
    if (entry.linear) continue;
    if (!merged.empty() && continues(entry))
      merged.back().len += entry.bytes;
    else
      merged.push_back({static_cast<std::uint32_t>(entry.from), entry.bytes, entry.to});
  }
  return merged;
}

}  // namespace

void DescriptorBlock::set(std::vector<LoadMeta> entries) {
  entries_ = std::move(entries);
  for (const LoadMeta& entry : entries_) largest_ = std::max(largest_, entry.len);
}

Result<DescriptorBlock> DescriptorBlock::of(std::span<const LoadMeta> entries,
                                            const RxBounds& bounds) {
  if (Status status = check_count(entries.size()); !status.ok()) return status;
  std::vector<RxEntry> all;
  all.reserve(entries.size());
  for (const LoadMeta& entry : entries)
    all.push_back(
        {entry.dst_off, entry.src_off, entry.len, static_cast<std::uint32_t>(all.size()), false});
  if (Status status = check(all, bounds); !status.ok()) return status;
  DescriptorBlock block(entries.size());
  block.set(merge(all));
  block.bytes_ = bounds.receive_bytes;
  return block;
}

Result<DescriptorBlock> DescriptorBlock::of(const RxMessage& message, const RxBounds& bounds) {
  if (Status status = check_count(message.fragments.size()); !status.ok()) return status;
  std::vector<RxEntry> all;
  all.reserve(message.fragments.size() + message.linear.size());
  for (const RxPiece& piece : message.fragments) {
    const auto number = static_cast<std::uint32_t>(all.size());
    all.push_back({piece.dst_off, piece.src_off, piece.bytes, number, false});
    if (piece.dmabuf != bounds.dmabuf)
      return corrupt_descriptor(all.back().text() + " lies in DMA-BUF " +
                                std::to_string(piece.dmabuf) + ", the pool is " +
                                std::to_string(bounds.dmabuf));
  }
  std::uint64_t linear = 0;
  for (const RxPiece& piece : message.linear) {
    const auto number = static_cast<std::uint32_t>(all.size() - message.fragments.size());
    all.push_back({piece.dst_off, piece.src_off, piece.bytes, number, true});
    linear += piece.bytes;
  }
  if (Status status = check(all, bounds); !status.ok()) return status;
  DescriptorBlock block(message.fragments.size());
  block.set(merge(all));
  block.bytes_ = bounds.receive_bytes - linear;
  return block;
}

Result<DescriptorBlock> DescriptorBlock::of_slot(const MetaQueue& queue, std::size_t slot,
                                                 const RxBounds& bounds) {
  if (slot >= kMetaSlots)
    return Status(Code::invalid_argument, Scope::request,
                  "slot " + std::to_string(slot) + " of " + std::to_string(kMetaSlots));
  const std::uint64_t count = __atomic_load_n(&queue.counts[slot], __ATOMIC_ACQUIRE);
  if (Status status = check_count(count); !status.ok()) return status;
  const LoadMeta* const first = queue.entries[slot];
  const std::vector<LoadMeta> entries(first, first + count);
  return of(entries, bounds);
}

}  // namespace linkspan::transport::nccl_net::tcpx
