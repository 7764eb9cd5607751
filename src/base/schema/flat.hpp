// base/schema/flat.hpp - FlatBuffers in and out of byte spans, the same for every table.
//
// Threads: pure functions.
#pragma once

#include <flatbuffers/flatbuffers.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/untrusted_input.hpp"

namespace linkspan::schema {

using ByteVector = flatbuffers::Vector<std::uint8_t>;

inline std::vector<std::byte> finished(const flatbuffers::FlatBufferBuilder& out) {
  const auto* data = reinterpret_cast<const std::byte*>(out.GetBufferPointer());
  return {data, data + out.GetSize()};
}

/// The table, or null when the bytes are not one. No table here nests deeply, hence the limits.
template <class Table>
const Table* verified(std::span<const std::byte> bytes, flatbuffers::uoffset_t max_tables = 64) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  if (bytes.size() < sizeof(flatbuffers::uoffset_t)) return nullptr;
  flatbuffers::Verifier verifier(data, bytes.size(), 4, max_tables);
  return verifier.VerifyBuffer<Table>(nullptr) ? flatbuffers::GetRoot<Table>(data) : nullptr;
}

inline flatbuffers::Offset<ByteVector> vector_of(flatbuffers::FlatBufferBuilder& out,
                                                 std::span<const std::byte> from) {
  return out.CreateVector(reinterpret_cast<const std::uint8_t*>(from.data()), from.size());
}

inline std::vector<std::byte> bytes_of(const ByteVector& from) {
  const auto* data = reinterpret_cast<const std::byte*>(from.data());
  return {data, data + from.size()};
}

/// Words of a peer for logs and errors: cut, and printable().
inline std::string text_of(const flatbuffers::String& from, std::size_t max) {
  return base::printable(from.string_view().substr(0, max));
}

/// False: absent, or of another length.
template <std::size_t N>
bool take(const ByteVector* from, std::array<std::byte, N>& to) {
  if (from == nullptr || from->size() != N) return false;
  std::memcpy(to.data(), from->data(), N);
  return true;
}

}  // namespace linkspan::schema
