#include "transport/verbs/served_access.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/schema/verbs_generated.h"
#include "transport/verbs/verbs_transport.hpp"

namespace linkspan::transport::verbs {
namespace {

Status corrupt_access(const char* what) { return {Code::corrupt, Scope::peer, what}; }

}  // namespace

ServedAccess::ServedAccess(VerbsTransport& transport, MessageQueue& messages)
    : transport_(transport), messages_(messages), holder_(messages.channel()) {}

ServedAccess::~ServedAccess() { transport_.accesses().remove(holder_); }

Status ServedAccess::on_access(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::VerbsAccess>(bytes);
  Token token{};
  if (wire == nullptr || !schema::take(wire->token(), token))
    return corrupt_access("malformed request for access");
  const RegionUse use = transport_.use(wire->serial());
  std::vector<std::uint64_t> rkeys;
  std::uint64_t address = 0;
  bool flush = false;
  Status refused;
  if (use.memory() == nullptr || !equal_constant_time(use.memory()->key.token, token)) {
    refused = Status(Code::unreachable, Scope::request, "the region is not registered here");
  } else if (const auto keys = transport_.keys(wire->serial()); keys != nullptr) {
    rkeys = keys->rkeys();
    address = use.memory()->address;
    flush = GpuFlush::is_needed(use.memory()->device);
    transport_.accesses().grant(holder_, wire->serial());
  } else {
    refused = Status(Code::unreachable, Scope::request, "the region has no RDMA registration");
  }
  flatbuffers::FlatBufferBuilder out;
  const auto list = out.CreateVector(rkeys);
  const auto what = out.CreateString(refused.what());
  out.Finish(schema::CreateVerbsGranted(out, wire->serial(), address, list, flush,
                                        static_cast<std::uint8_t>(refused.code()), what));
  messages_.send(VerbsMessage::granted, out);
  return {};
}

Status ServedAccess::on_returned(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::VerbsReturned>(bytes);
  if (wire == nullptr) return corrupt_access("malformed return of an access");
  asked_.erase(wire->serial());
  transport_.accesses().on_returned(holder_, wire->serial());
  return {};
}

void ServedAccess::advance(base::Time now) {
  if (unasked_.empty() && holder_.pending) unasked_ = transport_.accesses().take(holder_);
  for (; !unasked_.empty(); unasked_.pop_back()) {  // without memory it stays for the next call
    const Revocation& each = unasked_.back();
    const base::Time limit = now + (each.immediately ? kMaxReturnImmediately : kMaxReturn);
    const auto [at, added] = asked_.emplace(each.serial, limit);
    if (!added) at->second = std::min(at->second, limit);
    flatbuffers::FlatBufferBuilder out;
    out.Finish(schema::CreateVerbsRevoke(out, each.serial, each.immediately));
    messages_.send(VerbsMessage::revoke, out);
  }
  std::erase_if(asked_, [&](const auto& each) {
    if (each.second > now) return false;
    transport_.accesses().on_returned(holder_, each.first);
    return true;
  });
}

void ServedAccess::end() noexcept {
  if (std::exchange(ended_, true)) return;
  asked_.clear();
  unasked_.clear();
  transport_.accesses().remove(holder_);
}

}  // namespace linkspan::transport::verbs
