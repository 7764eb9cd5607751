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
#include <vector>

namespace linkspan::schema {

using ByteVector = flatbuffers::Vector<std::uint8_t>;

inline std::vector<std::byte> finished(const flatbuffers::FlatBufferBuilder& out) {
  const auto* data = reinterpret_cast<const std::byte*>(out.GetBufferPointer());
  return {data, data + out.GetSize()};
}

/// The table, or null when the bytes are not one. No table here nests deeply, hence the limits.
template <class Table>
const Table* verified(std::span<const std::byte> bytes) {
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  if (bytes.size() < sizeof(flatbuffers::uoffset_t)) return nullptr;
  flatbuffers::Verifier verifier(data, bytes.size(), 4, 64);
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

/// False: absent, or of another length.
template <std::size_t N>
bool take(const ByteVector* from, std::array<std::byte, N>& to) {
  if (from == nullptr || from->size() != N) return false;
  std::memcpy(to.data(), from->data(), N);
  return true;
}

}  // namespace linkspan::schema
