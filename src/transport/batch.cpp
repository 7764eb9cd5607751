#include "transport/batch.hpp"

#include <string>

namespace linkspan::transport {
namespace {

using memory::fits;

Status bad(const std::string& what) { return {Code::invalid_argument, Scope::request, what}; }

std::string text(const Block& b) {
  return "block {local_offset " + std::to_string(b.local_offset) + ", remote_offset " +
         std::to_string(b.remote_offset) + ", bytes " + std::to_string(b.bytes) + "}";
}

Result<std::vector<Block>> blocks_of(const Pages& p, std::uint64_t here, std::uint64_t there) {
  if (p.local_index.size() != p.remote_index.size())
    return bad("page lists differ in length: " + std::to_string(p.local_index.size()) + " local, " +
               std::to_string(p.remote_index.size()) + " remote");
  const auto whole = [&p](std::uint64_t base, std::uint32_t index, std::uint64_t size) {
    return base <= size && (p.page_bytes == 0 || index < (size - base) / p.page_bytes);
  };
  std::vector<Block> blocks;
  blocks.reserve(p.local_index.size());
  for (std::size_t i = 0; i < p.local_index.size(); ++i) {
    const std::uint32_t l = p.local_index[i], r = p.remote_index[i];
    if (!whole(p.local_base, l, here) || !whole(p.remote_base, r, there))
      return bad("page " + std::to_string(i) + " (local index " + std::to_string(l) +
                 ", remote index " + std::to_string(r) + ", " + std::to_string(p.page_bytes) +
                 " bytes each) leaves its region of " + std::to_string(here) + " local or " +
                 std::to_string(there) + " remote bytes");
    blocks.push_back(
        {p.local_base + l * p.page_bytes, p.remote_base + r * p.page_bytes, p.page_bytes});
  }
  return blocks;
}

}  // namespace

Result<std::vector<Block>> checked_blocks(const std::variant<std::span<const Block>, Pages>& shape,
                                          std::uint64_t here, std::uint64_t there,
                                          const Capabilities& limits) {
  std::vector<Block> blocks;
  if (const auto* list = std::get_if<std::span<const Block>>(&shape)) {
    if (list->size() > limits.max_batch_blocks)
      return bad(std::to_string(list->size()) + " blocks in one batch; at most " +
                 std::to_string(limits.max_batch_blocks));
    blocks.assign(list->begin(), list->end());
  } else {
    const Pages& pages = std::get<Pages>(shape);
    if (pages.local_index.size() > limits.max_batch_blocks)
      return bad(std::to_string(pages.local_index.size()) + " pages in one batch; at most " +
                 std::to_string(limits.max_batch_blocks));
    auto made = blocks_of(pages, here, there);
    if (!made.ok()) return made;
    blocks = *std::move(made);
  }
  std::uint64_t left = limits.max_batch_bytes;
  for (const Block& b : blocks) {
    if (!fits(b.local_offset, b.bytes, here))
      return bad(text(b) + " leaves the local region of " + std::to_string(here) + " bytes");
    if (!fits(b.remote_offset, b.bytes, there))
      return bad(text(b) + " leaves the remote region of " + std::to_string(there) + " bytes");
    if (b.bytes > left)
      return bad("more than " + std::to_string(limits.max_batch_bytes) + " bytes in one batch");
    left -= b.bytes;
  }
  std::erase_if(blocks, [](const Block& b) { return b.bytes == 0; });
  return blocks;
}

Result<std::vector<Block>> checked_blocks(const Batch& batch, const Capabilities& limits) {
  return checked_blocks(batch.shape, batch.local->bytes(), batch.remote->bytes(), limits);
}

Shape shape_of(std::span<const Block> blocks) noexcept {
  Shape shape{.blocks = blocks.size(), .bytes = 0};
  for (const Block& b : blocks) shape.bytes += b.bytes;
  return shape;
}

}  // namespace linkspan::transport
