// Fuzzes what the kernel, or a plugin, reports that a NIC has stored in GPU memory: control
// messages, and lists of fragments.
//
// Finds, beside what the sanitizers see: sums that differ from the pieces, a block that leaves the
// pool or the receive, writes a byte twice or never, or takes it from a wrong place.
#include <cstring>
#include <map>

#include "tests/fuzz/support.hpp"
#include "transport/nccl_net/tcpx/rx_descriptor.hpp"

namespace linkspan::fuzz {
namespace {

using namespace transport::nccl_net::tcpx;

constexpr std::uint64_t kMaxBytes = 1u << 16;  // of a receive that is gone through byte by byte

/// Returns the place in the pool for each byte of the receive.
template <class Entries>
std::map<std::uint64_t, std::uint64_t> sources_of(const Entries& entries) {
  std::map<std::uint64_t, std::uint64_t> sources;
  for (const auto& entry : entries)
    for (std::uint64_t i = 0; i < entry.len; ++i)
      demand(sources.emplace(entry.dst_off + i, entry.src_off + i).second, "a byte twice");
  return sources;
}

void check(const DescriptorBlock& block, const std::vector<LoadMeta>& as_they_came,
           const RxBounds& bounds) {
  demand(as_they_came.size() <= kMaxFragments, "too many fragments");
  demand(block.entries().size() <= as_they_came.size(), "more than there were");
  std::uint64_t bytes = 0;
  for (const LoadMeta& entry : block.entries()) {
    demand(entry.len != 0 && std::uint64_t{entry.src_off} + entry.len <= bounds.pool_bytes,
           "it leaves the pool");
    demand(
        entry.dst_off <= bounds.receive_bytes && entry.len <= bounds.receive_bytes - entry.dst_off,
        "it leaves the receive");
    bytes += entry.len;
  }
  demand(bytes == block.bytes(), "another sum");
  if (bounds.receive_bytes > kMaxBytes) return;
  demand(sources_of(block.entries()) == sources_of(as_they_came), "other sources");
}

void refused(const Status& status) {
  demand(status.code() == Code::corrupt && !status.what().empty(), "another code");
}

void check(const RxMessage& message) {
  std::uint64_t bytes = 0, linear = 0, tokens = 0;
  for (const RxPiece& piece : message.fragments) bytes += piece.bytes;
  for (const RxPiece& piece : message.linear) {
    demand(piece.src_off == linear, "linear bytes are not in their order");
    linear += piece.bytes;
  }
  for (const RxTokens& range : message.tokens) {
    demand(range.count != 0 && range.first <= ~std::uint32_t{0} - (range.count - 1),
           "tokens that wrap");
    tokens += range.count;
  }
  demand(bytes + linear == message.bytes && linear == message.linear_bytes, "another sum");
  demand(tokens == message.fragments.size(), "a token for each fragment");
}

/// Parses the messages of several calls; each control buffer has an allocation of its own.
void control(Input& input, const RxBounds& bounds) {
  RxMessage message;
  while (!input.empty()) {
    const std::size_t length = input.word();
    const auto piece = input.take(length);
    const std::vector<std::byte> bytes(piece.begin(), piece.end());
    const std::uint64_t before = message.bytes;
    const Status status = parse_control(bytes, 0, message);
    if (!status.ok()) {
      refused(status);
      demand(message.bytes == before, "an error that added something");
    }
    check(message);
  }
  // Once with the size of the pieces, once with the size from the input.
  for (const std::uint64_t receive : {message.bytes, bounds.receive_bytes}) {
    const RxBounds all{bounds.pool_bytes, receive, bounds.dmabuf};
    const auto block = DescriptorBlock::of(message, all);
    if (!block.ok()) {
      refused(block.status());
      continue;
    }
    std::vector<LoadMeta> pieces;
    for (const RxPiece& p : message.fragments)
      pieces.push_back({static_cast<std::uint32_t>(p.src_off), p.bytes, p.dst_off});
    check(*block, pieces, all);
  }
}

void list(Input& input, const RxBounds& bounds) {
  const std::vector<std::byte> bytes = input.rest();
  std::vector<LoadMeta> entries(bytes.size() / sizeof(LoadMeta));
  if (!entries.empty())
    std::memcpy(entries.data(), bytes.data(), entries.size() * sizeof(LoadMeta));
  const auto block = DescriptorBlock::of(entries, bounds);
  if (!block.ok()) return refused(block.status());
  std::uint64_t sum = 0;
  for (const LoadMeta& entry : entries) sum += entry.len;
  demand(sum == bounds.receive_bytes, "it does not have what the receive has");
  check(*block, entries, bounds);
}

}  // namespace
}  // namespace linkspan::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace linkspan::fuzz;
  Input input(data, size);
  const std::uint8_t which = input.byte();
  RxBounds bounds;
  bounds.pool_bytes = std::uint64_t{input.word()} << (which >> 1) % 40;
  bounds.receive_bytes = input.word();
  bounds.dmabuf = input.byte();
  which % 2 == 0 ? control(input, bounds) : list(input, bounds);
  return 0;
}
