// linkspan.h: the Engine, memory, peers.
#include <cstdlib>
#include <cstring>

#include "api/c/options.hpp"

using namespace linkspan;  // NOLINT(google-build-using-namespace): the functions of C are in none

namespace linkspan::c {
namespace {

/// Keeps the status, not its text: no_resource is frequent and its text seldom asked for.
struct Failure {
  Status status;
  Scope scope = Scope::request;
  std::string text;
};

Failure& last_failure() noexcept {
  thread_local Failure last;
  return last;
}

const char* text_of_failure(Failure& failure) noexcept {
  try {
    if (failure.text.empty() && !failure.status.ok()) failure.text = failure.status.to_string();
    return failure.text.c_str();
  } catch (const std::exception&) {
    return "out of memory";
  }
}

}  // namespace

int answer(const Status& status) noexcept {
  if (status.ok()) return LINKSPAN_OK;
  last_failure() = {status, status.scope(), {}};
  return static_cast<int>(status.code());
}

int out_of_memory() noexcept {
  last_failure() = {{}, Scope::process, "out of memory"};  // short enough to need none
  return LINKSPAN_SYSTEM;
}

Status given(std::initializer_list<PointerArgument> all) {
  for (const auto& [pointer, name] : all)
    if (pointer == nullptr) return bad(std::string(name) + " is null");
  return {};
}

Result<Duration> duration(TimeArgument time) {
  if (time.nanoseconds < 0)
    return bad(std::string(time.name) + " is " + std::to_string(time.nanoseconds) +
               "; nanoseconds, not below zero");
  return Duration(time.nanoseconds);
}

namespace {

/// Copies the text that `call` makes of the handle for the caller.
template <class Handle, class Call>
int give_text(const Handle* handle, char** out, const Call& call) noexcept {
  if (out == nullptr) return run({{out, "the place for the text"}}, [] { return Status(); });
  *out = nullptr;
  int code = LINKSPAN_OK;
  const int ran = run({{handle, "the handle"}}, [&] {
    const std::string text = call(handle->is);
    *out = static_cast<char*>(std::malloc(text.size() + 1));
    if (*out != nullptr)
      std::memcpy(*out, text.c_str(), text.size() + 1);
    else
      code = out_of_memory();
    return Status();
  });
  return ran != LINKSPAN_OK ? ran : code;
}

}  // namespace
}  // namespace linkspan::c

const char* linkspan_version(void) { return LINKSPAN_VERSION; }
const char* linkspan_code_name(int code) {
  return code < 0 || code > LINKSPAN_INTERNAL ? "unknown" : name_of(static_cast<Code>(code));
}
const char* linkspan_last_error(void) { return c::text_of_failure(c::last_failure()); }
int linkspan_last_scope(void) { return static_cast<int>(c::last_failure().scope); }
void linkspan_text_free(char* text) { std::free(text); }

void linkspan_engine_free(linkspan_engine* engine) { delete engine; }
void linkspan_peer_free(linkspan_peer* peer) { delete peer; }
void linkspan_region_free(linkspan_region* region) { delete region; }
void linkspan_remote_region_free(linkspan_remote_region* region) { delete region; }
void linkspan_region_set_free(linkspan_region_set* set) { delete set; }
void linkspan_notifications_free(linkspan_notifications* notifications) { delete notifications; }

int linkspan_engine_open(const linkspan_engine_options* options, linkspan_engine** engine) {
  return c::make(engine, {}, [&]() -> Result<Engine> {
    const auto known = c::engine_options(options);
    if (!known.ok()) return known.status();
    return Engine::open(*known);
  });
}

int linkspan_engine_close(linkspan_engine* engine, int64_t timeout) {
  return c::run({{engine, "engine"}}, {"timeout", timeout},
                [&](Duration limit) { return engine->is.close(limit); });
}

int linkspan_engine_listen(linkspan_engine* engine, const char* address) {
  return c::run({{engine, "engine"}},
                [&] { return engine->is.listen(address == nullptr ? "" : address); });
}

int linkspan_engine_connect(linkspan_engine* engine, const char* address, int64_t timeout,
                            linkspan_peer** peer) {
  return c::make(peer, {{engine, "engine"}, {address, "address"}}, {"timeout", timeout},
                 [&](Duration limit) { return engine->is.connect(address, limit); });
}

