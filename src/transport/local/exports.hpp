// transport/local/exports.hpp - how GPU memory is exported to peers: chosen and tried when a region
// is published, made when a peer imports it, opened there.
//
// Off the path of a byte.
// Threads: any thread.
#pragma once

#include <memory>

#include "cuda/topology.hpp"
#include "transport/local/key.hpp"

namespace linkspan::transport::local {

/// Sets the key's IPC handle, chunks or pool. An error means that CUDA offers none of them; its
/// text says why. Takes milliseconds for thousands of chunks.
Status export_memory(const cuda::Device& device, const memory::Region::Facts& facts, LocalKey& key);

/// Returns the fd that travels with a key of chunks or of a pool, for one import. `unreachable`:
/// the registered memory was unmapped or freed, and other memory may lie there now (fact:
/// Chunks.BufferIdsTellAChunkFromALaterOne).
Result<base::Fd> export_fd(const cuda::Topology& topology, const memory::Region::Facts& facts,
                           const LocalKey& key);

/// Maps the chunks of a key one after the other; no GPU has access yet. `corrupt`: they are not
/// what the key claims.
Result<std::unique_ptr<cuda::SharedRange>> open_chunks(const cuda::Device& device,
                                                       const base::Fd& parcel, const LocalKey& key);

}  // namespace linkspan::transport::local
