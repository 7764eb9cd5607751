#include "transport/local/import_budget.hpp"

#include <unistd.h>

#include <algorithm>
#include <string>

namespace linkspan::transport::local {
namespace {

constexpr std::uint64_t kTiB = std::uint64_t{1} << 40;

/// Requires `used` <= `limit`.
Status check_share(std::uint64_t used, std::uint64_t more, std::uint64_t limit, const char* of) {
  if (more <= limit - used) return {};
  return {Code::busy, Scope::request,
          std::to_string(used) + " " + of + ", " + std::to_string(limit) + " may be, and " +
              std::to_string(more) + " more are asked for: let some go, then try again"};
}

}  // namespace

ImportBudget::ImportLimits ImportBudget::ImportLimits::of_this_host(
    std::uint64_t imports_of_process) {
  const auto pages = static_cast<std::uint64_t>(std::max(0L, ::sysconf(_SC_PHYS_PAGES)));
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return {.imports_of_process = imports_of_process,
          .imports = 3 * imports_of_process,
          .bytes_of_process = std::clamp(2 * pages * page, kTiB, 16 * kTiB),
          .bytes = 32 * kTiB};
}

Result<ImportBudget::Share> ImportBudget::acquire(const Owner& owner, Amount amount) {
  const base::MutexLock lock(mutex_);
  const auto found = of_.find(owner);
  const Amount used = found == of_.end() ? Amount{} : found->second;
  for (Status status :
       {check_share(used.imports, amount.imports, limits_.imports_of_process,
                    "regions of this peer's process are imported"),
        check_share(used.bytes, amount.bytes, limits_.bytes_of_process,
                    "bytes of this peer's process are mapped"),
        check_share(all_.imports, amount.imports, limits_.imports, "regions are imported"),
        check_share(all_.bytes, amount.bytes, limits_.bytes, "bytes of peers are mapped")})
    if (!status.ok()) return status;
  Amount& of = of_[owner];
  for (Amount* each : {&of, &all_}) {
    each->imports += amount.imports;
    each->bytes += amount.bytes;
  }
  return Share(this, owner, amount);
}

void ImportBudget::release(const Owner& owner, Amount amount) {
  const base::MutexLock lock(mutex_);
  const auto found = of_.find(owner);
  for (Amount* each : {&found->second, &all_}) {
    each->imports -= amount.imports;
    each->bytes -= amount.bytes;
  }
  if (found->second.imports == 0 && found->second.bytes == 0) of_.erase(found);
}

}  // namespace linkspan::transport::local
