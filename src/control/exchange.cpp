#include "control/exchange.hpp"

#include "base/schema/control_generated.h"
#include "base/schema/flat.hpp"
#include "base/untrusted_input.hpp"

namespace linkspan::control {
namespace {

constexpr std::size_t kMaxRequire = 256, kMaxWhat = 1024;

Status corrupt_exchange(const char* what) { return {Code::corrupt, Scope::peer, what}; }
bool is_kind(std::uint8_t kind) { return kind < kMemoryKinds; }

using schema::bytes_of;
using schema::finished;
using schema::text_of;
using schema::vector_of;
using schema::verified;

}  // namespace

std::vector<std::byte> encode(const MessageOffer& offer) {
  flatbuffers::FlatBufferBuilder out;
  const auto require = out.CreateString(offer.require);
  const auto descriptor = offer.descriptor.empty() ? flatbuffers::Offset<schema::ByteVector>()
                                                   : vector_of(out, offer.descriptor);
  out.Finish(schema::CreateSendOffer(out, static_cast<std::uint8_t>(offer.space), offer.tag,
                                     offer.bytes, static_cast<std::uint8_t>(offer.kind),
                                     offer.serial, offer.offset, require, descriptor));
  return finished(out);
}

Result<MessageOffer> decode_offer(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::SendOffer>(bytes);
  if (wire == nullptr || wire->require()->size() > kMaxRequire)
    return corrupt_exchange("malformed offer");
  if (wire->space() > static_cast<std::uint8_t>(MatchSpace::in_order) || !is_kind(wire->kind()))
    return corrupt_exchange("an offer of an unknown kind");
  if ((wire->serial() == 0) != (wire->bytes() == 0))
    return corrupt_exchange("an offer of bytes without memory, or of memory without bytes");
  MessageOffer offer{.space = static_cast<MatchSpace>(wire->space()),
                     .tag = wire->tag(),
                     .bytes = wire->bytes(),
                     .kind = static_cast<MemoryKind>(wire->kind()),
                     .serial = wire->serial(),
                     .offset = wire->offset(),
                     .require = wire->require()->str(),
                     .descriptor = {}};
  if (wire->descriptor() != nullptr) offer.descriptor = bytes_of(*wire->descriptor());
  return offer;
}

std::vector<std::byte> encode(const MessageAccept& accept) {
  flatbuffers::FlatBufferBuilder out;
  const auto require = out.CreateString(accept.require);
  const auto descriptor = accept.descriptor.empty() ? flatbuffers::Offset<schema::ByteVector>()
                                                    : vector_of(out, accept.descriptor);
  out.Finish(schema::CreateSendAccept(out, static_cast<std::uint8_t>(accept.kind), accept.serial,
                                      accept.offset, require, descriptor));
  return finished(out);
}

Result<MessageAccept> decode_accept(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::SendAccept>(bytes);
  if (wire == nullptr || wire->require()->size() > kMaxRequire || !is_kind(wire->kind()))
    return corrupt_exchange("malformed accept");
  if (wire->serial() == 0) return corrupt_exchange("an accept without memory");
  MessageAccept accept{.kind = static_cast<MemoryKind>(wire->kind()),
                       .serial = wire->serial(),
                       .offset = wire->offset(),
                       .require = wire->require()->str(),
                       .descriptor = {}};
  if (wire->descriptor() != nullptr) accept.descriptor = bytes_of(*wire->descriptor());
  return accept;
}

std::vector<std::byte> encode(const MessageFinished& end) {
  flatbuffers::FlatBufferBuilder out;
  const auto what = out.CreateString(end.status.what().substr(0, kMaxWhat));
  out.Finish(schema::CreateSendFinished(out, end.by_sender, end.untouched,
                                        static_cast<std::uint8_t>(end.status.code()), what,
                                        static_cast<std::uint8_t>(end.kind)));
  return finished(out);
}

Result<MessageFinished> decode_finished(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::SendFinished>(bytes);
  if (wire == nullptr || !is_kind(wire->kind()))
    return corrupt_exchange("malformed end of a message");
  const auto code = base::final_code(wire->code());
  if (!code) return corrupt_exchange("a message ended with an unknown code");
  MessageFinished end{.by_sender = wire->by_sender(),
                      .untouched = wire->untouched(),
                      .status = {},
                      .kind = static_cast<MemoryKind>(wire->kind())};
  if (*code != Code::ok)
    end.status = Status(*code, Scope::request, "the peer: " + text_of(*wire->what(), kMaxWhat));
  return end;
}

std::vector<std::byte> encode_withdraw(bool by_sender) {
  flatbuffers::FlatBufferBuilder out;
  out.Finish(schema::CreateSendWithdraw(out, by_sender));
  return finished(out);
}

Result<bool> decode_withdraw(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::SendWithdraw>(bytes);
  if (wire == nullptr) return corrupt_exchange("malformed withdrawal");
  return wire->by_sender();
}

}  // namespace linkspan::control
