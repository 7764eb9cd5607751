// linkspan/store.hpp - a small map that the processes of a job share, to find each other:
// addresses, Descriptors, counters. It speaks the protocol of PyTorch's TCPStore, in both roles.
//
//   auto store = *open_tcp_store();                  // the first to come serves, on 127.0.0.1:9998
//   Status told = store->set("decode/address", "unix:/run/app/decode.sock");
//   auto address = store->get("decode/address", 10s);  // waits until somebody has set it
//   Status done = store->close(10s);                 // who serves stays until the others have gone
//
// Values are bytes in a std::string. A key has at most 8 KiB, a value 8 MiB (docs/store.md).
// Errors: timed_out; disconnected: the server has gone, or has closed the connection because a
// limit of its was passed; invalid_argument, unsupported, no_resource: nothing was done.
// Threads: any thread, but for the destructor. Calls of one Store take turns, a wait holds its
// turn: who waits beside others opens a Store of its own.
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

class LINKSPAN_API Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store();  ///< Closes; who serves waits 5 s at most for the others.

  using Keys = std::vector<std::string>;

  /// Over TCP ok means that it was sent: of set, append, multi_set and queue_push the protocol has
  /// no answer. A later call of this Store comes after it.
  virtual Status set(std::string_view key, std::string_view value) = 0;
  /// Waits until the key is there. A timeout of zero: looks once.
  virtual Result<std::string> get(std::string_view key, Duration timeout) = 0;
  /// Adds to a number that is kept as decimal text, 0 where there is no key, and returns the sum.
  /// What is no number, or a sum beyond 64 bits, a server answers by closing the connection.
  virtual Result<std::int64_t> add(std::string_view key, std::int64_t amount) = 0;
  /// Until all keys are there, be it as queues that are not empty.
  virtual Status wait(const Keys& keys, Duration timeout) = 0;
  /// Whether all are there now.
  virtual Result<bool> check(const Keys& keys) = 0;
  /// Whether there was one.
  virtual Result<bool> delete_key(std::string_view key) = 0;
  /// Stores `desired` if the value is `expected`, or if there is no key and `expected` is empty,
  /// and returns the value that is there then. As TCPStore: without a key, and `expected` not
  /// empty, nothing is stored and `expected` is returned.
  virtual Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                          std::string_view desired) = 0;
  /// unsupported: a server of torch 1.13, here and below.
  virtual Status append(std::string_view key, std::string_view value) = 0;
  /// Waits until all are there.
  virtual Result<std::vector<std::string>> multi_get(const Keys& keys, Duration timeout) = 0;
  /// As many values as keys.
  virtual Status multi_set(const Keys& keys, const std::vector<std::string>& values) = 0;
  /// Queues do not count. With torch, the counter of its workers does.
  virtual Result<std::int64_t> num_keys() = 0;

  /// Queues have names of their own: a name is for keys or for queues.
  virtual Status queue_push(std::string_view queue, std::string_view value) = 0;
  /// Waits for a value; one that is pushed goes to one who waits.
  virtual Result<std::string> queue_pop(std::string_view queue, Duration timeout) = 0;
  virtual Result<std::int64_t> queue_length(std::string_view queue) = 0;

  /// "tcp:127.0.0.1:9998".
  virtual std::string address() const = 0;
  virtual bool serves() const = 0;  ///< This Store is the server.
  /// Calls of other threads end as canceled. Who serves stays until the clients that have come have
  /// gone: timed_out says that some had not, and the server has ended all the same.
  virtual Status close(Duration timeout) = 0;
};

enum class StoreRole : std::uint8_t {
  first_to_bind,  ///< Serves if nobody does and `host` is this machine's, else connects.
  serve,
  connect,
};

/// What a client says. Servers of this library understand both.
enum class StoreDialect : std::uint8_t {
  detect,  ///< Asks once with the current one; a server that hangs up then is asked with the older.
  current,  ///< torch 2.4 and later.
  older,    ///< torch 1.13.
};

struct TcpStoreOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 9998;  ///< 0, to serve: any that is free, see Store::address().
  StoreRole role = StoreRole::first_to_bind;
  /// For opening, and for each answer that does not depend on others.
  Duration timeout = std::chrono::seconds(30);
  /// As torch's world_size with wait_for_workers: this side is counted, and who serves waits in
  /// open_tcp_store() until so many have come. 0: neither.
  unsigned workers = 0;
  /// The protocol knows no passwords: whoever reaches the port may read and write all keys. To
  /// serve at an address beyond loopback has to be asked for by this.
  bool insecure = false;
  StoreDialect dialect = StoreDialect::detect;
  /// Called with why the server closes a connection, once a second, and with how many more it has
  /// closed; by a thread of its own, for which the server does not wait.
  std::function<void(std::string_view)> log{};
};

/// Tries until the timeout, so it does not matter who comes first. unreachable: nobody serves
/// there; busy, to serve: another one does; permission_denied: see `insecure`.
LINKSPAN_API Result<std::unique_ptr<Store>> open_tcp_store(const TcpStoreOptions& options = {});

}  // namespace linkspan