int linkspan_engine_connect_with(linkspan_engine* engine, const char* address,
                                 const linkspan_connect_options* options, linkspan_peer** peer) {
  return c::make(peer, {{engine, "engine"}, {address, "address"}}, [&]() -> Result<Peer> {
    const auto known = c::connect_options(options);
    if (!known.ok()) return known.status();
    return engine->is.connect(address, *known);
  });
}

int linkspan_engine_accept(linkspan_engine* engine, int64_t timeout, linkspan_peer** peer) {
  return c::make(peer, {{engine, "engine"}}, {"timeout", timeout},
                 [&](Duration limit) { return engine->is.accept(limit); });
}

int linkspan_engine_progress(linkspan_engine* engine, size_t* ended) {
  return c::run({{engine, "engine"}}, [&] {
    const std::size_t now = engine->is.progress();
    if (ended != nullptr) *ended = now;
    return Status();
  });
}

int linkspan_engine_notifications(linkspan_engine* engine, int64_t timeout,
                                  linkspan_notifications** notifications) {
  return c::make(notifications, {{engine, "engine"}}, {"timeout", timeout},
                 [&](Duration limit) -> Result<std::vector<Notification>> {
                   return engine->is.notifications(limit);
                 });
}

int linkspan_engine_address(linkspan_engine* engine, char** text) {
  return c::give_text(engine, text, [](const Engine& is) { return is.address(); });
}
int linkspan_engine_dump(linkspan_engine* engine, char** text) {
  return c::give_text(engine, text, [](const Engine& is) { return is.dump(); });
}
int linkspan_engine_metrics(linkspan_engine* engine, char** text) {
  return c::give_text(engine, text, [](const Engine& is) { return is.metrics(); });
}

size_t linkspan_notifications_count(const linkspan_notifications* notifications) {
  return notifications == nullptr ? 0 : notifications->is.size();
}

int linkspan_notifications_at(const linkspan_notifications* notifications, size_t index,
                              uint64_t* peer_id, const void** message, size_t* bytes) {
  return c::run({{notifications, "notifications"}}, [&] {
    const std::size_t count = notifications->is.size();
    if (index >= count)
      return c::bad("notification " + std::to_string(index) + " of " + std::to_string(count));
    const Notification& one = notifications->is[index];
    if (peer_id != nullptr) *peer_id = one.peer;
    if (message != nullptr) *message = one.bytes.data();
    if (bytes != nullptr) *bytes = one.bytes.size();
    return Status();
  });
}

int linkspan_engine_register_memory(linkspan_engine* engine, void* pointer, uint64_t bytes,
                                    const linkspan_region_options* options,
                                    linkspan_region** region) {
  return c::make(region, {{engine, "engine"}}, [&]() -> Result<Region> {
    const auto known = c::region_options(options);
    if (!known.ok()) return known.status();
    return engine->is.register_memory(pointer, bytes, *known);
  });
}

int linkspan_engine_allocate_shared(linkspan_engine* engine, uint64_t bytes,
                                    const linkspan_region_options* options,
                                    linkspan_region** region) {
  return c::make(region, {{engine, "engine"}}, [&]() -> Result<Region> {
    const auto known = c::region_options(options);
    if (!known.ok()) return known.status();
    return engine->is.allocate_shared(bytes, *known);
  });
}

int linkspan_engine_deregister(linkspan_engine* engine, const linkspan_region* region,
                               int64_t timeout) {
  return c::run({{engine, "engine"}, {region, "region"}}, {"timeout", timeout},
                [&](Duration limit) { return engine->is.deregister(region->is, limit); });
}

int linkspan_engine_invalidate(linkspan_engine* engine, const linkspan_region* region,
                               int64_t timeout) {
  return c::run({{engine, "engine"}, {region, "region"}}, {"timeout", timeout},
                [&](Duration limit) { return engine->is.invalidate(region->is, limit); });
}

int linkspan_engine_publish(linkspan_engine* engine, const char* name,
                            const linkspan_region* region) {
  return c::run({{engine, "engine"}, {name, "name"}, {region, "region"}},
                [&] { return engine->is.publish(name, region->is); });
}

int linkspan_engine_publish_set(linkspan_engine* engine, const char* name,
                                const linkspan_region* const* regions, size_t count,
                                uint64_t* version) {
  return c::run({{engine, "engine"}, {name, "name"}, {regions, "regions"}}, [&] {
    std::vector<Region> all;
    all.reserve(count);
    for (const linkspan_region* each : std::span(regions, count)) {
      if (Status status = c::given({{each, "a region of the set"}}); !status.ok()) return status;
      all.push_back(each->is);
    }
    const auto published = engine->is.publish(name, all);
    if (published.ok() && version != nullptr) *version = *published;
    return published.status();
  });
}

