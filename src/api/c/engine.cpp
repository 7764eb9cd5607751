// linkspan.h: the Engine and memory.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "api/c/options.hpp"
#include "memory/descriptor.hpp"

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

}  // namespace linkspan::c

const char* linkspan_version(void) { return LINKSPAN_VERSION; }
const char* linkspan_code_name(int code) {
  return code < 0 || code > LINKSPAN_INTERNAL ? "unknown" : name_of(static_cast<Code>(code));
}
const char* linkspan_last_error(void) { return c::text_of_failure(c::last_failure()); }
int linkspan_last_scope(void) { return static_cast<int>(c::last_failure().scope); }
void linkspan_text_free(char* text) { std::free(text); }

void linkspan_engine_free(linkspan_engine* engine) { delete engine; }
void linkspan_region_free(linkspan_region* region) { delete region; }
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

int linkspan_engine_find_peer(linkspan_engine* engine, const char* name, linkspan_peer** peer) {
  return c::make(peer, {{engine, "engine"}, {name, "name"}},
                 [&] { return engine->is.find_peer(name); });
}

int linkspan_engine_peers(linkspan_engine* engine, linkspan_peer** peers, size_t room,
                          size_t* count) {
  if (count != nullptr) *count = 0;
  if (peers != nullptr) std::fill_n(peers, room, nullptr);
  const void* const place = room == 0 ? engine : static_cast<const void*>(peers);
  return c::run({{engine, "engine"}, {place, "peers"}, {count, "count"}}, [&] {
    const std::vector<Peer> connected = engine->is.peers();
    std::vector<std::unique_ptr<linkspan_peer>> handles;
    for (std::size_t i = 0; i < std::min(room, connected.size()); ++i)
      handles.push_back(std::make_unique<linkspan_peer>(linkspan_peer{connected[i]}));
    for (std::size_t i = 0; i < handles.size(); ++i) peers[i] = handles[i].release();
    *count = connected.size();
    return Status();
  });
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
int linkspan_engine_addresses(linkspan_engine* engine, char** text) {
  return c::give_text(engine, text, [](const Engine& is) { return is.addresses(); });
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
    if (count > memory::kMaxSet)  // before room is made for them
      return c::bad("a set has 1 to " + std::to_string(memory::kMaxSet) +
                    " regions, this one has " + std::to_string(count));
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

int linkspan_engine_describe(linkspan_engine* engine, const char* name, void* buffer,
                             size_t* size) {
  return c::run({{engine, "engine"}, {name, "name"}, {size, "size"}}, [&] {
    const auto descriptor = engine->is.describe(name);
    const std::size_t room = std::exchange(*size, 0);
    if (!descriptor.ok()) return descriptor.status();
    const std::vector<std::byte> bytes = descriptor->serialize();
    *size = bytes.size();
    if (buffer == nullptr) return Status();
    if (room < bytes.size())
      return Status(Code::truncated, Scope::request,
                    "the Descriptor has " + std::to_string(bytes.size()) +
                        " bytes, the buffer has room for " + std::to_string(room));
    std::memcpy(buffer, bytes.data(), bytes.size());
    return Status();
  });
}

int linkspan_engine_lookup_descriptor(linkspan_engine* engine, const void* descriptor, size_t size,
                                      int64_t timeout, linkspan_peer** peer,
                                      linkspan_region_set** set) {
  if (set != nullptr) *set = nullptr;
  std::unique_ptr<linkspan_region_set> regions;
  const int code = c::make(
      peer, {{engine, "engine"}, {descriptor, "descriptor"}, {set, "set"}}, {"timeout", timeout},
      [&](Duration limit) -> Result<Peer> {
        regions = std::make_unique<linkspan_region_set>();
        const auto parsed = Descriptor::parse({static_cast<const std::byte*>(descriptor), size});
        if (!parsed.ok()) return parsed.status();
        auto found = engine->is.lookup(*parsed, limit);
        if (!found.ok()) return found.status();
        regions->is = std::move(found->regions);
        return std::move(found->peer);
      });
  if (code == LINKSPAN_OK && set != nullptr) *set = regions.release();
  return code;
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
