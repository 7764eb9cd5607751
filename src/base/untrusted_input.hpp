// base/untrusted_input.hpp - what a peer says, made safe to show and to believe: its texts and its
// codes.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "linkspan/status.hpp"

namespace linkspan::base {

/// UTF-8 of which a terminal or a log shows each code point and obeys none: '?' takes the place of
/// each byte that is no UTF-8 and of each control character (C0, C1), separator of lines, override
/// of the direction of text and code point without a width. `lines`: a newline stays.
std::string printable(std::string_view text, bool lines = false);

/// How something ended, as a number of a peer's. None: no code of this release, or `pending`, which
/// is no end.
std::optional<Code> final_code(std::uint64_t number) noexcept;
/// How a transfer by a wire ended. None: the same, or `no_resource`, which says that it has not
/// begun and would be tried again.
std::optional<Code> end_of_transfer(std::uint64_t number) noexcept;

}  // namespace linkspan::base
