// base/environment.hpp - the only reader of the environment.
//
// Threads: any thread, as far as getenv(3) goes: no thread calls setenv meanwhile.
#pragma once

namespace linkspan::base {

/// Returns null if the variable is not set; with glibc also if the process is setuid
/// (secure_getenv).
const char* environment(const char* name) noexcept;

}  // namespace linkspan::base
