// The names of a Registry: sets of regions, each replaced or unpublished as a whole.
#include "memory/registry.hpp"

namespace linkspan::memory {
namespace {

Status refused_name(Code code, std::string what, Where at = {}) {
  return {code, Scope::request, std::move(what), at};
}

std::string quoted(std::string_view name) { return "\"" + std::string(name) + "\""; }

Status unpublished(std::string_view name, Where at = {}) {
  return refused_name(Code::not_found, "no region is published as " + quoted(name), at);
}

}  // namespace

Status Registry::set_name(const RegionId& id, std::string_view name) {
  if (name.size() > kMaxNameBytes)
    return refused_name(
        Code::invalid_argument,
        "the name of a region has " + std::to_string(kMaxNameBytes) + " bytes at most");
  const base::MutexLock lock(mutex_);
  const RegistryEntry* entry = entry_of(id);
  if (entry == nullptr) return refused_name(Code::not_found, "no such region");
  if (const auto published = names_.find(name); published != names_.end()) {
    if (published->second.serials == std::vector{id.serial}) {
      published->second.single = true;
      return {};
    }
    return refused_name(Code::invalid_argument,
                        "another region or set is published as " + quoted(name));
  }
  if (!name.empty())
    if (Status status = may_leave(*entry, name); !status.ok()) return status;
  if (name.empty())
    unpublish(entry->name);
  else
    replace_set(name, {id.serial}, true);
  return {};
}

Result<std::uint64_t> Registry::publish(std::string_view name, std::span<const RegionId> ids) {
  if (name.empty() || name.size() > kMaxNameBytes)
    return refused_name(Code::invalid_argument,
                        "the name of a set has 1 to " + std::to_string(kMaxNameBytes) + " bytes");
  if (ids.empty() || ids.size() > kMaxSet)
    return refused_name(Code::invalid_argument, "a set has 1 to " + std::to_string(kMaxSet) +
                                                    " regions, this one has " +
                                                    std::to_string(ids.size()));
  std::vector<std::uint64_t> serials;
  const base::MutexLock lock(mutex_);
  for (const RegionId& id : ids) {
    const RegistryEntry* entry = entry_of(id);
    if (entry == nullptr)
      return refused_name(Code::not_found, "number " + std::to_string(serials.size()) +
                                               " of the set is not registered in this Engine");
    if (Status status = may_leave(*entry, name); !status.ok()) return status;
    serials.push_back(id.serial);
  }
  return replace_set(name, std::move(serials), false);
}

std::string Registry::name(const RegionId& id) const {
  const base::MutexLock lock(mutex_);
  const RegistryEntry* entry = entry_of(id);
  return entry == nullptr ? std::string() : entry->name;
}

std::optional<PublishedSet> Registry::find_set(std::string_view name) const {
  const base::MutexLock lock(mutex_);
  const auto found = names_.find(name);
  if (found == names_.end()) return std::nullopt;
  return found->second;
}

Result<Registry::Description> Registry::describe(std::string_view name) const {
  const base::MutexLock lock(mutex_);
  const auto found = names_.find(name);
  if (found == names_.end()) return unpublished(name);
  Description all{.version = found->second.single ? 0 : found->second.version, .regions = {}};
  for (const std::uint64_t serial : found->second.serials)
    all.regions.push_back(entries_.at(serial).registration);
  return all;
}

Result<std::shared_ptr<const Registration>> Registry::find_name(std::string_view name,
                                                                std::uint64_t serial) const {
  const base::MutexLock lock(mutex_);
  const auto found = names_.find(name);
  if (found == names_.end()) return unpublished(name);
  const std::vector<std::uint64_t>& serials = found->second.serials;
  if (serial == 0 && serials.size() != 1)
    return refused_name(Code::invalid_argument, quoted(name) + " is a set of " +
                                                    std::to_string(serials.size()) +
                                                    " regions: Peer::lookup_set() imports it");
  const auto entry = entries_.find(serial == 0 ? serials.front() : serial);
  if (entry == entries_.end() || entry->second.name != name)
    return refused_name(Code::not_found, "the region is not of " + quoted(name) + " any more");
  return entry->second.registration;
}

/// Refuses to take one region out of a set of several: its readers would lose the set.
Status Registry::may_leave(const RegistryEntry& entry, std::string_view name) const {
  const auto old = names_.find(entry.name);
  if (entry.name == name || old == names_.end() || old->second.serials.size() == 1) return {};
  return refused_name(Code::invalid_argument, "the region is one of the set " + quoted(entry.name) +
                                                  ": publish that without it");
}

/// Publishes the regions as `name`, and unpublishes the sets of that name and of these regions.
/// Changes nothing if memory is short.
std::uint64_t Registry::replace_set(std::string_view name, std::vector<std::uint64_t> serials,
                                    bool single) {
  std::vector<std::string> names(serials.size(), std::string(name));
  decltype(names_) made;
  const PublishedSet& set =
      made.emplace(name, PublishedSet{last_version_ + 1, std::move(serials), single}).first->second;
  unpublish(name);
  for (const std::uint64_t serial : set.serials) unpublish(entries_.at(serial).name);
  for (std::size_t i = 0; i < names.size(); ++i)
    entries_.at(set.serials[i]).name = std::move(names[i]);
  names_.merge(made);
  return ++last_version_;
}

void Registry::unpublish(std::string_view name) {
  const auto found = names_.find(name);
  if (found == names_.end()) return;
  // From here on `name` may dangle: it may be the name of an entry.
  const auto removed = names_.extract(found);
  for (const std::uint64_t serial : removed.mapped().serials) entries_.at(serial).name.clear();
}

}  // namespace linkspan::memory
