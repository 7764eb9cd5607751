// transport/local/exports.hpp - by what peers map memory of a GPU: chosen and tried when a region
// is published, made when a peer imports it, opened there.
//
// Off the path of a byte.
// Threads: any thread.
#pragma once

#include <memory>

#include "cuda/topology.hpp"
#include "transport/local/key.hpp"

namespace linkspan::transport::local {

/// Puts it into the key: a legacy handle, chunks or a pool. An error: none of them can be had, and
/// its text says why. Milliseconds for thousands of chunks.
Status export_memory(const cuda::Device& device, const memory::Region::Facts& facts, LocalKey& key);

/// The fd that travels beside a key of chunks or of a pool, for one import. `unreachable`: what was
/// registered was unmapped or freed, and something else may lie there (fact:
/// Chunks.BufferIdsTellAChunkFromALaterOne).
Result<base::Fd> export_fd(const cuda::Topology& topology, const memory::Region::Facts& facts,
                           const LocalKey& key);

/// Maps the chunks of a key in a row; no GPU is let in yet. `corrupt`: they are not as it claims.
Result<std::unique_ptr<cuda::SharedRange>> open_chunks(const cuda::Device& device,
                                                       const base::Fd& parcel, const LocalKey& key);

}  // namespace linkspan::transport::local
