// store/request_store.hpp - linkspan::Store in terms of requests: the part that all kinds of store
// share.
//
// A kind implements exchange(), which executes a request and returns its answer, and await(), which
// waits for keys. The requests are the same as those of torch's own client.
// Threads: any thread.
#pragma once

#include <string>
#include <vector>

#include "base/clock.hpp"
#include "linkspan/store.hpp"
#include "store/protocol.hpp"

namespace linkspan::store {

class RequestStore : public Store {
 public:
  Status set(std::string_view key, std::string_view value) final;
  Result<std::string> get(std::string_view key, Duration timeout) final;
  Result<std::int64_t> add(std::string_view key, std::int64_t amount) final;
  Status wait(const Keys& keys, Duration timeout) final;
  Result<bool> check(const Keys& keys) final;
  Result<bool> delete_key(std::string_view key) final;
  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) final;
  Status append(std::string_view key, std::string_view value) final;
  Result<std::vector<std::string>> multi_get(const Keys& keys, Duration timeout) final;
  Status multi_set(const Keys& keys, const std::vector<std::string>& values) final;
  Result<std::int64_t> num_keys() final;
  Status queue_push(std::string_view queue, std::string_view value) final;
  Result<std::string> queue_pop(std::string_view queue, Duration timeout) final;
  Result<std::int64_t> queue_length(std::string_view queue) final;

 protected:
  /// `timeout`: for answers that do not depend on other clients. `prefix`: put before each key on
  /// the server.
  RequestStore(Duration timeout, std::string prefix)
      : timeout_(timeout), prefix_(std::move(prefix)) {}

  virtual Result<Message> exchange(const Request& request, base::Deadline deadline) = 0;
  /// Waits for keys, given with their prefix. Returns false if some were absent at the deadline.
  virtual Result<bool> await(const Keys& keys, base::Deadline deadline) = 0;

  base::Deadline answer_deadline() const { return base::Deadline::in(timeout_); }
  const Limits& limits() const noexcept { return limits_; }

 private:
  Result<Request> make(Op op, const Keys& keys, std::vector<std::string> values = {}) const;
  Result<Message> ask(Op op, std::string_view key, std::vector<std::string> values = {},
                      std::int64_t number = 0);
  /// Waits for the keys of a `get` or `multi_get`, and returns the values.
  Result<std::vector<std::string>> read(const Request& request, Duration timeout);

  const Duration timeout_;
  const std::string prefix_;
  const Limits limits_{};
};

}  // namespace linkspan::store
