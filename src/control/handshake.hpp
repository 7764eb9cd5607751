// control/handshake.hpp - the handshake of two Engines, and the ops of the control connection.
//
// Both sides send `hello` and check the received one (version, uid of the socket). Over TCP they
// prove that they know the secret (control/session_keys.hpp). Then they connect their transports to
// the addresses in the hello and send `ready`. A side that has sent and received `ready` may use
// the peer.
// Threads: pure functions and values.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/frame_authenticator.hpp"
#include "base/process.hpp"
#include "linkspan/status.hpp"
#include "memory/descriptor.hpp"
#include "net/tcp_socket.hpp"

namespace linkspan::control {

/// Values are wire format. Unknown ops are answered `unsupported`.
enum class FrameOp : std::uint16_t {
  hello = 1,
  proof = 2,  // over TCP with a secret; a Unix socket shows its peer's uid
  ready = 3,
  import = 4,
  imported = 5,
  notify = 6,
  goodbye = 7,
  error = 8,
  for_transport = 9,
  offer = 10,  // 10 to 13: control/exchange.hpp
  accept = 11,
  finished = 12,
  withdraw = 13,
  collect = 14,  // the ring of notifications is full, or its reader requested a doorbell
  ask_set = 15,
  set = 16,
  data_connection = 17,  // opens a connection for one transport
};

/// Maximum bytes of an Engine's name.
inline constexpr std::size_t kMaxEngineName = 256;

struct TransportAddress {
  std::string name;
  std::vector<std::byte> bytes;
};

struct Hello {
  std::string engine;  ///< For people: logs and errors.
  base::ProcessIdentity process;
  std::array<std::byte, 32> key_share{};
  std::vector<TransportAddress> transports;
  bool requires_auth = false;  ///< The sender has a secret; `proof` follows.
  /// From the accepting side: more addresses for data connections, at the same port.
  std::vector<net::TcpAddress> addresses{};
};

std::vector<std::byte> encode(const Hello& hello);
/// Decodes. corrupt: malformed, a name of over 256 bytes, over 16 transports or addresses, or an
/// address that another host cannot reach (net/interfaces.hpp).
Result<Hello> decode_hello(std::span<const std::byte> bytes);

std::vector<std::byte> encode_error(const Status& status);
Status decode_error(std::span<const std::byte> bytes);  ///< Never OK.

/// Identifies a region: by its published name; by the serial of an offer, if the name is empty; or,
/// with both, by its serial in the published set.
struct ImportRequest {
  std::string name;
  std::uint64_t serial = 0;
};
std::vector<std::byte> encode_import(std::string_view name, std::uint64_t serial = 0);
Result<ImportRequest> decode_import(std::span<const std::byte> bytes);

/// Asks for the set published under a name. An empty name cancels the earlier request.
struct AskSet {
  std::string name;
  std::uint64_t above = 0;  ///< With `waits`: answer once the version is above this.
  bool waits = false;       ///< Else answer at once.
};
std::vector<std::byte> encode(const AskSet& ask);
Result<AskSet> decode_ask_set(std::span<const std::byte> bytes);

/// Encodes a set. Decoding accepts 1 to memory::kMaxSet serials, and neither a serial nor a version
/// of 0.
std::vector<std::byte> encode_set(const memory::PublishedSet& set);
Result<memory::PublishedSet> decode_set(std::span<const std::byte> bytes);

std::vector<std::byte> encode_imported(std::span<const std::byte> descriptor);
Result<std::vector<std::byte>> decode_imported(std::span<const std::byte> bytes);

std::vector<std::byte> encode_notify(std::span<const std::byte> payload);
Result<std::vector<std::byte>> decode_notify(std::span<const std::byte> bytes);

struct TransportMessage {
  std::string transport;
  std::uint16_t op = 0;
  std::vector<std::byte> bytes;
};
std::vector<std::byte> encode_for_transport(std::string_view transport, std::uint16_t op,
                                            std::span<const std::byte> bytes);
Result<TransportMessage> decode_for_transport(std::span<const std::byte> bytes);

std::vector<std::byte> encode_proof(const base::MacKey& proof);
Result<base::MacKey> decode_proof(std::span<const std::byte> bytes);

/// The first frame of a connection for one transport.
struct DataConnectionHello {
  std::string transport;
  std::uint64_t number = 0;  ///< Unique in the session that it belongs to.
  base::MacKey proof{};      ///< MAC by a key of that session.
};
std::vector<std::byte> encode(const DataConnectionHello& hello);
Result<DataConnectionHello> decode_data_connection(std::span<const std::byte> bytes);

}  // namespace linkspan::control
