#include "transport/nccl_net/key.hpp"

#include "base/schema/nccl_net_generated.h"
#include "transport/nccl_net/wire.hpp"

namespace linkspan::transport::nccl_net {
namespace {

constexpr std::size_t kMaxName = 256;

using schema::take;
using schema::vector_of;

Status corrupt(const char* what) { return {Code::corrupt, Scope::request, what}; }

}  // namespace

std::vector<std::byte> encode(const Key& key) {
  flatbuffers::FlatBufferBuilder out;
  const auto gpu = vector_of(out, key.gpu);
  const auto token = vector_of(out, key.token);
  out.Finish(schema::CreateNetKey(out, key.id.incarnation, key.id.buffer, key.id.serial,
                                  static_cast<std::uint8_t>(key.kind), key.peers.read,
                                  key.peers.write, key.bytes, gpu, token));
  return finished(out);
}

Result<Key> decode_key(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::NetKey>(bytes);
  if (wire == nullptr) return corrupt("malformed key");
  Key key;
  key.id = {wire->incarnation(), wire->buffer(), wire->serial()};
  if (wire->kind() >= kMemoryKinds) return corrupt("key of an unknown memory kind");
  key.kind = static_cast<MemoryKind>(wire->kind());
  key.peers = {.read = wire->read(), .write = wire->write()};
  key.bytes = wire->bytes();
  if (!take(wire->gpu(), key.gpu)) return corrupt("key with a malformed GPU UUID");
  if (!take(wire->token(), key.token)) return corrupt("key with a malformed token");
  if (key.id.incarnation == 0 || key.id.serial == 0) return corrupt("key without an identity");
  return key;
}

std::vector<std::byte> encode(const Address& address) {
  flatbuffers::FlatBufferBuilder out;
  const auto plugin = out.CreateString(address.plugin.substr(0, kMaxName));
  out.Finish(schema::CreateNetAddress(out, address.incarnation, address.most, plugin));
  return finished(out);
}

Result<Address> decode_address(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::NetAddress>(bytes);
  if (wire == nullptr) return corrupt("malformed address");
  if (wire->most() < kLeastMessage) return corrupt("an address of too small messages");
  return Address{.incarnation = wire->incarnation(),
                 .most = wire->most(),
                 .plugin = schema::text_of(*wire->plugin(), kMaxName)};
}

}  // namespace linkspan::transport::nccl_net
