// transport/local/import_table.hpp - the imports of peers' regions, from the key to the end of the
// mapping.
//
// Off the path of a byte.
// Threads: externally synchronised (LocalTransport::mutex_).
// Invariants: an import is removed after its memory is unmapped, so that a peer learns of it only
// then.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "transport/local/import_budget.hpp"
#include "transport/local/mapping.hpp"

namespace linkspan::transport::local {

class ImportTable {
 public:
  using Imports = std::vector<std::shared_ptr<ImportedMemory>>;
  using GpuMappings = decltype(std::declval<ImportedMemory&>().unmap());

  /// Adds an import that a thread is opening. Returns its number.
  std::uint64_t add(const memory::RegionId& id, ImportBudget::Share share);
  void set_memory(std::uint64_t number, const std::shared_ptr<ImportedMemory>& memory) {
    imports_[number].memory = memory;
  }
  void set_opened(std::uint64_t number) { imports_[number].opening = false; }
  /// Removes an import whose memory is unmapped. Returns its region.
  memory::RegionId remove(std::uint64_t number);
  /// Returns whether this process maps that region.
  bool maps(const memory::RegionId& id) const;
  /// Lists the imports that are opened and in use.
  Imports opened() const;
  /// The mappings of an import, which end without the lock.
  struct Unmapped {
    std::uint64_t number;
    GpuMappings mappings;
  };
  /// Moves the mappings of the region to `ended`, unless a batch uses them. `used` gets references
  /// to be released without the lock. Returns false if an import remains; then call again.
  bool unmap(const memory::RegionId& id, Imports& used, std::vector<Unmapped>& ended);
  /// Records that unmap()'s mappings have ended. Returns the region, or nullopt if the import was
  /// removed meanwhile.
  std::optional<memory::RegionId> set_closed(std::uint64_t number);

 private:
  struct ImportEntry {
    memory::RegionId id;
    ImportBudget::Share share;
    std::weak_ptr<ImportedMemory> memory;
    bool opening = true;                     // the importing thread is not done
    bool unmapping = false, closed = false;  // by unmap(), while `memory` lives on
  };
  using Serial = std::pair<std::uint64_t, std::uint64_t>;  // with the incarnation before it

  std::map<std::uint64_t, ImportEntry> imports_;       // by number
  std::map<Serial, std::set<std::uint64_t>> numbers_;  // of a region, for look-ups by peers
  std::uint64_t last_ = 0;
};

}  // namespace linkspan::transport::local
