#include "engine/keys.hpp"

#include <string>

#include "memory/descriptor.hpp"

namespace linkspan::engine {

Result<std::shared_ptr<const Keys>> publish_everywhere(const Transports& transports,
                                                       const memory::Region& region) {
  // Shared with the exchanges that send them.
  auto keys = std::make_shared<Keys>(transports.size());
  Status refused;
  bool any = false;
  for (std::size_t i = 0; i < transports.size(); ++i) {
    auto key = transports[i]->publish(region);
    if (key.ok()) {
      (*keys)[i] = *std::move(key);
      any = true;
    } else if (refused.ok()) {
      refused = key.status();
    }
  }
  if (!any) return refused;
  return std::shared_ptr<const Keys>(std::move(keys));
}

Status retract_everywhere(const Transports& transports, const memory::Region& region,
                          bool at_once) {
  Status status;
  for (const auto& transport : transports) {
    Status retracted = transport->retract(region, at_once);
    if (retracted.code() == Code::not_found) continue;  // it published nothing, or has let go
    if (status.ok()) status = retracted;
  }
  return status;
}

Result<control::Exported> exported(const Transports& transports, const memory::Region& region,
                                   const Keys& keys, std::string_view name) {
  const memory::Region::Facts& facts = region.facts();
  memory::Descriptor descriptor{.name = std::string(name),
                                .id = facts.id,
                                .kind = facts.kind,
                                .peers = facts.peers,
                                .gpu = facts.gpu,
                                .bytes = facts.bytes,
                                .keys = {}};
  control::Exported out;
  for (std::size_t i = 0; i < transports.size(); ++i) {
    const auto& key = keys[i];
    if (!key) continue;
    for (const base::Fd& fd : key->fds) {
      auto duplicate = fd.duplicate();
      if (!duplicate.ok()) return duplicate.status();
      out.fds.push_back(*std::move(duplicate));
    }
    if (key->last_fd) {
      auto last = key->last_fd();
      if (!last.ok()) return last.status();
      out.fds.push_back(*std::move(last));
    }
    descriptor.keys.push_back(
        {.transport = std::string(transports[i]->name()),
         .bytes = key->bytes,
         .fd_count = static_cast<std::uint32_t>(key->fds.size()) + (key->last_fd ? 1u : 0u),
         .bearer = key->bearer});
  }
  out.descriptor = memory::encode(descriptor);
  return out;
}

}  // namespace linkspan::engine
