// linkspan.h: calls that return at once, and their futures.
#include "api/c/options.hpp"

using namespace linkspan;  // NOLINT(google-build-using-namespace): the functions of C are in none

namespace {

/// Makes a future by `call`. An error of the call itself is the future's.
template <class Call>
int begin(linkspan_future** future, std::initializer_list<c::PointerArgument> needed,
          c::TimeArgument time, const Call& call) {
  return c::make(future, needed, time,
                 [&](Duration limit) -> Result<c::FutureOfAny> { return {call(limit)}; });
}

/// Makes a handle of the result of a future of T; `name` says what T is.
template <class T, class Handle>
int result_of(const linkspan_future* future, const char* name, Handle** out) {
  return c::make(out, {{future, "future"}}, [&]() -> Result<T> {
    const auto* const its = std::get_if<Future<T>>(&future->is);
    return its == nullptr ? c::bad(std::string("the future is of no ") + name)
                          : its->wait(Duration::zero());
  });
}

}  // namespace

void linkspan_future_free(linkspan_future* future) { delete future; }

int linkspan_engine_connect_async(linkspan_engine* engine, const char* address,
                                  const linkspan_connect_options* options,
                                  linkspan_future** future) {
  return c::make(future, {{engine, "engine"}, {address, "address"}},
                 [&]() -> Result<c::FutureOfAny> {
                   const auto known = c::connect_options(options);
                   if (!known.ok()) return known.status();
                   return {engine->is.connect_async(address, *known)};
                 });
}

int linkspan_engine_deregister_async(linkspan_engine* engine, const linkspan_region* region,
                                     int64_t timeout, linkspan_future** future) {
  return begin(future, {{engine, "engine"}, {region, "region"}}, {"timeout", timeout},
               [&](Duration limit) { return engine->is.deregister_async(region->is, limit); });
}

int linkspan_engine_invalidate_async(linkspan_engine* engine, const linkspan_region* region,
                                     int64_t timeout, linkspan_future** future) {
  return begin(future, {{engine, "engine"}, {region, "region"}}, {"timeout", timeout},
               [&](Duration limit) { return engine->is.invalidate_async(region->is, limit); });
}

int linkspan_peer_lookup_async(const linkspan_peer* peer, const char* name, int64_t timeout,
                               linkspan_future** future) {
  return begin(future, {{peer, "peer"}, {name, "name"}}, {"timeout", timeout},
               [&](Duration limit) { return peer->is.lookup_async(name, limit); });
}

int linkspan_peer_lookup_set_async(const linkspan_peer* peer, const char* name,
                                   const linkspan_region_set* known, int64_t timeout,
                                   linkspan_future** future) {
  return begin(future, {{peer, "peer"}, {name, "name"}}, {"timeout", timeout}, [&](Duration limit) {
    return peer->is.lookup_set_async(name, limit, known == nullptr ? RegionSet() : known->is);
  });
}

int linkspan_future_done(const linkspan_future* future) {
  return future == nullptr || std::visit([](const AnyFuture& is) { return is.done(); }, future->is)
             ? 1
             : 0;
}

int linkspan_future_wait(const linkspan_future* future, int64_t timeout) {
  return c::run({{future, "future"}}, {"timeout", timeout}, [&](Duration limit) {
    return std::visit(
        [&](const auto& is) -> Status {
          auto outcome = is.wait(limit);
          if constexpr (std::is_same_v<decltype(outcome), Status>)
            return outcome;
          else
            return outcome.status();
        },
        future->is);
  });
}

int linkspan_future_cancel(const linkspan_future* future) {
  return c::run({{future, "future"}}, [&] {
    std::visit([](const AnyFuture& is) { is.cancel(); }, future->is);
    return Status();
  });
}

int linkspan_future_peer(const linkspan_future* future, linkspan_peer** peer) {
  return result_of<Peer>(future, "peer", peer);
}
int linkspan_future_remote_region(const linkspan_future* future, linkspan_remote_region** region) {
  return result_of<RemoteRegion>(future, "remote region", region);
}
int linkspan_future_region_set(const linkspan_future* future, linkspan_region_set** set) {
  return result_of<RegionSet>(future, "region set", set);
}

int linkspan_completion_queue_add_future(linkspan_completion_queue* queue,
                                         const linkspan_future* future, uint64_t cookie) {
  return c::run({{queue, "queue"}, {future, "future"}}, [&] {
    return std::visit([&](const AnyFuture& is) { return queue->is.add(is, cookie); }, future->is);
  });
}
