#include "memory/descriptor.hpp"

#include <algorithm>
#include <cstring>

#include "base/schema/descriptor_generated.h"

namespace linkspan::memory {
namespace {

constexpr flatbuffers::uoffset_t kMaxDepth = 4, kMaxTables = 2 + kMaxKeys;
constexpr std::size_t kMaxTransportBytes = 64;
// Every list at its limit, and the tables' own fields.
constexpr std::size_t kMaxDescriptorBytes =
    kMaxNameBytes + kMaxKeys * (kMaxKeyBytes + kMaxTransportBytes + 64) + 1024;

const std::uint8_t* raw(const std::byte* bytes) noexcept {
  return reinterpret_cast<const std::uint8_t*>(bytes);
}

std::span<const std::byte> view(const flatbuffers::Vector<std::uint8_t>* list) noexcept {
  if (list == nullptr) return {};
  return {reinterpret_cast<const std::byte*>(list->data()), list->size()};
}

Status corrupt(const char* what, Where at = {}) {
  return {Code::corrupt, Scope::request, std::string("descriptor: ") + what, at};
}

}  // namespace

std::vector<std::byte> encode(const Descriptor& d) {
  flatbuffers::FlatBufferBuilder builder;
  std::vector<flatbuffers::Offset<schema::Key>> keys;
  for (const Descriptor::Key& key : d.keys) {
    const auto transport = builder.CreateString(key.transport);
    const auto bytes = builder.CreateVector(raw(key.bytes.data()), key.bytes.size());
    keys.push_back(schema::CreateKey(builder, transport, bytes, key.fd_count, key.bearer));
  }
  const auto key_list = builder.CreateVector(keys);
  const auto name = builder.CreateString(d.name);
  const bool has_gpu = d.gpu != GpuUuid{};
  const auto gpu = has_gpu ? builder.CreateVector(raw(d.gpu.data()), d.gpu.size()) : 0;
  const schema::RegionId id(d.id.incarnation, d.id.buffer, d.id.serial);
  builder.Finish(schema::CreateDescriptor(builder, name, &id, static_cast<std::uint8_t>(d.kind),
                                          d.peers.read, d.peers.write, d.peers.exclusive, gpu,
                                          d.bytes, key_list));
  const auto* begin = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  return {begin, begin + builder.GetSize()};
}

Result<Descriptor> decode(std::span<const std::byte> bytes) {
  if (bytes.size() > kMaxDescriptorBytes) return corrupt("too long");
  // The verifier wants the buffer aligned, as new gives it.
  const std::vector<std::byte> copy(bytes.begin(), bytes.end());
  flatbuffers::Verifier verifier(raw(copy.data()), copy.size(), kMaxDepth, kMaxTables);
  if (!schema::VerifyDescriptorBuffer(verifier)) return corrupt("malformed");
  const schema::Descriptor& in = *schema::GetDescriptor(copy.data());

  Descriptor out;
  if (in.name() != nullptr) out.name = in.name()->str();
  if (out.name.size() > kMaxNameBytes) return corrupt("name too long");
  out.id = {in.id()->incarnation(), in.id()->buffer(), in.id()->serial()};
  if (in.kind() >= kMemoryKinds) return corrupt("unknown kind of memory");
  out.kind = static_cast<MemoryKind>(in.kind());
  out.peers = {in.peers_read(), in.peers_write(), in.exclusive()};
  if (const auto gpu = view(in.gpu()); !gpu.empty()) {
    if (gpu.size() != out.gpu.size()) return corrupt("a GPU's UUID has 16 bytes");
    std::ranges::copy(gpu, out.gpu.begin());
  }
  out.bytes = in.bytes();
  if (in.keys() == nullptr) return out;
  if (in.keys()->size() > kMaxKeys) return corrupt("too many keys");
  for (const schema::Key* key : *in.keys()) {
    const auto key_bytes = view(key->bytes());
    if (key->transport()->size() > kMaxTransportBytes || key_bytes.size() > kMaxKeyBytes)
      return corrupt("key too long");
    out.keys.push_back({key->transport()->str(),
                        {key_bytes.begin(), key_bytes.end()},
                        key->fd_count(),
                        key->bearer()});
  }
  return out;
}

}  // namespace linkspan::memory
