// copy/cpu_job.hpp - an order of a CpuCopier, cut into the chunks that its executors copy.
//
// On the path of a byte: the work list of a CPU copy.
// Threads: as each group of members says.
// Invariants: a job is reused only after CpuCopier::poll() has returned its result.
#pragma once

#include <atomic>
#include <vector>

#include "copy/cma.hpp"
#include "copy/cpu_copier.hpp"

namespace linkspan::copy {

struct CpuCopier::Job {
  // Under the transport's mutex.
  Ticket ticket = 0;  // zero: unused
  base::Time due{}, last_poll{};
  base::Time waiting_since{};  // since when it waits for an executor

  // Written by start() before the job is queued; only read from then on.
  Method method = Method::cpu_threads;
  OtherProcess other;
  bool remote_is_source = false, to_gpu = false, guarded = false;
  const cuda::Device* device = nullptr;
  unsigned ctas = 0;
  std::uint64_t peer = 0;           // cross_process only
  std::vector<Piece> pieces;        // cut to the size of a chunk
  std::vector<std::size_t> chunks;  // where each one ends in `pieces`

  // Under CpuCopier::mutex_, which an annotation cannot name from here.
  std::size_t next = 0, left = 0;  // next chunk to begin; chunks that have not ended
  bool aborted = false;            // its chunks that run are counted as stuck
  Status status;                   // the first failure

  std::atomic<bool> done{false};  // set last; poll() owns the job then

  std::span<const Piece> chunk(std::size_t i) const {
    const std::size_t begin = i == 0 ? 0 : chunks[i - 1];
    return std::span(pieces).subspan(begin, chunks[i] - begin);
  }
  void cut(std::span<const Piece> whole, std::uint64_t chunk_bytes);
  Status copy(std::size_t i) const;
};

}  // namespace linkspan::copy
