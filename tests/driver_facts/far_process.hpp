// tests/driver_facts/far_process.hpp - another process that calls the driver: what only shows
// between two, and what would end this one.
//
// Threads: externally synchronised.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/driver_facts/fact.hpp"
#include "tests/support/process.hpp"
#include "tests/support/take.hpp"

namespace linkspan::test {

class FarProcess {
 public:
  struct Seen {
    int ordinal;
    unsigned long long bytes, first;  ///< of the range; its first 8 bytes
  };

  explicit FarProcess(const std::vector<std::string>& environment = {})
      : child_(take(Child::spawn("driver_facts", environment))) {}

  /// Allocates memory on its GPU, filled with kFill. Returns the handle for an address `at` bytes
  /// into it.
  CUipcMemHandle lend(int gpu, std::uint64_t bytes, std::uint64_t at);
  /// Returns what it sees when it opens a handle through its first GPU.
  Seen open(const CUipcMemHandle& handle);
  /// Opens it and begins to count up in its first word, by its GPU, without an end.
  void count_in(const CUipcMemHandle& handle);
  /// Maps chunks of `each` bytes in a row, for its first GPU. poll() returns the result.
  void map(std::vector<base::Fd> chunks, std::uint64_t each);
  /// Imports the pool, and the pointer several times; the addresses may be equal. poll() returns
  /// the result.
  std::vector<unsigned> import_pool(std::vector<base::Fd> pool, const CUmemPoolPtrExportData& data,
                                    unsigned times);
  /// Returns the bytes at these places of what map() or import_pool() mapped, read by its GPU.
  std::vector<unsigned> look(const std::vector<std::uint64_t>& places);
  /// Frees what import_pool() created, in order. Returns for each: whether it has the address of
  /// the last one, the results of the free and of the pool's destruction, and then that of a query
  /// of the last one.
  std::vector<unsigned> free_pool();
  std::string uuid(int gpu);
  /// Has a kernel of it write to no memory. What its calls answer from then on, by name.
  std::vector<std::pair<std::string, unsigned>> lose();
  void kill() { child_->kill(); }
  /// Returns true if its end of the socket is closed, after it was killed.
  bool hung_up() { return child_->line().call({{"do", "uuid"}}).status().code() != Code::ok; }

  static constexpr unsigned char kFill = 0x5a;

 private:
  Json call(Json request, std::vector<base::Fd> fds = {}) {
    return take(child_->line().call(request, std::move(fds))).value;
  }

  std::unique_ptr<Child> child_;
};

}  // namespace linkspan::test
