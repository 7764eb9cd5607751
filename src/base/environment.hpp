// base/environment.hpp - the one look at the environment.
//
// Threads: any thread, as far as getenv(3) goes: nobody calls setenv meanwhile.
#pragma once

namespace linkspan::base {

/// Null if it is not set; with glibc also if the process is setuid (secure_getenv).
const char* environment(const char* name) noexcept;

}  // namespace linkspan::base
