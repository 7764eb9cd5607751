// tests/support/sanitizers.hpp - whether this build has one, for tests that it cannot follow.
//
// Threads: macros.
#pragma once

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LINKSPAN_ADDRESS_SANITIZER
#define LINKSPAN_SANITIZER
#endif
#if __has_feature(thread_sanitizer)
#define LINKSPAN_THREAD_SANITIZER
#define LINKSPAN_SANITIZER
#endif
#endif
