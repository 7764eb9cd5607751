#include "transport/local/key.hpp"

#include "base/fd_bundle.hpp"
#include "base/schema/local_generated.h"
#include "transport/local/wire.hpp"

namespace linkspan::transport::local {
namespace {

constexpr std::size_t kMaxReason = 512;

using schema::take;
using schema::vector_of;

Status corrupt_key(const char* what) { return {Code::corrupt, Scope::request, what}; }

}  // namespace

std::vector<std::byte> encode(const LocalKey& key) {
  flatbuffers::FlatBufferBuilder out;
  const auto gpu = vector_of(out, key.gpu);
  const auto ipc =
      key.handle.ipc ? vector_of(out, *key.handle.ipc) : flatbuffers::Offset<schema::ByteVector>();
  const auto pool = key.handle.pool ? vector_of(out, *key.handle.pool)
                                    : flatbuffers::Offset<schema::ByteVector>();
  const auto boot = vector_of(out, key.process.boot_id);
  const auto why = out.CreateString(key.handle.why_none.substr(0, kMaxReason));
  out.Finish(schema::CreateLocalKey(
      out, key.id.incarnation, key.id.buffer, key.id.serial, boot, key.process.start_time,
      key.process.nonce, key.liveness_index, static_cast<std::uint8_t>(key.kind), key.peers.read,
      key.peers.write, key.peers.exclusive, key.bytes, key.address, gpu, key.allocation_offset, ipc,
      key.handle.memfd, why, key.handle.chunks ? key.handle.chunks->count : 0,
      key.handle.chunks ? key.handle.chunks->bytes : 0,
      key.handle.chunks ? key.handle.chunks->id : 0, pool, key.anonymous));
  return finished(out);
}

Result<LocalKey> decode_key(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::LocalKey>(bytes);
  if (wire == nullptr) return corrupt_key("malformed key");
  LocalKey key;
  key.id = {wire->incarnation(), wire->buffer(), wire->serial()};
  if (!take(wire->boot_id(), key.process.boot_id)) return corrupt_key("key of a malformed process");
  key.process.start_time = wire->start_time();
  key.process.nonce = wire->process_nonce();
  key.liveness_index = wire->lease_slot();
  if (wire->kind() >= kMemoryKinds) return corrupt_key("key of an unknown memory kind");
  key.kind = static_cast<MemoryKind>(wire->kind());
  key.peers = {wire->read(), wire->write(), wire->exclusive()};
  key.bytes = wire->bytes();
  key.address = wire->address();
  key.anonymous = wire->anonymous();
  if (!take(wire->gpu(), key.gpu)) return corrupt_key("key with a malformed GPU UUID");
  key.allocation_offset = wire->allocation_offset();
  if (wire->ipc_handle() != nullptr && !take(wire->ipc_handle(), key.handle.ipc.emplace()))
    return corrupt_key("key with a malformed IPC handle");
  key.handle.memfd = wire->has_memfd();
  key.handle.why_none = schema::text_of(*wire->why_not_mapped(), kMaxReason);
  if (wire->chunks() > base::FdBundle::kMax) return corrupt_key("key of too many chunks");
  if (wire->chunks() != 0)
    key.handle.chunks = {wire->chunks(), wire->range_bytes(), wire->range_id()};
  if (wire->pool_pointer() != nullptr && !take(wire->pool_pointer(), key.handle.pool.emplace()))
    return corrupt_key("key with a malformed pool pointer");
  if (key.handle.kinds() > 1) return corrupt_key("key with two ways to map it");
  if (key.handle.memfd ? key.kind != MemoryKind::shared
                       : key.kind != MemoryKind::device &&
                             (key.handle.ipc || key.handle.chunks || key.handle.pool))
    return corrupt_key("key to map another kind of memory");
  if (key.id.incarnation == 0 || key.id.serial == 0) return corrupt_key("key without an identity");
  if (!memory::fits(key.address, key.bytes, ~std::uint64_t{0}) ||
      !memory::fits(key.allocation_offset, key.bytes, ~std::uint64_t{0}))
    return corrupt_key("key of a region that passes the end of memory");
  return key;
}

std::vector<std::byte> encode(const LocalAddress& address) {
  flatbuffers::FlatBufferBuilder out;
  const auto boot = vector_of(out, address.process.boot_id);
  const auto proof = vector_of(out, address.proof);
  out.Finish(schema::CreateLocalAddress(out, address.incarnation, boot, address.process.start_time,
                                        address.process.nonce, address.proof_address, proof));
  return finished(out);
}

Result<LocalAddress> decode_address(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::LocalAddress>(bytes);
  if (wire == nullptr) return corrupt_key("malformed address");
  LocalAddress address;
  address.incarnation = wire->incarnation();
  if (!take(wire->boot_id(), address.process.boot_id) || !take(wire->proof(), address.proof))
    return corrupt_key("malformed address");
  address.process.start_time = wire->start_time();
  address.process.nonce = wire->process_nonce();
  address.proof_address = wire->proof_address();
  return address;
}

}  // namespace linkspan::transport::local
