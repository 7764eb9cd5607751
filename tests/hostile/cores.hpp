// tests/hostile/cores.hpp - which of this machine's cores a process of these tests runs on.
//
// Threads: a process is pinned before it starts threads: those inherit the core.
#pragma once

#include <sched.h>

#include <cstdint>

namespace linkspan::test {

/// The honest pair, and what measures beside it; the victim and its attacker.
enum class Core : std::uint8_t { honest, attacked };

/// Keeps this process on that core. On a machine with one core all share it.
inline void pin_to(Core core) {
  cpu_set_t all, one;
  if (::sched_getaffinity(0, sizeof all, &all) != 0) return;
  int skip = core == Core::honest || CPU_COUNT(&all) < 2 ? 0 : 1;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (!CPU_ISSET(i, &all) || skip-- > 0) continue;
    CPU_ZERO(&one);
    CPU_SET(i, &one);
    (void)::sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

}  // namespace linkspan::test
