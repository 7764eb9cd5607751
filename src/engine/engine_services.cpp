#include "engine/engine_services.hpp"

#include "engine/handle_access.hpp"

namespace linkspan::engine {

EngineServices::EngineServices(const EngineImpl* engine, const EngineContext& context,
                               const std::atomic<bool>& closed)
    : inbox(context.log),
      buffers(*context.registry, context.topology.get(), context.transports),
      streams(context.topology.get()),
      submission(engine, context, streams, peers),
      captures(context, streams, peers),
      registrations(context, streams, peers, submission.pairs(), captures),
      directory(*context.registry, peers),
      imports(context, streams, peers, submission.pairs()),
      messages(context, buffers, streams, peers, imports, submission),
      windows(context, registrations, submission, peers),
      manager({.options = context.options,
               .identity = context.identity,
               .transports = context.transports,
               .peers = peers,
               .inbox = inbox,
               .progress = *context.progress,
               .log = context.log}),
      diagnostics({.context = context,
                   .peers = peers,
                   .manager = manager,
                   .inbox = inbox,
                   .windows = windows,
                   .pairs = submission.pairs(),
                   .captures = captures,
                   .closed = closed}) {}

Status EngineServices::deregister(const Region& region, Duration timeout, bool immediately) {
  const auto& registration = HandleAccess::registration(region);
  if (registration != nullptr) windows.end_on(*registration);
  Status status = registrations.end(region, timeout, immediately);
  if (status.ok()) windows.end_on(*registration);  // windows that were opened meanwhile
  return status;
}

void EngineServices::on_disconnected(control::Session& session) {
  const std::uint64_t peer = session.id();
  manager.on_disconnected(session);
  windows.end(peer, not_connected(peer));
  captures.end(peer, not_connected(peer));
  directory.forget_peer(peer);
  imports.end_lookups(peer, {Code::disconnected, Scope::peer, session.failure().what()});
}

}  // namespace linkspan::engine
