#include "engine/registration/keys.hpp"

#include <string>

#include "memory/descriptor.hpp"

namespace linkspan::engine {
namespace {

bool has_fds(const memory::PublishedKey& key) { return !key.fds.empty() || key.last_fd; }

/// Returns why a remote peer gets no key.
std::string no_network_key(const Transports& transports, std::string_view name,
                           const std::string& left_out) {
  std::string wires;
  for (const auto& transport : transports)
    if (transport->capabilities().leaves_host)
      wires.append(wires.empty() ? "" : ", ").append(transport->name());
  std::string what = name.empty() ? "the message's memory" : "\"" + std::string(name) + "\"";
  what += " is reached through " + left_out + ", which a peer over TCP is not; ";
  what += wires.empty() ? "no transport of this release leaves the host"
                        : wires + " leaves the host, but has no key for it";
  return what + ": on one host connect to a unix: address";
}

Result<std::shared_ptr<const Keys>> publish(const Transports& transports,
                                            const memory::Region& region, bool wires_alone) {
  // Shared with the exchanges that send them.
  auto keys = std::make_shared<Keys>(transports.size());
  Status refused;
  bool any = false;
  for (std::size_t i = 0; i < transports.size(); ++i) {
    if (wires_alone && !transports[i]->capabilities().leaves_host) continue;
    auto key = transports[i]->publish(region);
    if (key.ok()) {
      (*keys)[i] = *std::move(key);
      any = true;
    } else if (!is_declined(key.status())) {
      (void)retract_everywhere(transports, region, true);
      return key.status();
    } else if (refused.ok()) {
      refused = key.status();
    }
  }
  if (any) return std::shared_ptr<const Keys>(std::move(keys));
  if (!refused.ok()) return refused;
  return Status(Code::unsupported, Scope::request, "no transport leaves the host");
}

}  // namespace

Result<std::shared_ptr<const Keys>> publish_everywhere(const Transports& transports,
                                                       const memory::Region& region) {
  return publish(transports, region, false);
}

Result<std::shared_ptr<const Keys>> publish_to_networks(const Transports& transports,
                                                        const memory::Region& region) {
  return publish(transports, region, true);
}

bool is_declined(const Status& status) noexcept {
  switch (status.code()) {
    case Code::unsupported:
    case Code::invalid_argument:
    case Code::unreachable:
    case Code::permission_denied:
      return true;
    default:
      return false;
  }
}

Status retract_everywhere(const Transports& transports, const memory::Region& region,
                          bool immediately) {
  Status status;
  for (const auto& transport : transports) {
    Status retracted = transport->retract(region, immediately);
    if (retracted.code() == Code::not_found) continue;  // it published nothing, or has retracted it
    if (status.ok()) status = retracted;
  }
  return status;
}

bool reaches(const transport::Transport& transport, bool remote) noexcept {
  const transport::Capabilities& can = transport.capabilities();
  return remote ? can.leaves_host : !can.remote_only;
}

Result<control::ExportedRegion> export_region(const Transports& transports,
                                              const memory::Region& region, const Keys& keys,
                                              std::string_view name, bool remote) {
  const memory::Region::Facts& facts = region.facts();
  memory::Descriptor descriptor{.name = std::string(name),
                                .id = facts.id,
                                .kind = facts.kind,
                                .peers = facts.peers,
                                .gpu = facts.gpu,
                                .bytes = facts.bytes,
                                .keys = {}};
  control::ExportedRegion out;
  std::string left_out;
  for (std::size_t i = 0; i < transports.size(); ++i) {
    const auto& key = keys[i];
    if (!key) continue;
    if (!reaches(*transports[i], remote) || (remote && has_fds(*key))) {
      left_out.append(left_out.empty() ? "" : ", ").append(transports[i]->name());
      continue;
    }
    auto fds = memory::fds_for_peer(*key);
    if (!fds.ok()) return fds.status();
    out.fds.insert(out.fds.end(), std::move_iterator(fds->begin()), std::move_iterator(fds->end()));
    descriptor.keys.push_back(
        {.transport = std::string(transports[i]->name()),
         .bytes = key->bytes,
         .fd_count = static_cast<std::uint32_t>(key->fds.size()) + (key->last_fd ? 1u : 0u),
         .bearer = key->bearer});
  }
  if (descriptor.keys.empty())
    return Status(Code::unreachable, Scope::request, no_network_key(transports, name, left_out));
  out.descriptor = memory::encode(descriptor);
  return out;
}

}  // namespace linkspan::engine