uint64_t linkspan_region_bytes(const linkspan_region* region) {
  return region == nullptr ? 0 : region->is.bytes();
}
int linkspan_region_kind(const linkspan_region* region) {
  return region == nullptr ? LINKSPAN_MEMORY_HOST : static_cast<int>(region->is.kind());
}
void* linkspan_region_data(const linkspan_region* region) {
  return region == nullptr ? nullptr : region->is.data();
}

void linkspan_region_gpu(const linkspan_region* region, uint8_t uuid[16]) {
  const GpuUuid gpu = region == nullptr ? GpuUuid{} : region->is.gpu();
  if (uuid != nullptr) std::memcpy(uuid, gpu.data(), gpu.size());
}

uint64_t linkspan_remote_region_bytes(const linkspan_remote_region* region) {
  return region == nullptr ? 0 : region->is.bytes();
}
int linkspan_remote_region_kind(const linkspan_remote_region* region) {
  return region == nullptr ? LINKSPAN_MEMORY_HOST : static_cast<int>(region->is.kind());
}
uint64_t linkspan_remote_region_peer(const linkspan_remote_region* region) {
  return region == nullptr ? 0 : region->is.peer();
}
int linkspan_remote_region_name(const linkspan_remote_region* region, char** text) {
  return c::give_text(region, text, [](const RemoteRegion& is) { return is.name(); });
}

uint64_t linkspan_peer_id(const linkspan_peer* peer) { return peer == nullptr ? 0 : peer->is.id(); }
int linkspan_peer_state(const linkspan_peer* peer) {
  return peer == nullptr ? LINKSPAN_PEER_GONE : static_cast<int>(peer->is.state());
}
int linkspan_peer_name(const linkspan_peer* peer, char** text) {
  return c::give_text(peer, text, [](const Peer& is) { return is.name(); });
}

int linkspan_peer_close(const linkspan_peer* peer, int64_t timeout) {
  return c::run({{peer, "peer"}}, {"timeout", timeout},
                [&](Duration limit) { return peer->is.close(limit); });
}

int linkspan_peer_lookup(const linkspan_peer* peer, const char* name, int64_t timeout,
                         linkspan_remote_region** region) {
  return c::make(region, {{peer, "peer"}, {name, "name"}}, {"timeout", timeout},
                 [&](Duration limit) { return peer->is.lookup(name, limit); });
}

int linkspan_peer_lookup_set(const linkspan_peer* peer, const char* name, int64_t timeout,
                             linkspan_region_set** set) {
  return c::make(set, {{peer, "peer"}, {name, "name"}}, {"timeout", timeout},
                 [&](Duration limit) { return peer->is.lookup_set(name, limit); });
}

int linkspan_peer_await_version(const linkspan_peer* peer, const char* name, uint64_t above,
                                int64_t timeout, uint64_t* version) {
  return c::run({{peer, "peer"}, {name, "name"}}, {"timeout", timeout}, [&](Duration limit) {
    const auto found = peer->is.await_version(name, above, limit);
    if (found.ok() && version != nullptr) *version = *found;
    return found.status();
  });
}

int linkspan_peer_notify(const linkspan_peer* peer, const void* message, size_t bytes) {
  return c::run({{peer, "peer"}}, [&] {
    if (message == nullptr && bytes != 0)
      return c::bad("a notification of " + std::to_string(bytes) + " bytes at null");
    return peer->is.notify({static_cast<const std::byte*>(message), bytes});
  });
}

uint64_t linkspan_region_set_version(const linkspan_region_set* set) {
  return set == nullptr ? 0 : set->is.version;
}
size_t linkspan_region_set_count(const linkspan_region_set* set) {
  return set == nullptr ? 0 : set->is.regions.size();
}
int linkspan_region_set_at(const linkspan_region_set* set, size_t index,
                           linkspan_remote_region** region) {
  return c::make(region, {{set, "set"}}, [&]() -> Result<RemoteRegion> {
    const std::size_t count = set->is.regions.size();
    if (index >= count)
      return c::bad("region " + std::to_string(index) + " of " + std::to_string(count));
    return set->is.regions[index];
  });
}
