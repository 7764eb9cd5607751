// transport/local/import_budget.hpp - how much of this process's address space peers may fill.
//
// A mapping of a peer's memory costs one of the 65,530 mappings that Linux gives a process, and as
// many addresses as the peer says that it has bytes: of a memfd without pages as many as it likes.
// So both are counted, for each process that they come from, however many Engines it has, and for
// all together.
// Threads: any thread.
// Invariants: what is taken is at most the limits; a Share gives back what it has, once.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "base/mutex.hpp"
#include "linkspan/status.hpp"

namespace linkspan::transport::local {

class ImportBudget {
 public:
  struct ImportLimits {
    std::uint64_t imports_of_process = 0, imports = 0, bytes_of_process = 0, bytes = 0;
    /// Imports as given, three times as many in all; bytes as twice the memory of this host, 1 TiB
    /// at least, and in all 32 TiB, a quarter of the addresses.
    static ImportLimits of_this_host(std::uint64_t imports_of_process);
  };
  /// A process by its number; where that is unknown 0, and an Engine's incarnation.
  using Owner = std::pair<std::int64_t, std::uint64_t>;
  struct Amount {
    std::uint64_t imports = 0, bytes = 0;
  };

  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept
        : of_(std::exchange(other.of_, nullptr)),
          owner_(std::move(other.owner_)),
          amount_(other.amount_) {}
    Share& operator=(Share&& other) noexcept {
      std::swap(of_, other.of_);
      std::swap(owner_, other.owner_);
      std::swap(amount_, other.amount_);
      return *this;
    }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    ~Share() {
      if (of_ != nullptr) of_->release(owner_, amount_);
    }

   private:
    friend class ImportBudget;
    Share(ImportBudget* of, const Owner& owner, Amount amount)
        : of_(of), owner_(owner), amount_(amount) {}
    ImportBudget* of_ = nullptr;
    Owner owner_{};
    Amount amount_{};
  };

  explicit ImportBudget(const ImportLimits& limits) : limits_(limits) {}

  /// Outlives the Share. busy: a limit would be passed; the text says which.
  Result<Share> acquire(const Owner& owner, Amount amount) LINKSPAN_EXCLUDES(mutex_);

 private:
  void release(const Owner& owner, Amount amount) LINKSPAN_EXCLUDES(mutex_);

  const ImportLimits limits_;
  base::Mutex mutex_;
  std::map<Owner, Amount> of_ LINKSPAN_GUARDED_BY(mutex_);
  Amount all_ LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::transport::local
