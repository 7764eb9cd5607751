#include "transport/local/region_liveness.hpp"

#include "base/sealed_memory.hpp"

namespace linkspan::transport::local {

Result<std::unique_ptr<RegionLivenessTable>> RegionLivenessTable::create() {
  auto page =
      base::SharedPage::create("linkspan-leases", kLivenessEntries, base::SharedPage::Others::read);
  if (!page.ok()) return page.status();
  return std::unique_ptr<RegionLivenessTable>(new RegionLivenessTable(*std::move(page)));
}

Result<std::uint32_t> RegionLivenessTable::grant(std::uint64_t serial) {
  const base::MutexLock lock(mutex_);
  std::uint32_t index = fresh_;
  if (!free_.empty()) {
    index = free_.back();
    free_.pop_back();
  } else if (fresh_ == kLivenessEntries) {
    return Status::no_resource();
  } else {
    ++fresh_;
  }
  page_[index].store(serial, std::memory_order_seq_cst);
  return index;
}

void RegionLivenessTable::revoke(std::uint32_t index) {
  const base::MutexLock lock(mutex_);
  page_[index].store(0, std::memory_order_seq_cst);
  free_.push_back(index);
}

Result<std::unique_ptr<RegionLivenessView>> RegionLivenessView::open(const base::Fd& fd) {
  auto page = base::SharedPage::open(fd, kLivenessEntries, base::SharedPage::Others::read);
  if (!page.ok()) return page.status();
  const auto memory = base::sealed_memory(fd);
  if (!memory.ok()) return memory.status();
  return std::unique_ptr<RegionLivenessView>(new RegionLivenessView(*std::move(page), memory->id));
}

}  // namespace linkspan::transport::local
