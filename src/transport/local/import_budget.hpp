// transport/local/import_budget.hpp - limits the address space of this process that peers may fill.
//
// Off the path of a byte. A mapping of a peer's memory costs one of the 65,530 mappings that Linux
// gives a process, and as many addresses as the peer claims bytes, which a memfd without pages
// makes free for the peer. So both are counted, for each peer process (whatever the number of its
// Engines) and in all.
// Threads: any thread.
// Invariants: the counts never exceed the limits; a Share releases its amount exactly once.
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
    /// Returns the limits for this host: imports as given, and three times as many in all; twice
    /// the host's memory in bytes (1 TiB at least), and 32 TiB in all, a quarter of the addresses.
    static ImportLimits of_this_host(std::uint64_t imports_of_process);
  };
  /// A pid and 0, or, if the pid is unknown, 0 and an Engine's incarnation.
  using Owner = std::pair<std::int64_t, std::uint64_t>;
  struct Amount {
    std::uint64_t imports = 0, bytes = 0;
  };

  /// Releases its amount when it ends.
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

  /// Counts the amount. The budget must outlive the Share. busy: a limit would be exceeded; the
  /// text says which.
  Result<Share> acquire(const Owner& owner, Amount amount) LINKSPAN_EXCLUDES(mutex_);

 private:
  void release(const Owner& owner, Amount amount) LINKSPAN_EXCLUDES(mutex_);

  const ImportLimits limits_;
  base::Mutex mutex_;
  std::map<Owner, Amount> of_ LINKSPAN_GUARDED_BY(mutex_);
  Amount all_ LINKSPAN_GUARDED_BY(mutex_);
};

}  // namespace linkspan::transport::local
