// tests/fuzz/frames.hpp - the steps of an input of frames_fuzz; make_corpus writes them too.
#pragma once

#include <cstdint>

namespace linkspan::fuzz {

/// Below `hello`: a frame of that op, {id u8, fds u8 % 4, kind u8 each, bytes u16, the payload}.
/// Numbers are part of the corpus.
enum class Step : std::uint8_t {
  hello = 16,      ///< A correct hello, and ready.
  raw,             ///< {bytes u8, the bytes}: into the stream.
  receive,         ///< The user receives: {tag u8, room u16}.
  send,            ///< The user sends: {tag u8, bytes u16, of an exclusive region u8}.
  cancel,          ///< The user cancels: {which u8}.
  stranger,        ///< A frame of another incarnation: {op u8}.
  import_offered,  ///< The region of the last offer that came.
  answer,          ///< The last import that came: {fds u8 % 4, kind u8 each, bytes u16, them}.
  good_answer,     ///< The same, of a region that is there: {which u8}.
  good_offer,      ///< A correct offer of a message: {tag u8, bytes u16, id u8}.
  steps,
};
/// Frame ids from here on are those of the user's transfers, in turn.
inline constexpr std::uint8_t kTransferIds = 0xe0;
inline constexpr std::uint64_t kPeerIncarnation = 77;

}  // namespace linkspan::fuzz
