#include "transport/batch.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <tuple>

namespace linkspan::transport {
namespace {

using memory::fits;

Status bad(const std::string& what) { return {Code::invalid_argument, Scope::request, what}; }

std::string text(const Block& b) {
  return "block {local_offset " + std::to_string(b.local_offset) + ", remote_offset " +
         std::to_string(b.remote_offset) + ", bytes " + std::to_string(b.bytes) + "}";
}

/// Returns the highest index. Always inlined, so that it is compiled for its caller's target.
[[gnu::always_inline]] inline std::uint32_t highest(std::span<const std::uint32_t> index) noexcept {
  constexpr std::size_t kAtOnce = 16;
  std::array<std::uint32_t, kAtOnce> most{};
  std::size_t i = 0;
  for (; i + kAtOnce <= index.size(); i += kAtOnce)
    for (std::size_t k = 0; k < kAtOnce; ++k)
      most[k] = most[k] < index[i + k] ? index[i + k] : most[k];
  for (; i < index.size(); ++i) most[0] = std::max(most[0], index[i]);
  return *std::ranges::max_element(most);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] std::uint32_t highest_avx2(std::span<const std::uint32_t> index) noexcept {
  return highest(index);
}
const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
#else
constexpr auto highest_avx2 = highest;
constexpr bool has_avx2 = false;
#endif

/// Returns true if every index is below `end`.
bool all_below(std::span<const std::uint32_t> index, std::uint64_t end) noexcept {
  return index.empty() || (has_avx2 ? highest_avx2(index) : highest(index)) < end;
}

/// Returns true if `next` follows `last` directly on both sides.
bool continues(const Block& last, const Block& next) noexcept {
  return next.local_offset - last.local_offset == last.bytes &&
         next.remote_offset - last.remote_offset == last.bytes;
}

/// Returns the number of whole pages after `base`; no limit for pages of 0 bytes.
std::uint64_t pages_behind(std::uint64_t base, std::uint64_t page_bytes,
                           std::uint64_t size) noexcept {
  if (base > size) return 0;
  return page_bytes == 0 ? ~std::uint64_t{0} : (size - base) / page_bytes;
}

Status leaves(const Pages& p, std::uint64_t here, std::uint64_t there, std::uint64_t ours,
              std::uint64_t theirs) {
  std::size_t i = 0;
  while (p.local_index[i] < ours && p.remote_index[i] < theirs) ++i;
  return bad("page " + std::to_string(i) + " (local index " + std::to_string(p.local_index[i]) +
             ", remote index " + std::to_string(p.remote_index[i]) + ", " +
             std::to_string(p.page_bytes) + " bytes each) leaves its region of " +
             std::to_string(here) + " local or " + std::to_string(there) + " remote bytes");
}

Status too_many(std::size_t count, const char* what, std::uint64_t limit) {
  return bad(std::to_string(count) + " " + what + " in one batch; at most " +
             std::to_string(limit));
}

Status too_large(std::uint64_t limit) {
  return bad("more than " + std::to_string(limit) + " bytes in one batch");
}

/// Multiplies in place. Returns false if the product overflows.
bool multiply(std::uint64_t& product, std::uint64_t by) noexcept {
  if (by != 0 && product > ~std::uint64_t{0} / by) return false;
  product *= by;
  return true;
}

std::string text(const Strides& s) {
  std::string what = "strides {bytes " + std::to_string(s.bytes) + ", local_base " +
                     std::to_string(s.local_base) + ", remote_base " +
                     std::to_string(s.remote_base);
  for (const Strides::Level& level : s.levels)
    what += ", " + std::to_string(level.count) + " x (" + std::to_string(level.local_step) + ", " +
            std::to_string(level.remote_step) + ")";
  return what + "}";
}

/// Returns whether the last block of that side, the farthest one, lies within `size` bytes.
bool last_fits(const Strides& s, std::uint64_t base, std::uint64_t Strides::Level::*step,
               std::uint64_t size) noexcept {
  if (base > size) return false;
  std::uint64_t left = size - base;
  for (const Strides::Level& level : s.levels) {
    std::uint64_t distance = level.*step;
    if (!multiply(distance, level.count - 1) || distance > left) return false;
    left -= distance;
  }
  return s.bytes <= left;
}

bool has_blocks(const Strides& s) noexcept {
  return std::ranges::all_of(s.levels, [](const auto& level) { return level.count != 0; });
}

}  // namespace

Status check_strides(const Strides& s, std::uint64_t here, std::uint64_t there,
                     const Capabilities& limits) {
  if (!has_blocks(s)) return {};
  if (!last_fits(s, s.local_base, &Strides::Level::local_step, here))
    return bad(text(s) + " leave the local region of " + std::to_string(here) + " bytes");
  if (!last_fits(s, s.remote_base, &Strides::Level::remote_step, there))
    return bad(text(s) + " leave the remote region of " + std::to_string(there) + " bytes");
  std::uint64_t bytes = s.bytes;
  for (const Strides::Level& level : s.levels)
    if (!multiply(bytes, level.count) || bytes > limits.max_batch_bytes)
      return bad(text(s) + " are more than " + std::to_string(limits.max_batch_bytes) + " bytes");
  return {};
}

Strides merged(Strides s) noexcept {
  if (s.bytes == 0 || !has_blocks(s)) return {};
  const auto behind = [&s](const Strides::Level& level) {
    return level.count > 1 && level.local_step == s.bytes && level.remote_step == s.bytes;
  };
  for (auto level = s.levels.begin(); level != s.levels.end();)
    if (behind(*level)) {
      s.bytes *= level->count;
      *level = {};
      level = s.levels.begin();  // earlier levels may continue the larger block
    } else {
      ++level;
    }
  return s;
}

void some_blocks(const Strides& s, std::uint64_t first, std::uint64_t count,
                 std::uint64_t max_bytes, std::vector<Block>& blocks) {
  blocks.clear();
  blocks.reserve(count);
  const std::uint64_t parts = s.bytes / max_bytes + (s.bytes % max_bytes != 0);
  std::uint64_t part = first % parts, rest = first / parts;
  std::array<std::uint64_t, std::tuple_size_v<decltype(s.levels)>> at{};
  for (std::size_t i = 0; i < at.size(); ++i) {
    at[i] = rest % s.levels[i].count;
    rest /= s.levels[i].count;
  }
  const auto next = [&] {
    if (++part < parts) return;
    part = 0;
    for (std::size_t i = 0; i < at.size() && ++at[i] == s.levels[i].count; ++i) at[i] = 0;
  };
  for (; blocks.size() < count; next()) {
    const std::uint64_t done = part * max_bytes;
    Block b{s.local_base + done, s.remote_base + done, std::min(max_bytes, s.bytes - done)};
    for (std::size_t i = 0; i < at.size(); ++i) {
      b.local_offset += at[i] * s.levels[i].local_step;
      b.remote_offset += at[i] * s.levels[i].remote_step;
    }
    blocks.push_back(b);
  }
}

Status check_pages(const Pages& p, std::uint64_t here, std::uint64_t there,
                   const Capabilities& limits) {
  const std::size_t count = p.local_index.size();
  if (count != p.remote_index.size())
    return bad("page lists differ in length: " + std::to_string(count) + " local, " +
               std::to_string(p.remote_index.size()) + " remote");
  if (count > limits.max_batch_pages) return too_many(count, "pages", limits.max_batch_pages);
  const std::uint64_t ours = pages_behind(p.local_base, p.page_bytes, here);
  const std::uint64_t theirs = pages_behind(p.remote_base, p.page_bytes, there);
  if (p.indices_on_gpu && count != 0 && (ours == 0 || theirs == 0))
    return bad("no page of " + std::to_string(p.page_bytes) + " bytes fits behind local_base " +
               std::to_string(p.local_base) + " of " + std::to_string(here) +
               " bytes and remote_base " + std::to_string(p.remote_base) + " of " +
               std::to_string(there));
  if (!p.indices_on_gpu && (!all_below(p.local_index, ours) || !all_below(p.remote_index, theirs)))
    return leaves(p, here, there, ours, theirs);
  if (count != 0 && p.page_bytes > limits.max_batch_bytes / count)
    return too_large(limits.max_batch_bytes);
  return {};
}

std::uint32_t last_page(std::uint64_t base, std::uint64_t page_bytes, std::uint64_t size) noexcept {
  constexpr std::uint64_t kMax = ~std::uint32_t{0};
  return static_cast<std::uint32_t>(std::min(pages_behind(base, page_bytes, size) - 1, kMax));
}

std::vector<Block> blocks_of(const Pages& p) {
  std::vector<Block> blocks;
  if (p.page_bytes == 0) return blocks;
  blocks.reserve(p.local_index.size());
  for (std::size_t i = 0; i < p.local_index.size(); ++i)
    blocks.push_back({p.local_base + p.local_index[i] * p.page_bytes,
                      p.remote_base + p.remote_index[i] * p.page_bytes, p.page_bytes});
  return blocks;
}

std::vector<Block> blocks_of(const BatchShape& shape) {
  if (const auto* const pages = std::get_if<Pages>(&shape)) return blocks_of(*pages);
  const auto blocks = std::get<std::span<const Block>>(shape);
  return {blocks.begin(), blocks.end()};
}

Status check_block(const Block& b, std::uint64_t here, std::uint64_t there) {
  if (!fits(b.local_offset, b.bytes, here))
    return bad(text(b) + " leaves the local region of " + std::to_string(here) + " bytes");
  if (!fits(b.remote_offset, b.bytes, there))
    return bad(text(b) + " leaves the remote region of " + std::to_string(there) + " bytes");
  return {};
}

Result<std::vector<Block>> checked_blocks(std::span<const Block> list, std::uint64_t here,
                                          std::uint64_t there, const Capabilities& limits) {
  if (list.size() > limits.max_batch_blocks)
    return too_many(list.size(), "blocks", limits.max_batch_blocks);
  std::vector<Block> blocks;
  blocks.reserve(list.size());
  std::uint64_t left = limits.max_batch_bytes;
  for (const Block& b : list) {
    if (Status status = check_block(b, here, there); !status.ok()) return status;
    if (b.bytes > left) return too_large(limits.max_batch_bytes);
    left -= b.bytes;
    if (b.bytes == 0) continue;
    if (!blocks.empty() && continues(blocks.back(), b))
      blocks.back().bytes += b.bytes;
    else
      blocks.push_back(b);
  }
  return blocks;
}

CheckedShape already_checked(const BatchShape& shape) {
  if (const auto* pages = std::get_if<Pages>(&shape))
    return {.pages = pages, .borrowed = {}, .owned = {}, .size = summary_of(*pages)};
  const auto list = std::get<std::span<const Block>>(shape);
  return {.pages = nullptr, .borrowed = list, .owned = {}, .size = summary_of(list)};
}

Result<CheckedShape> check_shape(const BatchShape& shape, std::uint64_t here, std::uint64_t there,
                                 const Capabilities& limits) {
  CheckedShape out;
  out.pages = std::get_if<Pages>(&shape);
  if (out.pages != nullptr) {
    if (Status status = check_pages(*out.pages, here, there, limits); !status.ok()) return status;
    out.size = summary_of(*out.pages);
    return out;
  }
  auto blocks = checked_blocks(std::get<std::span<const Block>>(shape), here, there, limits);
  if (!blocks.ok()) return blocks.status();
  out.owned = *std::move(blocks);
  out.size = summary_of(out.owned);
  return out;
}

BatchSummary summary_of(std::span<const Block> blocks) noexcept {
  BatchSummary shape{.blocks = blocks.size(), .bytes = 0};
  for (const Block& b : blocks) shape.bytes += b.bytes;
  return shape;
}

BatchSummary summary_of(const Pages& p) noexcept {
  return {.blocks = p.page_bytes == 0 ? 0 : p.local_index.size(),
          .bytes = p.page_bytes * p.local_index.size(),
          .gpu_indices = p.indices_on_gpu};
}

BatchSummary summary_of(const Strides& s) noexcept {
  BatchSummary shape{.blocks = s.bytes == 0 ? 0u : 1u, .bytes = s.bytes};
  for (const Strides::Level& level : s.levels) {
    shape.blocks *= level.count;
    shape.bytes *= level.count;
  }
  return shape;
}

}  // namespace linkspan::transport
