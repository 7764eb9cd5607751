#include "transport/verbs/requested_access.hpp"

#include "base/schema/verbs_generated.h"

namespace linkspan::transport::verbs {
namespace {

Status corrupt_grant(const char* what) { return {Code::corrupt, Scope::peer, what}; }

}  // namespace

Result<RemoteAccess*> RequestedAccess::acquire(const WireKey& key) {
  const std::uint64_t serial = key.id.serial;
  const auto [entry, added] = all_.try_emplace(serial);
  RemoteAccess& access = entry->second;
  if (access.revoked || access.refused)
    return Status(Code::unreachable, Scope::request, "the peer has deregistered the region");
  try {
    if (added) {
      flatbuffers::FlatBufferBuilder out;
      const auto token = schema::vector_of(out, key.token);
      out.Finish(schema::CreateVerbsAccess(out, serial, token));
      messages_.send(VerbsMessage::access, out);
    }
  } catch (...) {
    all_.erase(entry);  // it was not asked for
    throw;
  }
  ++access.batches;
  return &access;
}

void RequestedAccess::release(const WireKey& key, RemoteAccess& access) noexcept {
  if (--access.batches != 0) return;
  returns_ |= access.revoked;
  // It is asked for again by the next batch.
  if (access.refused) all_.erase(key.id.serial);
}

void RequestedAccess::advance() {
  if (!returns_) return;
  for (auto access = all_.begin(); access != all_.end();) {
    if (!access->second.revoked || access->second.batches != 0) {
      ++access;
      continue;
    }
    flatbuffers::FlatBufferBuilder out;
    out.Finish(schema::CreateVerbsReturned(out, access->first));
    messages_.send(VerbsMessage::returned, out);
    access = all_.erase(access);
  }
  returns_ = false;
}

Status RequestedAccess::on_granted(std::span<const std::byte> bytes, Refusal& refused) {
  const auto* wire = verified<schema::VerbsGranted>(bytes);
  const auto end = wire == nullptr ? std::nullopt : base::end_of_transfer(wire->code());
  if (!end) return corrupt_grant("malformed answer to a request for access");
  const auto found = all_.find(wire->serial());
  if (found == all_.end() || found->second.granted || found->second.refused)
    return corrupt_grant("access that was not asked for");
  if (*end != Code::ok) {
    refused = {
        wire->serial(),
        Status(*end, Scope::request, "by the peer: " + schema::text_of(*wire->what(), kMaxReason))};
    found->second.refused = true;
    if (found->second.batches == 0) all_.erase(found);
    return {};
  }
  found->second.address = wire->address();
  found->second.rkeys.assign(wire->rkeys()->begin(), wire->rkeys()->end());
  found->second.flush = wire->flush();
  found->second.granted = true;
  return {};
}

Status RequestedAccess::on_revoke(std::span<const std::byte> bytes, const RemoteAccess*& ends) {
  const auto* wire = verified<schema::VerbsRevoke>(bytes);
  if (wire == nullptr) return corrupt_grant("malformed end of an access");
  const auto found = all_.find(wire->serial());
  if (found == all_.end()) return {};  // it was returned meanwhile
  found->second.revoked = true;
  if (found->second.batches == 0) returns_ = true;
  if (wire->immediately()) ends = &found->second;
  return {};
}

}  // namespace linkspan::transport::verbs
