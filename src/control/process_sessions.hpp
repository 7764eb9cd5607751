// control/process_sessions.hpp - counts the sessions of each process of this host, and refuses a
// process that has too many. Off the path of a byte.
//
// A disconnected session is kept until its process ends, because the process may still access our
// memory. It counts as left.
// Threads: externally synchronised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "linkspan/status.hpp"

namespace linkspan::control {

class ProcessSessions {
 public:
  /// Bounds of one process: its sessions, and those that it has left.
  ProcessSessions(std::size_t most, std::size_t most_left) : most_(most), most_left_(most_left) {}

  /// Counts a session until remove(), also a refused one. no_resource: the process has too many.
  Status add(std::uint64_t id, std::int64_t pid);
  /// Counts a session as left. No effect for one that is not counted.
  void leave(std::uint64_t id) noexcept;
  void remove(std::uint64_t id) noexcept;

 private:
  struct ProcessCount {
    std::size_t all = 0, left = 0;
  };
  struct CountedSession {
    std::map<std::int64_t, ProcessCount>::iterator process;
    bool left = false;
  };

  const std::size_t most_, most_left_;
  std::map<std::int64_t, ProcessCount> processes_;  // by pid
  std::map<std::uint64_t, CountedSession> sessions_;
};

}  // namespace linkspan::control
