#include "transport/wire_region.hpp"

#include "base/process.hpp"
#include "base/schema/flat.hpp"
#include "base/schema/wire_generated.h"

namespace linkspan::transport {
namespace {

using schema::take;
using schema::vector_of;

Status corrupt_record(const char* what) { return {Code::corrupt, Scope::request, what}; }

}  // namespace

bool equal_constant_time(const Token& ours, const Token& theirs) noexcept {
  std::byte difference{};
  for (std::size_t i = 0; i < ours.size(); ++i) difference |= ours[i] ^ theirs[i];
  return difference == std::byte{};
}

std::vector<std::byte> encode(const WireKey& key) {
  flatbuffers::FlatBufferBuilder out;
  const auto gpu = vector_of(out, key.gpu);
  const auto token = vector_of(out, key.token);
  flatbuffers::Offset<schema::ByteVector> cluster;
  if (key.fabric) cluster = vector_of(out, key.fabric->cluster);
  out.Finish(schema::CreateWireKey(out, key.id.incarnation, key.id.buffer, key.id.serial,
                                   static_cast<std::uint8_t>(key.kind), key.peers.read,
                                   key.peers.write, key.bytes, gpu, token, cluster,
                                   key.fabric ? key.fabric->clique : 0));
  return schema::finished(out);
}

Result<WireKey> decode_key(std::span<const std::byte> bytes) {
  const auto* wire = schema::verified<schema::WireKey>(bytes);
  if (wire == nullptr) return corrupt_record("malformed key");
  WireKey key;
  key.id = {wire->incarnation(), wire->buffer(), wire->serial()};
  if (wire->kind() >= kMemoryKinds) return corrupt_record("key of an unknown memory kind");
  key.kind = static_cast<MemoryKind>(wire->kind());
  key.peers = {.read = wire->read(), .write = wire->write()};
  key.bytes = wire->bytes();
  if (!take(wire->gpu(), key.gpu)) return corrupt_record("key with a malformed GPU UUID");
  if (!take(wire->token(), key.token)) return corrupt_record("key with a malformed token");
  if (wire->nvlink_cluster() != nullptr) {
    key.fabric.emplace().clique = wire->nvlink_clique();
    if (!take(wire->nvlink_cluster(), key.fabric->cluster))
      return corrupt_record("key with a malformed NVLink cluster");
  }
  if (key.id.incarnation == 0 || key.id.serial == 0)
    return corrupt_record("key without an identity");
  return key;
}

Result<std::unique_ptr<Mapping>> WireMapping::import(const RemoteKey& key,
                                                     base::Deadline deadline) {
  auto decoded = decode_key(key.bytes);
  if (!decoded.ok()) return decoded.status();
  if (key.incarnation != 0 && decoded->id.incarnation != key.incarnation)
    return Status(Code::corrupt, Scope::request, "a key of another Engine's region");
  if (deadline.passed()) return Status(Code::timed_out, Scope::request, "import of a region");
  return std::unique_ptr<Mapping>(std::make_unique<WireMapping>(*decoded));
}

Result<WireBatch> wire_batch(const Batch& batch, WireRegionTable& published, std::uint64_t peer,
                             const Capabilities& limits, bool keeps_pages) {
  if (batch.streams.after != nullptr)
    return Status(Code::unsupported, Scope::request, "no GPU of this process copies it");
  if (const auto* pages = std::get_if<Pages>(&batch.shape);
      pages != nullptr && pages->indices_on_gpu)
    return Status(Code::unsupported, Scope::request,
                  "a wire reads no page indices on a GPU: copy them to host memory");
  if (batch.hints.checksum && !limits.checksums)
    return Status(Code::unsupported, Scope::request, "this wire makes no checksums");
  WireBatch out;
  out.remote = static_cast<const WireMapping*>(batch.remote);
  if (out.remote->key().id.incarnation != peer)
    return Status(Code::invalid_argument, Scope::request, "the remote region is another peer's");
  const Permissions allowed = out.remote->permissions();
  if (!(batch.op == Op::write ? allowed.write : allowed.read))
    return Status(Code::permission_denied, Scope::request,
                  std::string("the peer does not permit to ") +
                      (batch.op == Op::write ? "write to" : "read from") + " this region");
  auto shape = batch.checked
                   ? Result<CheckedShape>(already_checked(batch.shape))
                   : check_shape(batch.shape, batch.local->bytes(), batch.remote->bytes(), limits);
  if (!shape.ok()) return shape.status();
  if (!out.remote->alive())
    return Status(Code::unreachable, Scope::request, "the peer has deregistered the region");
  out.checked = *std::move(shape);
  if (out.checked.pages != nullptr && !keeps_pages)
    out.checked.owned = blocks_of(*out.checked.pages);
  out.use = published.use(batch.local->facts().id.serial);
  if (out.use.memory() == nullptr || out.use.memory()->region != batch.local)
    return Status(Code::invalid_argument, Scope::request,
                  "the local region is not registered here");
  return out;
}

Result<memory::PublishedKey> WireRegionTable::add(const memory::Region& region) {
  const memory::Region::Facts& facts = region.facts();
  auto published = std::make_shared<WireRegion>();
  published->key = {.id = facts.id, .kind = facts.kind, .peers = facts.peers, .bytes = facts.bytes};
  published->address = facts.address;
  published->region = &region;
  if (facts.kind == MemoryKind::device) {  // pinned memory lies on no GPU
    auto device = topology_->activate(facts.gpu);
    if (!device.ok()) return device.status();
    published->device = *device;
    published->key.gpu = facts.gpu;
    published->key.fabric = (*device)->info().fabric;
  }
  if (Status status = base::random_bytes(published->key.token); !status.ok()) return status;
  memory::PublishedKey key;
  key.bytes = encode(published->key);
  key.bearer = true;
  const base::MutexLock lock(mutex_);
  if (facts.part_of != 0) {
    const auto whole = all_.find(facts.part_of);
    if (whole == all_.end() || whole->second->retracted)
      return Status(Code::unreachable, Scope::request, "the region of the message has ended");
    published->whole = whole->second;
    ++published->whole->uses;
  }
  all_[facts.id.serial] = std::move(published);
  return key;
}

std::vector<PathRefusal> WireRegionTable::refused(const memory::Region& local,
                                                  const Mapping& remote) const {
  const bool of_gpu = topology_ != nullptr && local.facts().kind == MemoryKind::device;
  const cuda::DeviceInfo* const gpu = of_gpu ? topology_->find(local.facts().gpu) : nullptr;
  const auto& there = static_cast<const WireMapping&>(remote).key().fabric;
  if (gpu == nullptr || !gpu->fabric || gpu->fabric != there) return {};
  return {{.path = "NVLink across hosts",
           .reason = "NVLink joins both GPUs (clique " + std::to_string(there->clique) +
                     " of one cluster), but linkspan maps memory of GPUs within a host only"}};
}

Status WireRegionTable::retract(const memory::Region& region, bool revoke_immediately) {
  const std::uint64_t serial = region.facts().id.serial;
  const base::MutexLock lock(mutex_);
  const auto found = all_.find(serial);
  if (found == all_.end()) return {Code::not_found, Scope::request, "the region is not published"};
  WireRegion& published = *found->second;
  if (revoke_immediately) published.revoke_immediately = true;
  published.retracted = true;
  if (published.uses != 0) return {Code::busy, Scope::request, "a transfer still uses the region"};
  if (published.registrations != 0)
    return {Code::busy, Scope::request, "the wire has not given the memory back yet"};
  all_.erase(found);
  return {};
}

RegionUse WireRegionTable::use(std::uint64_t serial) {
  const base::MutexLock lock(mutex_);
  const auto found = all_.find(serial);
  if (found == all_.end() || registered_as(found->second)->retracted || found->second->retracted)
    return {};
  return RegionUse(found->second);
}

}  // namespace linkspan::transport
