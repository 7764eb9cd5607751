// Fuzzes the messages of the control connection: every decoder of control/handshake.hpp and
// exchange.hpp. Accepted input keeps the limits, writes only itself to a log, and comes back from
// its own encoding.
#include "control/handshake.hpp"

#include <algorithm>

#include "control/exchange.hpp"
#include "tests/fuzz/support.hpp"

namespace linkspan::fuzz {
namespace {

using namespace linkspan::control;

void printable(const std::string& text) {
  demand(std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }),
         "a control character");
}

/// Checks that decoding what was encoded gives the same encoding again.
template <class Decode, class Encode>
void round(std::span<const std::byte> bytes, const Decode& decode, const Encode& encode) {
  const auto taken = decode(bytes);
  if (!taken.ok()) return demand(taken.status().code() == Code::corrupt, "another code");
  const std::vector<std::byte> wire = encode(*taken);
  const auto again = decode(std::span(wire));
  demand(again.ok(), "its own encoding is refused");
  // The text of an error grows with each decoding, because it names its source.
  if constexpr (!std::is_same_v<std::decay_t<decltype(*taken)>, MessageFinished>)
    demand(encode(*again) == wire, "not the same again");
}

void parse(std::uint8_t which, std::span<const std::byte> bytes) {
  switch (which % 14) {
    case 0:
      if (const auto hello = decode_hello(bytes); hello.ok()) {
        printable(hello->engine);
        demand(hello->engine.size() <= 256 && hello->transports.size() <= 16, "a limit");
        demand(hello->addresses.size() <= 16, "a limit of addresses");
        for (const net::TcpAddress& each : hello->addresses)
          demand(!each.is_loopback() && each.port() == 0, "an address that leads back here");
      }
      return round(bytes, decode_hello, [](const Hello& h) { return encode(h); });
    case 1: {
      const Status status = decode_error(bytes);
      demand(!status.ok() && status.code() <= Code::internal, "an error that is none");
      return printable(status.what());
    }
    case 2:
      return round(bytes, decode_import,
                   [](const ImportRequest& r) { return encode_import(r.name, r.serial); });
    case 3:
      return round(bytes, decode_imported, [](const auto& b) { return encode_imported(b); });
    case 4:
      return round(bytes, decode_notify, [](const auto& b) { return encode_notify(b); });
    case 5:
      return round(bytes, decode_for_transport, [](const TransportMessage& m) {
        printable(m.transport);
        return encode_for_transport(m.transport, m.op, m.bytes);
      });
    case 6:
      return round(bytes, decode_offer, [](const MessageOffer& o) { return encode(o); });
    case 7:
      return round(bytes, decode_accept, [](const MessageAccept& a) { return encode(a); });
    case 8:
      return round(bytes, decode_finished, [](const MessageFinished& f) { return encode(f); });
    case 9:
      return round(bytes, decode_withdraw,
                   [](bool by_sender) { return encode_withdraw(by_sender); });
    case 10:
      return round(bytes, decode_ask_set, [](const AskSet& a) { return encode(a); });
    case 11:
      return round(bytes, decode_set, [](const auto& set) { return encode_set(set); });
    case 12:
      return round(bytes, decode_proof, [](const auto& proof) { return encode_proof(proof); });
    default:
      return round(bytes, decode_data_connection, [](const DataConnectionHello& hello) {
        printable(hello.transport);
        return encode(hello);
      });
  }
}

}  // namespace
}  // namespace linkspan::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  linkspan::fuzz::Input input(data, size);
  const std::uint8_t which = input.byte();
  linkspan::fuzz::parse(which, input.rest());
  return 0;
}
