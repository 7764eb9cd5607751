// base/untrusted_input.hpp - makes texts and codes from a peer safe to print and to use.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "linkspan/status.hpp"

namespace linkspan::base {

/// Returns `text` as UTF-8 that a terminal or log only displays. Replaces by '?' each byte that is
/// not UTF-8, and each control character (C0, C1), line separator, bidirectional override and code
/// point without width. `lines`: keeps newlines.
std::string printable(std::string_view text, bool lines = false);

/// Converts a peer's number to the final Code of an operation. nullopt: no code of this release, or
/// `pending`, which is not final.
std::optional<Code> final_code(std::uint64_t number) noexcept;
/// Converts a peer's number to the final Code of a transfer. nullopt: as final_code(), or
/// `no_resource`, which means that the transfer did not start and would be retried.
std::optional<Code> end_of_transfer(std::uint64_t number) noexcept;

}  // namespace linkspan::base
