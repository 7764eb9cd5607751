#include "transport/tcp/address.hpp"

#include <algorithm>

#include "base/schema/flat.hpp"
#include "base/schema/tcp_generated.h"
#include "transport/tcp/frame.hpp"

namespace linkspan::transport::tcp {

std::vector<std::byte> encode(const TcpTransportAddress& address) {
  flatbuffers::FlatBufferBuilder out;
  out.Finish(schema::CreateTcpAddress(out, address.incarnation, address.connections, address.chunk,
                                      address.ordered));
  return schema::finished(out);
}

Result<TcpTransportAddress> decode_address(std::span<const std::byte> bytes) {
  const auto* wire = schema::verified<schema::TcpAddress>(bytes);
  if (wire == nullptr) return Status(Code::corrupt, Scope::peer, "malformed address");
  if (wire->streams() == 0 || wire->chunk() < kMinChunk)
    return Status(Code::corrupt, Scope::peer,
                  "an address without data connections, or of too small frames");
  return TcpTransportAddress{
      .incarnation = wire->incarnation(),
      .connections = std::min<unsigned>(wire->streams(), kMaxDataConnections),
      .chunk = wire->chunk(),
      .ordered = wire->ordered()};
}

}  // namespace linkspan::transport::tcp
