// bench/bare/user_graph.hpp - a CUDA graph as a user makes it: captured in a stream of its own,
// then launched there any number of times.
//
// Threads: externally synchronised.
// Invariants: the Device outlives it.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "bench/bare/end_word.hpp"
#include "bench/bare/graph_entries.hpp"
#include "cuda/topology.hpp"

namespace linkspan::bare {

class UserGraph {
 public:
  /// `unsupported`: the driver captures no graphs.
  static Result<std::unique_ptr<UserGraph>> create(const cuda::Device& device);
  UserGraph(const UserGraph&) = delete;
  UserGraph& operator=(const UserGraph&) = delete;
  ~UserGraph();

  cuda::Stream& stream() noexcept { return stream_; }
  /// Makes a graph of what `act` puts into the stream, once.
  Status capture(const std::function<Status(const cuda::DeviceScope&)>& act);
  Status launch(unsigned times);
  /// Launches it and spins until all launches have run; the time from before the first.
  Result<Duration> run(unsigned times, Duration limit);

 private:
  UserGraph(const cuda::Device& device, const cuda::GraphEntries& entries, cuda::Stream stream,
            EndWord word)
      : device_(device), entries_(entries), stream_(std::move(stream)), word_(std::move(word)) {}

  const cuda::Device& device_;
  const cuda::GraphEntries entries_;
  cuda::Stream stream_;
  EndWord word_;
  std::uint64_t runs_ = 0;  // what the word holds after the last one
  cuda::CUgraphExec executable_ = nullptr;
};

}  // namespace linkspan::bare
