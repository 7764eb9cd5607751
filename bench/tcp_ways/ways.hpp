// bench/tcp_ways/ways.hpp - the calls by which a thread can move the frames of a connection.
//
// Every way takes blocking sockets, of which it is told to refuse to block call by call, and ends
// with an error when nothing has moved for kLimit.
// Threads: any thread; one for each end of a connection.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "bench/tcp_ways/frames.hpp"
#include "linkspan/types.hpp"

namespace linkspan::bench {

inline constexpr Duration kLimit = std::chrono::seconds(20);

/// Sends without a copy, and how many of them the kernel copied all the same, as it says itself.
struct ZeroCopy {
  std::uint64_t sends = 0, copied = 0;
};

/// Returns when the clock runs: what a long-lived thread does once comes before it.
using Begin = std::function<void()>;

struct Way {
  const char* name;           ///< In rows' ids.
  Status (*offered)();        ///< unsupported: this kernel has it not, and why.
  Status (*prepare)(int to);  ///< The sending socket, once.
  /// Until the kernel has done with the memory. no_resource: it grants too little for this way.
  Result<ZeroCopy> (*send)(int to, std::vector<Frame>& frames, const Begin& begin);
  Status (*receive)(int from, Incoming& incoming, const Begin& begin);
};

/// The first, by blocking calls, is what the others are compared with.
std::span<const Way> ways();

// What uring.cpp adds to ways().
Status uring_offered();
Status uring_zerocopy_offered();
Result<ZeroCopy> uring_send(int to, std::vector<Frame>& frames, const Begin& begin);
Result<ZeroCopy> uring_send_zerocopy(int to, std::vector<Frame>& frames, const Begin& begin);
Status uring_receive(int from, Incoming& incoming, const Begin& begin);

}  // namespace linkspan::bench
