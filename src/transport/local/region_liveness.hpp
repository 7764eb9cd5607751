// transport/local/region_liveness.hpp - which published regions are alive, in memory that peers
// read.
//
// On the path of a byte: LocalEndpoint::post checks the remote region by one load, without a
// message. A mapping outlives what its owner does with the memory, and an fd that was sent cannot
// be revoked. So each Engine has one table, sealed against writing by others: entry i holds the
// serial of a live region, or 0. A key names index and serial; the importer checks them before it
// maps and before each batch.
// Threads: any thread; the entries are atomic.
// Invariants: an entry changes from 0 to a serial and back; a serial is never used twice.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "base/shared_page.hpp"

namespace linkspan::transport::local {

inline constexpr std::uint32_t kLivenessEntries = 65536;

/// The entry of one region. The table outlives it.
class LivenessEntry {
 public:
  LivenessEntry() = default;  ///< Of a region that is not alive.
  LivenessEntry(const std::atomic<std::uint64_t>& entry, std::uint64_t serial) noexcept
      : entry_(&entry), serial_(serial) {}
  bool alive() const noexcept {
    return entry_ != nullptr && entry_->load(std::memory_order_seq_cst) == serial_;
  }

 private:
  const std::atomic<std::uint64_t>* entry_ = nullptr;
  std::uint64_t serial_ = 0;
};

/// The owner's table.
class RegionLivenessTable {
 public:
  static Result<std::unique_ptr<RegionLivenessTable>> create();
  /// Enters the serial and returns its index. no_resource: 65,536 regions are alive.
  Result<std::uint32_t> grant(std::uint64_t serial) LINKSPAN_EXCLUDES(mutex_);
  void revoke(std::uint32_t index) LINKSPAN_EXCLUDES(mutex_);
  /// Returns the fd that travels with each key; peers can map it for reading only. The other owners
  /// are the keys.
  const std::shared_ptr<const base::Fd>& fd() const noexcept { return fd_; }

 private:
  explicit RegionLivenessTable(base::SharedPage page)
      : page_(std::move(page)), fd_(std::make_shared<const base::Fd>(page_.release_fd())) {}

  base::SharedPage page_;
  const std::shared_ptr<const base::Fd> fd_;
  base::Mutex mutex_;
  std::vector<std::uint32_t> free_ LINKSPAN_GUARDED_BY(mutex_);
  std::uint32_t fresh_ LINKSPAN_GUARDED_BY(mutex_) = 0;  // entries from here on were never granted
};

/// A peer's table, mapped for reading.
class RegionLivenessView {
 public:
  /// Maps the table; errors as SharedPage::open().
  static Result<std::unique_ptr<RegionLivenessView>> open(const base::Fd& fd);
  const std::array<std::uint64_t, 2>& id() const noexcept {
    return id_;
  }  ///< Identifies the memfd.

  LivenessEntry entry(std::uint32_t index, std::uint64_t serial) const noexcept {
    return index < kLivenessEntries ? LivenessEntry(page_[index], serial) : LivenessEntry();
  }

 private:
  RegionLivenessView(base::SharedPage page, const std::array<std::uint64_t, 2>& id)
      : page_(std::move(page)), id_(id) {}
  const base::SharedPage page_;
  const std::array<std::uint64_t, 2> id_;
};

}  // namespace linkspan::transport::local
