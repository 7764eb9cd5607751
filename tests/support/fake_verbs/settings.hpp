// tests/support/fake_verbs/settings.hpp - how hostile the simulated network cards are, and what
// they count.
//
// Each setting is a variable of the environment, read once: FAKE_VERBS_ and its name in capitals.
// A test changes it by fakeVerbsSet() (controls.hpp).
// Threads: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <random>
#include <string>

namespace linkspan::transport::verbs::fake {

// X(name, default value)
#define FAKE_VERBS_SETTINGS(X)                                                         \
  X(devices, 2)           /* of this process */                                        \
  X(seed, 0)              /* of random choices, with the name of the build */          \
  X(late_us, 0)           /* completions come up to so much later than the bytes */    \
  X(chunk, 65536)         /* bytes land in pieces of this size */                      \
  X(destroy_us, 0)        /* destroy_qp and dereg_mr take so long */                   \
  X(unordered, 0)         /* 1: writes of one queue pair land in any order */          \
  X(rate, 0)              /* bytes a second of each device; 0: no limit */             \
  X(rnr_percent, 0)       /* of messages find no receive at first */                   \
  X(fail_registration, 0) /* the nth from now fails; 0: none */                        \
  X(fail_post, 0)         /* the nth work request from now is refused */               \
  X(fail_send, 0)         /* the nth from now that is worked on exceeds its retries */ \
  X(lose_device, 0)       /* a device goes away at the nth work request from now */    \
  X(lose_which, 0)        /* its index */                                              \
  X(lost_silent, 0)       /* 1: queues of a device that went away tell of no flush */  \
  X(infiniband, 0)        /* 1: the link layer is InfiniBand, else Ethernet */         \
  X(dmabuf, 1)            /* 0: reg_dmabuf_mr answers EOPNOTSUPP */                    \
  X(peermem, 0)           /* 1: reg_mr takes addresses of the simulated GPUs */        \
  X(gpu_late, 0)          /* 1: GPUs show what was written only after a flush */       \
  X(memlock, 0)           /* bytes that may be registered; 0: any */                   \
  X(mtu, 1024)                                                                         \
  X(max_qp_wr, 8192)                                                                   \
  X(max_sge, 16)                                                                       \
  X(max_cqe, 65536)                                                                    \
  X(max_mr_size, std::int64_t{1} << 40)                                                \
  X(max_rd_atomic, 16)                                                                 \
  X(max_inline, 220)

struct Settings {
#define FAKE_VERBS_MEMBER(name, value) std::atomic<std::int64_t> name{value};
  FAKE_VERBS_SETTINGS(FAKE_VERBS_MEMBER)
#undef FAKE_VERBS_MEMBER
};
/// Returns the settings; the first call reads the environment.
Settings& settings();
/// Reads the environment again.
void read_settings();
/// Returns false if there is no setting of that name.
bool set(const char* name, std::int64_t value);
/// Waits as long as a device that is slow to end something (destroy_us).
void wait_to_destroy();
/// Counts down to the call that `setting` says; true for that one.
bool is_nth(std::atomic<std::int64_t>& setting);

// Ever, or since fakeVerbsReset().
#define FAKE_VERBS_COUNTERS(X)                                          \
  X(doorbells)     /* calls of post_send */                             \
  X(chains)        /* of them, those with more than one work request */ \
  X(work_requests) /* accepted by post_send */                          \
  X(post_recvs)                                                         \
  X(receives)                                                           \
  X(polls)                                                              \
  X(completions) /* taken by polls */                                   \
  X(arms)        /* calls of req_notify_cq */                           \
  X(events)      /* taken from completion channels */                   \
  X(registrations)                                                      \
  X(deregistrations)                                                    \
  X(bytes)   /* landed by work requests of this process */              \
  X(rnrs)    /* answers that there was no receive */                    \
  X(orphans) /* pieces whose memory was no longer mapped */

struct Counters {
#define FAKE_VERBS_MEMBER(name) std::atomic<std::uint64_t> name{0};
  FAKE_VERBS_COUNTERS(FAKE_VERBS_MEMBER)
#undef FAKE_VERBS_MEMBER
};
Counters& counters();

/// Returns FAKE_VERBS_FOLDER, or a folder of the user.
std::string verbs_folder();

/// Returns a generator for one thread.
std::mt19937_64 make_random(std::uint64_t which);

}  // namespace linkspan::transport::verbs::fake
