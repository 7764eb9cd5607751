// LocalEndpoint: batches of further pairs of regions that one launch of the kernel copies too.
#include <algorithm>

#include "transport/local/endpoint.hpp"

namespace linkspan::transport::local {
namespace {

/// Number of pairs with the same pages from which one page list is chosen, although a list of all
/// blocks would take more pairs: that costs the CPU time for each block.
constexpr std::size_t kEnoughAlike = 16;

const LocalMapping& mapping_of(const BatchPair& pair) {
  return static_cast<const LocalMapping&>(*pair.remote);
}

constexpr std::size_t kAhead = 8;  // pairs whose memory is fetched before they are looked at

void prefetch(const LocalMapping& mapping) {
  const auto* const at = reinterpret_cast<const std::byte*>(&mapping);
  for (std::size_t line = 0; line < sizeof mapping; line += 64) __builtin_prefetch(at + line);
}

}  // namespace

/// Takes the first of the further pairs that the kernel copies with the batch's own, and counts
/// them in `size`.
void LocalEndpoint::join(LocalInflightBatch& inflight, const Batch& batch, const LocalPath& path,
                         BatchSummary& size) {
  const auto* const pages = std::get_if<Pages>(&batch.shape);
  if (batch.more == nullptr || pages == nullptr || !batch.checked || pages->indices_on_gpu ||
      size.bytes == 0 || path.kind.mapped == Mapped::nothing || path.copiers == nullptr)
    return;
  const Capabilities& limits = transport_.capabilities();
  const std::uint64_t fit =
      std::min({std::uint64_t{copy::GpuCopier::kPairs}, limits.max_batch_pages / size.blocks,
                limits.max_batch_bytes / size.bytes});
  const std::size_t alike = fit < 2 ? 0 : batch.more->alike(fit - 1);
  if (alike + 1 < std::min<std::uint64_t>(kEnoughAlike, fit) && batch.more->pages(alike) != nullptr)
    join_lists(inflight, batch, path, size);
  else if (alike != 0)
    join_alike(inflight, batch, path, size, alike);
}

/// Takes pairs that get the same pages: their bases go with the one list.
void LocalEndpoint::join_alike(LocalInflightBatch& inflight, const Batch& batch,
                               const LocalPath& path, BatchSummary& size, std::size_t count) {
  const auto& pages = std::get<Pages>(batch.shape);
  const BatchSummary one = size;
  BatchSummary all = one;
  all.blocks *= count + 1;
  all.bytes *= count + 1;
  if (!is_for_kernel(inflight, path, all)) return;
  std::vector<const ImportedMemory*>& joined = std::get<OwnBatch>(inflight.role).joined;
  joined.reserve(count);
  inflight.local_copy.more.reserve(count);
  for (const KnownPair& pair : known_pairs(batch, path, count)) {
    if (!pair.liveness.alive()) break;
    inflight.place_further(pair.local_address, pair.remote_address, pages);
    joined.push_back(pair.memory);
  }
  size.blocks += one.blocks * joined.size();
  size.bytes += one.bytes * joined.size();
}

/// Returns the first of the further pairs, at most `count`, that take the same path.
std::span<const KnownPair> LocalEndpoint::known_pairs(const Batch& batch, const LocalPath& path,
                                                      std::size_t count) {
  const WaitingPairs::Place place = batch.more->place();
  std::vector<KnownPair>& pairs = known_pairs_.pairs;
  if (known_pairs_.epoch == path.epoch && known_pairs_.place == place && pairs.size() >= count)
    return std::span(pairs).first(count);
  known_pairs_.epoch = 0;  // until all are there
  pairs.clear();
  pairs.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const BatchPair pair = batch.more->at(i);
    if (i + kAhead < count) prefetch(mapping_of(batch.more->at(i + kAhead)));
    if (!can_join(batch.op, pair, path)) break;
    const LocalPath& its = mapping_of(pair).last_path();
    if (its.epoch != path.epoch) break;  // it has changed meanwhile
    pairs.push_back({.local_address = its.local_address,
                     .remote_address = its.remote_address,
                     .liveness = its.liveness,
                     .memory = mapping_of(pair).memory().get()});
  }
  known_pairs_.place = place;
  known_pairs_.epoch = path.epoch;
  return pairs;
}

/// Takes pairs that get any pages: their lists go one behind the other if they are equally long,
/// else all blocks become one list.
void LocalEndpoint::join_lists(LocalInflightBatch& inflight, const Batch& batch,
                               const LocalPath& path, BatchSummary& size) {
  const Capabilities& limits = transport_.capabilities();
  const auto& first = std::get<Pages>(batch.shape);
  BatchSummary all = size;
  std::size_t count = 0, equal = 0;  // further pairs, and those as long as the first
  while (const Pages* const pages = batch.more->pages(count)) {
    const BatchSummary further = summary_of(*pages);
    if (all.blocks + further.blocks > limits.max_batch_blocks ||
        further.bytes > limits.max_batch_bytes - all.bytes)
      break;
    all.blocks += further.blocks;
    all.bytes += further.bytes;
    equal += pages->page_bytes == first.page_bytes &&
             pages->local_index.size() == first.local_index.size();
    ++count;
  }
  if (count == 0 || !is_for_kernel(inflight, path, all)) return;
  const bool by_lists = equal == count && count < copy::GpuCopier::kPairs;
  std::vector<const ImportedMemory*>& joined = std::get<OwnBatch>(inflight.role).joined;
  joined.reserve(count);
  if (by_lists)
    inflight.local_copy.more.reserve(count);
  else
    inflight.local_copy.pieces.reserve(all.blocks);
  for (const KnownPair& pair : known_pairs(batch, path, count)) {
    if (!pair.liveness.alive()) break;
    const Pages& pages = *batch.more->pages(joined.size());
    if (by_lists)
      inflight.place_further(pair.local_address, pair.remote_address, pages, true);
    else
      inflight.place_blocks(pair.local_address, pair.remote_address, pages);
    const BatchSummary further = summary_of(pages);
    size.blocks += further.blocks;
    size.bytes += further.bytes;
    joined.push_back(pair.memory);
  }
}

bool LocalEndpoint::is_for_kernel(const LocalInflightBatch& inflight, const LocalPath& path,
                                  const BatchSummary& all) const {
  const Route chosen =
      route(facts(inflight.op, *inflight.target, *inflight.remote, path, all, false));
  return chosen.where == Route::Where::here && chosen.method == copy::Method::sm_kernel;
}

/// Returns whether the pair takes the same path. What is wrong with it is told when it is posted.
bool LocalEndpoint::can_join(Op op, const BatchPair& pair, const LocalPath& path) const {
  return check(op, pair).ok() && mapping_of(pair).last_path().kind == path.kind;
}

bool LocalEndpoint::is_joined(std::uint64_t serial) const {
  return std::ranges::any_of(inflight_, [&](const LocalInflightBatch& inflight) {
    const auto* const own = std::get_if<OwnBatch>(&inflight.role);
    return own != nullptr && std::ranges::any_of(own->joined, [&](const ImportedMemory* memory) {
             return memory->key().id.serial == serial;
           });
  });
}

}  // namespace linkspan::transport::local
