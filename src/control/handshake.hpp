// control/handshake.hpp - the first words of two Engines, and the ops of the control connection.
//
// Both sides send `hello`, check what came (version, the socket's uid), over TCP prove that they
// know the secret (control/session_keys.hpp), connect their transports to the addresses in it and
// send `ready`; who has sent and heard `ready` may use the peer. Threads: pure functions and
// values.
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

/// Numbers are wire format. What is missing here is answered `unsupported`.
enum class FrameOp : std::uint16_t {
  hello = 1,
  proof = 2,  // over TCP, of sides with a secret; a Unix socket knows its peer's uid
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
  collect = 14,  // the sender's ring of notifications is full, or has what a sleeper waits for
  ask_set = 15,
  set = 16,
  data_connection = 17,  // a connection of its own for a transport
};

/// Bytes of an Engine's name.
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
  bool requires_auth = false;  ///< It has a secret, and `proof` follows.
  /// Of who was connected to: where it takes data connections as well, at the same port.
  std::vector<net::TcpAddress> addresses{};
};

std::vector<std::byte> encode(const Hello& hello);
/// corrupt: malformed, or a name of over 256 bytes, or over 16 transports or addresses, or an
/// address that is none by which another host is reached (control/interfaces.hpp).
Result<Hello> decode_hello(std::span<const std::byte> bytes);

std::vector<std::byte> encode_error(const Status& status);
Status decode_error(std::span<const std::byte> bytes);  ///< Never OK.

/// A region by the name that it is published under; an empty name: by its serial, if it was
/// offered; both: of the set that is published under the name.
struct ImportRequest {
  std::string name;
  std::uint64_t serial = 0;
};
std::vector<std::byte> encode_import(std::string_view name, std::uint64_t serial = 0);
Result<ImportRequest> decode_import(std::span<const std::byte> bytes);

/// For the set that a name stands for; an empty name: no more, of the one who asked before.
struct AskSet {
  std::string name;
  std::uint64_t above = 0;  ///< It waits for a version beyond this one,
  bool waits = false;       ///< or it does not.
};
std::vector<std::byte> encode(const AskSet& ask);
Result<AskSet> decode_ask_set(std::span<const std::byte> bytes);

/// Of a set. Decoded: 1 to memory::kMaxSet serials, none of them 0, and a version that is not.
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

/// What opens a connection for a transport alone.
struct DataConnectionHello {
  std::string transport;
  std::uint64_t number = 0;  ///< Of the session that it belongs to, each once.
  base::MacKey proof{};      ///< By that session's key.
};
std::vector<std::byte> encode(const DataConnectionHello& hello);
Result<DataConnectionHello> decode_data_connection(std::span<const std::byte> bytes);

}  // namespace linkspan::control
