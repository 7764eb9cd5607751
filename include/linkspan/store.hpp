// linkspan/store.hpp - a key-value store that the processes of a job share to find each other, for
// example by addresses, Descriptors and counters. Client and server speak the protocol of
// PyTorch's TCPStore.
//
//   auto store = open_tcp_store().value();           // the first process serves 127.0.0.1:9998
//   Status set = store->set("decode/address", "unix:/run/app/decode.sock");
//   auto address = store->get("decode/address", 10s);  // waits until the key is set
//   Status done = store->close(10s);                 // the server waits until its clients are gone
//
// Values are bytes in a std::string. A key has at most 8 KiB, a value 8 MiB (docs/store.md).
// Errors: timed_out. disconnected: the server has ended, or has closed the connection because one
// of its limits was exceeded, or an earlier call had no memory for its answer. invalid_argument,
// unsupported, no_resource: nothing was done. Threads: any thread, but the destructor is externally
// synchronised. Calls of one Store run one at a time, and a call that waits delays the others: a
// thread that waits opens a Store of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "linkspan/status.hpp"
#include "linkspan/types.hpp"

namespace linkspan {

/// A connection to the shared store, and its server if serves(). All methods may be called by any
/// thread.
class LINKSPAN_API Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store();  ///< Closes; a server waits at most 5 s for its clients.

  using Keys = std::vector<std::string>;

  /// Sets the value of a key. Over TCP ok means that the request was sent: the protocol has no
  /// reply to set, append, multi_set and queue_push. Later calls of this Store are executed after
  /// it.
  virtual Status set(std::string_view key, std::string_view value) = 0;
  /// Waits until the key exists, and returns its value. A timeout of zero checks once.
  virtual Result<std::string> get(std::string_view key, Duration timeout) = 0;
  /// Adds to a number stored as decimal text, 0 if the key is absent, and returns the sum. If the
  /// value is not a number or the sum exceeds 64 bits, the server closes the connection.
  virtual Result<std::int64_t> add(std::string_view key, std::int64_t amount) = 0;
  /// Waits until all keys exist. The name of a queue that is not empty counts as a key.
  virtual Status wait(const Keys& keys, Duration timeout) = 0;
  /// Returns whether all keys exist now.
  virtual Result<bool> check(const Keys& keys) = 0;
  /// Deletes the key, and returns whether it existed.
  virtual Result<bool> delete_key(std::string_view key) = 0;
  /// Stores `desired` if the value is `expected`, or if the key is absent and `expected` is empty.
  /// Returns the value afterwards. As in TCPStore, an absent key with a non-empty `expected` stores
  /// nothing and returns `expected`.
  virtual Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                          std::string_view desired) = 0;
  /// Appends to the value of a key. unsupported, here and in the methods below: a server of torch
  /// 1.13.
  virtual Status append(std::string_view key, std::string_view value) = 0;
  /// Waits until all keys exist, and returns their values in the same order.
  virtual Result<std::vector<std::string>> multi_get(const Keys& keys, Duration timeout) = 0;
  /// Sets keys[i] to values[i]. Both lists have the same length.
  virtual Status multi_set(const Keys& keys, const std::vector<std::string>& values) = 0;
  /// Returns the number of keys, without queues. A torch server counts its worker counter as well.
  virtual Result<std::int64_t> num_keys() = 0;

  /// Appends a value to a queue. Use a name for a key or for a queue, not for both.
  virtual Status queue_push(std::string_view queue, std::string_view value) = 0;
  /// Waits for a value, removes it and returns it. Each value goes to one caller.
  virtual Result<std::string> queue_pop(std::string_view queue, Duration timeout) = 0;
  /// Returns the number of values in the queue.
  virtual Result<std::int64_t> queue_length(std::string_view queue) = 0;

  /// Returns the server's address: "tcp:127.0.0.1:9998".
  virtual std::string address() const = 0;
  virtual bool serves() const = 0;  ///< Whether this Store is the server.
  /// Ends the calls of other threads as `canceled`, and disconnects. A server first waits until all
  /// clients have disconnected. timed_out: some had not; the server has ended all the same.
  virtual Status close(Duration timeout) = 0;
};

enum class StoreRole : std::uint8_t {
  first_to_bind,  ///< Serves if the port is free and `host` is this machine's, else connects.
  serve,
  connect,
};

/// The version of the protocol that a client uses. Servers of this library understand both.
enum class StoreDialect : std::uint8_t {
  detect,   ///< Tries the current one; if the server closes the connection, the older one.
  current,  ///< torch 2.4 and later.
  older,    ///< torch 1.13.
};

struct TcpStoreOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 9998;  ///< 0 to serve at any free port, see Store::address().
  StoreRole role = StoreRole::first_to_bind;
  /// Limits opening, and each reply that does not wait for other clients.
  Duration timeout = std::chrono::seconds(30);
  /// Works as torch's world_size with wait_for_workers: this side is counted, and the server waits
  /// in open_tcp_store() until this many workers have connected. 0: neither.
  unsigned workers = 0;
  /// Allows serving at an address beyond loopback. The protocol has no passwords: any process that
  /// reaches the port may read and write all keys.
  bool insecure = false;
  StoreDialect dialect = StoreDialect::detect;
  /// Receives the reason when the server closes a connection, at most once a second, with the
  /// number of further ones. Runs on a thread of its own, for which the server does not wait.
  std::function<void(std::string_view)> log{};
};

/// Opens a Store by TCP. Retries until the timeout, so server and clients may start in any order.
/// unreachable: no server answers there. busy: another server has the port. permission_denied: see
/// `insecure`.
LINKSPAN_API Result<std::unique_ptr<Store>> open_tcp_store(const TcpStoreOptions& options = {});

}  // namespace linkspan
