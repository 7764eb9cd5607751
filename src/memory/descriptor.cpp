#include "memory/descriptor.hpp"

#include "base/schema/descriptor_generated.h"
#include "base/schema/flat.hpp"

namespace linkspan::memory {
namespace {

constexpr flatbuffers::uoffset_t kMaxTables = 2 + kMaxKeys;
constexpr std::size_t kMaxTransportBytes = 64;
// Every list at its limit, and the tables' own fields.
constexpr std::size_t kMaxDescriptorBytes =
    kMaxNameBytes + kMaxKeys * (kMaxKeyBytes + kMaxTransportBytes + 64) + 1024;

Status corrupt(const char* what, Where at = {}) {
  return {Code::corrupt, Scope::request, std::string("descriptor: ") + what, at};
}

}  // namespace

std::vector<std::byte> encode(const Descriptor& d) {
  flatbuffers::FlatBufferBuilder builder;
  std::vector<flatbuffers::Offset<schema::Key>> keys;
  for (const Descriptor::TransportKey& key : d.keys) {
    const auto transport = builder.CreateString(key.transport);
    const auto bytes = schema::vector_of(builder, key.bytes);
    keys.push_back(schema::CreateKey(builder, transport, bytes, key.fd_count, key.bearer));
  }
  const auto key_list = builder.CreateVector(keys);
  const auto name = builder.CreateString(d.name);
  const bool has_gpu = d.gpu != GpuUuid{};
  const auto gpu = has_gpu ? schema::vector_of(builder, d.gpu) : 0;
  const schema::RegionId id(d.id.incarnation, d.id.buffer, d.id.serial);
  builder.Finish(schema::CreateDescriptor(builder, name, &id, static_cast<std::uint8_t>(d.kind),
                                          d.peers.read, d.peers.write, d.peers.exclusive, gpu,
                                          d.bytes, key_list));
  return schema::finished(builder);
}

Result<Descriptor> decode(std::span<const std::byte> bytes) {
  if (bytes.size() > kMaxDescriptorBytes) return corrupt("too long");
  // The verifier wants the buffer aligned, as new gives it.
  const std::vector<std::byte> copy(bytes.begin(), bytes.end());
  const auto* wire = schema::verified<schema::Descriptor>(copy, kMaxTables);
  if (wire == nullptr) return corrupt("malformed");
  const schema::Descriptor& in = *wire;

  Descriptor out;
  if (in.name() != nullptr) out.name = in.name()->str();
  if (out.name.size() > kMaxNameBytes) return corrupt("name too long");
  out.id = {in.id()->incarnation(), in.id()->buffer(), in.id()->serial()};
  if (in.kind() >= kMemoryKinds) return corrupt("unknown kind of memory");
  out.kind = static_cast<MemoryKind>(in.kind());
  out.peers = {in.peers_read(), in.peers_write(), in.exclusive()};
  if (const auto* gpu = in.gpu(); gpu != nullptr && gpu->size() != 0 && !schema::take(gpu, out.gpu))
    return corrupt("a GPU's UUID has 16 bytes");
  out.bytes = in.bytes();
  if (in.keys() == nullptr) return out;
  if (in.keys()->size() > kMaxKeys) return corrupt("too many keys");
  for (const schema::Key* key : *in.keys()) {
    std::vector<std::byte> key_bytes;
    if (key->bytes() != nullptr) key_bytes = schema::bytes_of(*key->bytes());
    if (key->transport()->size() > kMaxTransportBytes || key_bytes.size() > kMaxKeyBytes)
      return corrupt("key too long");
    out.keys.push_back(
        {key->transport()->str(), std::move(key_bytes), key->fd_count(), key->bearer()});
  }
  return out;
}

}  // namespace linkspan::memory
