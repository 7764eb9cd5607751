#include "control/handshake.hpp"

#include <algorithm>
#include <utility>

#include "base/schema/control_generated.h"
#include "base/schema/flat.hpp"
#include "base/untrusted_input.hpp"
#include "net/interfaces.hpp"

namespace linkspan::control {
namespace {

constexpr std::size_t kMaxName = 256, kMaxTransports = 16, kMaxAddress = 4096, kMaxHelloWhat = 1024;

Status corrupt_hello(const char* what) { return {Code::corrupt, Scope::peer, what}; }

using schema::bytes_of;
using schema::finished;
using schema::take;
using schema::text_of;
using schema::vector_of;
using schema::verified;

}  // namespace

std::vector<std::byte> encode(const Hello& hello) {
  flatbuffers::FlatBufferBuilder out;
  std::vector<flatbuffers::Offset<schema::TransportAddress>> addresses;
  for (const TransportAddress& each : hello.transports) {
    const auto name = out.CreateString(each.name);
    addresses.push_back(schema::CreateTransportAddress(out, name, vector_of(out, each.bytes)));
  }
  const auto engine = out.CreateString(hello.engine);
  const auto boot = vector_of(out, hello.process.boot_id);
  const auto share = vector_of(out, hello.key_share);
  const auto list = out.CreateVector(addresses);
  std::vector<std::string> hosts;
  for (const net::TcpAddress& each : hello.addresses) hosts.push_back(each.host());
  const auto more = hosts.empty() ? 0 : out.CreateVectorOfStrings(hosts);
  out.Finish(schema::CreateHello(out, engine, boot, hello.process.start_time, hello.process.nonce,
                                 share, list, hello.requires_auth, more));
  return finished(out);
}

Result<Hello> decode_hello(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::Hello>(bytes);
  if (wire == nullptr) return corrupt_hello("malformed hello");
  Hello hello;
  hello.engine = text_of(*wire->engine(), kMaxEngineName + 1);
  if (hello.engine.size() > kMaxEngineName || wire->transports()->size() > kMaxTransports)
    return corrupt_hello("hello beyond a limit");
  if (!take(wire->boot_id(), hello.process.boot_id) || !take(wire->key_share(), hello.key_share))
    return corrupt_hello("malformed hello");
  hello.process.start_time = wire->start_time();
  hello.process.nonce = wire->process_nonce();
  hello.requires_auth = wire->proves();
  for (const schema::TransportAddress* each : *wire->transports()) {
    if (each->name()->size() > kMaxName || each->bytes()->size() > kMaxAddress)
      return corrupt_hello("hello beyond a limit");
    // A session has one Endpoint and one Channel for each transport, so names must differ.
    std::string name = each->name()->str();
    if (std::ranges::find(hello.transports, name, &TransportAddress::name) !=
        hello.transports.end())
      return corrupt_hello("hello that names a transport twice");
    hello.transports.push_back({std::move(name), bytes_of(*each->bytes())});
  }
  if (wire->addresses() == nullptr) return hello;
  if (wire->addresses()->size() > net::kMaxInterfaceAddresses)
    return corrupt_hello("hello beyond a limit");
  for (const flatbuffers::String* each : *wire->addresses()) {
    const auto address = net::parse_host(each->string_view());
    if (!address) return corrupt_hello("hello with an address that is no other host's");
    hello.addresses.push_back(*address);
  }
  return hello;
}

std::vector<std::byte> encode_error(const Status& status) {
  flatbuffers::FlatBufferBuilder out;
  const auto what = out.CreateString(status.what().substr(0, kMaxHelloWhat));
  out.Finish(schema::CreateError(out, static_cast<std::uint8_t>(status.code()), what));
  return finished(out);
}

Status decode_error(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::Error>(bytes);
  if (wire == nullptr) return corrupt_hello("malformed error");
  const auto code = base::final_code(wire->code());
  if (!code || *code == Code::ok) return corrupt_hello("error of an unknown code");
  return {*code, Scope::request, "the peer: " + text_of(*wire->what(), kMaxHelloWhat)};
}

std::vector<std::byte> encode_import(std::string_view name, std::uint64_t serial) {
  flatbuffers::FlatBufferBuilder out;
  out.Finish(schema::CreateImport(out, out.CreateString(name.data(), name.size()), serial));
  return finished(out);
}

Result<ImportRequest> decode_import(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::Import>(bytes);
  if (wire == nullptr || wire->name()->size() > kMaxName) return corrupt_hello("malformed import");
  return ImportRequest{wire->name()->str(), wire->serial()};
}

std::vector<std::byte> encode(const AskSet& ask) {
  flatbuffers::FlatBufferBuilder out;
  out.Finish(schema::CreateAskSet(out, out.CreateString(ask.name), ask.above, ask.waits));
  return finished(out);
}

Result<AskSet> decode_ask_set(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::AskSet>(bytes);
  if (wire == nullptr || wire->name()->size() > kMaxName)
    return corrupt_hello("malformed question");
  return AskSet{wire->name()->str(), wire->above(), wire->waits()};
}

std::vector<std::byte> encode_set(const memory::PublishedSet& set) {
  flatbuffers::FlatBufferBuilder out;
  out.Finish(schema::CreateSet(out, set.version, out.CreateVector(set.serials)));
  return finished(out);
}

Result<memory::PublishedSet> decode_set(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::Set>(bytes);
  if (wire == nullptr || wire->version() == 0 || wire->serials()->size() == 0 ||
      wire->serials()->size() > memory::kMaxSet)
    return corrupt_hello("malformed set");
  // The verifier looks at the alignment of a table's scalars, not of a vector's.
  if (reinterpret_cast<std::uintptr_t>(wire->serials()->Data()) % alignof(std::uint64_t) != 0)
    return corrupt_hello("malformed set");
  memory::PublishedSet set{wire->version(), {wire->serials()->begin(), wire->serials()->end()}};
  if (std::find(set.serials.begin(), set.serials.end(), 0u) != set.serials.end())
    return corrupt_hello("a set with a region that is none");
  return set;
}

std::vector<std::byte> encode_imported(std::span<const std::byte> descriptor) {
  flatbuffers::FlatBufferBuilder out;
  out.Finish(schema::CreateImported(out, vector_of(out, descriptor)));
  return finished(out);
}

Result<std::vector<std::byte>> decode_imported(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::Imported>(bytes);
  if (wire == nullptr) return corrupt_hello("malformed answer to an import");
  return bytes_of(*wire->descriptor());
}

std::vector<std::byte> encode_notify(std::span<const std::byte> payload) {
  flatbuffers::FlatBufferBuilder out;
  out.Finish(schema::CreateNotify(out, vector_of(out, payload)));
  return finished(out);
}

Result<std::vector<std::byte>> decode_notify(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::Notify>(bytes);
  if (wire == nullptr) return corrupt_hello("malformed notification");
  return bytes_of(*wire->bytes());
}

std::vector<std::byte> encode_for_transport(std::string_view transport, std::uint16_t op,
                                            std::span<const std::byte> bytes) {
  flatbuffers::FlatBufferBuilder out(bytes.size() + 256);
  const auto name = out.CreateString(transport.data(), transport.size());
  out.ForceVectorAlignment(bytes.size(), 1, 16);
  const auto payload = vector_of(out, bytes);
  out.Finish(schema::CreateForTransport(out, name, op, payload));
  return finished(out);
}

Result<TransportMessage> decode_for_transport(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::ForTransport>(bytes);
  if (wire == nullptr || wire->transport()->size() > kMaxName)
    return corrupt_hello("malformed message for a transport");
  // A copy, and so aligned whatever the peer sent.
  return TransportMessage{text_of(*wire->transport(), kMaxName), wire->op(),
                          bytes_of(*wire->bytes())};
}

std::vector<std::byte> encode_proof(const base::MacKey& proof) {
  flatbuffers::FlatBufferBuilder out;
  out.Finish(schema::CreateProof(out, vector_of(out, proof)));
  return finished(out);
}

Result<base::MacKey> decode_proof(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::Proof>(bytes);
  base::MacKey proof{};
  if (wire == nullptr || !take(wire->bytes(), proof)) return corrupt_hello("malformed proof");
  return proof;
}

std::vector<std::byte> encode(const DataConnectionHello& hello) {
  flatbuffers::FlatBufferBuilder out;
  const auto transport = out.CreateString(hello.transport);
  out.Finish(schema::CreateStream(out, transport, hello.number, vector_of(out, hello.proof)));
  return finished(out);
}

Result<DataConnectionHello> decode_data_connection(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::Stream>(bytes);
  DataConnectionHello hello;
  if (wire == nullptr || wire->transport()->size() > kMaxName || !take(wire->proof(), hello.proof))
    return corrupt_hello("malformed data connection");
  hello.number = wire->number();
  hello.transport = text_of(*wire->transport(), kMaxName);
  return hello;
}

}  // namespace linkspan::control
