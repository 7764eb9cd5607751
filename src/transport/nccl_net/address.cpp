#include "transport/nccl_net/address.hpp"

#include "base/schema/nccl_net_generated.h"
#include "transport/nccl_net/message_type.hpp"

namespace linkspan::transport::nccl_net {
namespace {

constexpr std::size_t kMaxName = 256;

Status corrupt_address(const char* what) { return {Code::corrupt, Scope::request, what}; }

}  // namespace

std::vector<std::byte> encode(const NcclNetAddress& address) {
  flatbuffers::FlatBufferBuilder out;
  const auto plugin = out.CreateString(address.plugin.substr(0, kMaxName));
  out.Finish(schema::CreateNetAddress(out, address.incarnation, address.max_message, plugin));
  return finished(out);
}

Result<NcclNetAddress> decode_address(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::NetAddress>(bytes);
  if (wire == nullptr) return corrupt_address("malformed address");
  if (wire->most() < kMinMessage) return corrupt_address("an address of too small messages");
  return NcclNetAddress{.incarnation = wire->incarnation(),
                        .max_message = wire->most(),
                        .plugin = schema::text_of(*wire->plugin(), kMaxName)};
}

}  // namespace linkspan::transport::nccl_net
