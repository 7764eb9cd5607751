// tests/support/network.hpp - two hosts on this machine: network namespaces joined by a cable that
// loses packets, slows them down, or is cut.
//
// A socket, a thread's children and the threads that it starts belong to the host where they were
// made: at() makes them there. No other process uses this network, so addresses and ports are free.
// Threads: any thread.
// Invariants: a host ends with its last socket and process.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.hpp"
#include "base/mutex.hpp"
#include "net/tcp_socket.hpp"
#include "tests/support/delay_line.hpp"

namespace linkspan::test {

/// Describes what a cable does to packets, in both directions.
enum class Cable : std::uint8_t {
  plain,
  lossy,                     ///< One packet in a hundred does not arrive.
  slow,                      ///< 20 MB/s, and by way_to() 20 ms each way.
  small_packets,             ///< Packets have 1400 bytes at most.
  lossy_with_small_windows,  ///< Sockets hold a few KiB.
};
inline constexpr Cable kBadCables[] = {Cable::lossy, Cable::slow, Cable::small_packets,
                                       Cable::lossy_with_small_windows};
const char* name_of(Cable cable);
inline void PrintTo(Cable cable, std::ostream* out) { *out << name_of(cable); }

enum class Host : std::uint8_t { near, far };

class Network {
 public:
  /// Creates both hosts. unsupported: this process may not make network namespaces.
  static Result<std::unique_ptr<Network>> create(Cable cable);
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;
  ~Network() = default;

  /// Runs `work` on a thread of that host. Returns its result and rethrows its exceptions.
  template <class Work>
  auto at(Host host, Work work) const {
    return std::async(std::launch::async,
                      [&] {
                        enter(host);
                        return work();
                      })
        .get();
  }
  /// Returns an address to listen at, such as "tcp:10.77.0.2:0".
  static std::string listen_at(Host host);
  /// Returns the address by which the near host reaches a listener on the far one at
  /// "tcp:10.77.0.2:4711".
  std::string way_to(const std::string& far) LINKSPAN_EXCLUDES(mutex_);
  /// Adds a cable without effects, from "nearN", 10.78.N.1, to "farN", 10.78.N.2.
  void add_cable(int n) const;
  /// Returns a connection: the near host's end and the far one's.
  std::pair<base::Fd, base::Fd> connection() LINKSPAN_EXCLUDES(mutex_);

  void cut();   ///< Nothing arrives any more, on either side.
  void mend();  ///< After cut().
  /// Packets that the cable has not let through, but for cuts.
  std::uint64_t dropped() const;
  /// Runs a shell command on that host and returns its output.
  std::string run(Host host, const std::string& command) const;

 private:
  explicit Network(Cable cable) : cable_(cable) {}
  Status set_up();
  std::string far_name() const;  // for ip(8)
  void enter(Host host) const;

  const Cable cable_;
  base::Fd hosts_[2];
  base::Mutex mutex_;
  std::vector<std::unique_ptr<DelayLine>> delays_ LINKSPAN_GUARDED_BY(mutex_);
  base::Fd listening_ LINKSPAN_GUARDED_BY(mutex_);
  net::TcpAddress way_ LINKSPAN_GUARDED_BY(mutex_);  // to that
};

/// Returns the network that LINKSPAN_TEST_LINK names, one for the whole process; null if it is not
/// set. invalid_argument: there is none of that name.
Result<Network*> network_of_tests();

}  // namespace linkspan::test
