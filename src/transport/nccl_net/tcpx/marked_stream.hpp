// transport/nccl_net/tcpx/marked_stream.hpp - a CUDA stream with marks: numbers that show how far
// it is.
//
// On the path of a byte: Unpacker submits steps to the stream and a mark after some of them. The
// stream writes the mark to pinned memory, where poll() reads it without a driver call.
// Threads: externally synchronised.
// Invariants: the stream holds at most kEntries, so nothing blocks in the driver.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include "base/clock.hpp"
#include "copy/completion_flag.hpp"
#include "cuda/stream.hpp"
#include "cuda/topology.hpp"

namespace linkspan::transport::nccl_net::tcpx {

class MarkedStream {
 public:
  using Mark = std::uint64_t;  ///< Counts the marks; 0 is always reached.
  /// A CUDA stream takes about 1021 and then blocks its caller (docs/cuda_notes.md, "queues").
  static constexpr std::size_t kEntries = 512;

  MarkedStream(const cuda::Device& device, const base::Clock& clock, copy::CompletionFlag flag,
               cuda::Stream stream)
      : device_(device), clock_(clock), flag_(std::move(flag)), stream_(std::move(stream)) {}

  const cuda::Stream& get() const noexcept { return stream_; }
  /// Returns whether the stream has space for `entries` entries and a mark.
  bool room(std::size_t entries) const noexcept { return in_stream_ + entries + 1 <= kEntries; }
  /// Submits a mark after the `entries` that were submitted since the last one, and sets `mark` to
  /// it. After an error the stream alone shows the end.
  Status mark(const cuda::DeviceScope& scope, std::size_t entries, Mark& mark);
  /// Reads how far the stream is; queries it if that is overdue. An error is the context's.
  Status poll();
  bool reached(Mark mark) const noexcept { return mark <= reached_; }
  /// Regards all marks as reached: the context has failed.
  void end() noexcept { reach(marks_); }

 private:
  void reach(Mark mark) noexcept;

  const cuda::Device& device_;
  const base::Clock& clock_;
  Mark marks_ = 0, reached_ = 0;     // submitted; of these completed
  std::deque<std::size_t> between_;  // stream entries for each mark not yet reached
  std::size_t in_stream_ = 0;        // their sum
  base::Time next_query_{};
  copy::CompletionFlag flag_;  // the completed mark
  cuda::Stream stream_;
};

}  // namespace linkspan::transport::nccl_net::tcpx
