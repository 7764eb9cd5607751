#include "tools/linkspan/measure/reference_copies.hpp"

#include <array>
#include <cstddef>
#include <memory>

#include "tools/linkspan/command_line/table.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr Duration kLimit = 10s;  // time limit of one bare copy
constexpr unsigned kStagingThreads = 8;
// Both sizes are measured, because the caches and the link decide which is faster.
constexpr std::array kStagingBufferBytes = {std::uint64_t{512} << 10, std::uint64_t{2} << 20};

std::byte* pointer(std::uint64_t address) noexcept {
  return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
}

/// Returns the map's entry for `key`; the first call creates it by `create`.
template <class Map, class Create>
auto find_or_make(Map& map, const typename Map::key_type& key, const Create& create)
    -> Result<typename Map::mapped_type::pointer> {
  auto& found = map[key];
  if (found == nullptr) {
    auto made = create();
    if (!made.ok()) return made.status();
    found = *std::move(made);
  }
  return found.get();
}

}  // namespace

Result<std::vector<Contestant>> ReferenceCopies::make(const Pair& pair, const Layout& layout,
                                                      unsigned depth, Against against,
                                                      const std::string& path) {
  const Place near = pair.local.place(), far = pair.remote.place;
  // The ceiling of shared memory is that of pageable or pinned memory, as the path treats it.
  const bool pageable = path.find("pageable") != std::string::npos || against == Against::staged;
  const Place host{.kind = pageable ? MemoryKind::host : MemoryKind::pinned};
  auto out = near.on_gpu() || far.on_gpu() ? by_gpu(pair, layout, depth, against, host)
                                           : by_cpu(pair, layout, depth);
  const bool same = near.on_gpu() || far.on_gpu()
                        ? far.on_gpu() && (near.on_gpu() || near == host)
                        : near.kind != MemoryKind::shared && far.kind != MemoryKind::shared;
  if (out.ok())
    for (Contestant& one : *out) one.same_bytes = same;
  return out;
}

ReferenceCopies::Contestants ReferenceCopies::by_gpu(const Pair& pair, const Layout& layout,
                                                     unsigned depth, Against against, Place host) {
  const Place near = pair.local.place(), far = pair.remote.place;
  const bool many = layout.pieces.size() != 1;
  if (many && (host.kind == MemoryKind::host || depth != 1)) return std::vector<Contestant>();
  auto found = route(pair, host);
  if (!found.ok()) return found.status();
  // Shared by the contestants.
  auto shared_route = std::make_shared<const Route>(*std::move(found));
  const std::string where =
      near.on_gpu() && far.on_gpu()
          ? "over bare code's own CUDA IPC mapping of the same memory"
          : our(host).place().name() + " memory of this process and " +
                (far.on_gpu() ? "bare code's own CUDA IPC mapping" : "its GPU");
  if (many) return by_kernel(shared_route, layout, against, where);
  if (against == Against::two_links)
    return by_two_links(std::move(shared_route), pair.remote, layout.payload, where);
  if (against != Against::staged || (near.on_gpu() && far.on_gpu()))
    return by_copies(std::move(shared_route), layout.payload, depth, against, where);
  auto staged = by_staging(shared_route, layout.payload, pair.to().on_gpu(), where);
  if (!staged.ok()) return staged.status();
  auto plain = by_copies(std::move(shared_route), layout.payload, 1, Against::sync, where);
  if (!plain.ok()) return plain.status();
  plain->back().ceiling = false;
  staged->push_back(std::move(plain->back()));
  return staged;
}

Result<Route> ReferenceCopies::route(const Pair& pair, Place host) const {
  const Memory& local = pair.local;
  const RemoteMemory& far = pair.remote;
  Route out{.device = local.device()};
  if (out.device == nullptr) {
    const auto found = gpus_.device(far.place.gpu);
    if (!found.ok()) return found.status();
    out.device = *found;
  }
  std::uint64_t remote_address = 0;
  if (far.place.on_gpu()) {
    auto mapping = cuda::IpcMapping::open(*out.device, far.memory.handle);
    if (!mapping.ok()) return mapping.status();
    remote_address = mapping->base() + far.memory.allocation_offset;
    out.mapping.emplace(*std::move(mapping));
  } else {
    remote_address = our(host).address();
  }
  const std::uint64_t near = local.place().on_gpu() ? local.address() : our(host).address();
  out.to = pair.to_remote() ? remote_address : near;
  out.from = pair.to_remote() ? near : remote_address;
  return out;
}

/// Returns the copy with cuStreamSynchronize last, if requested.
ReferenceCopies::Contestants ReferenceCopies::by_copies(std::shared_ptr<const Route> route,
                                                        std::uint64_t bytes, unsigned depth,
                                                        Against against, const std::string& where) {
  const auto copy =
      find_or_make(copies_, route->device, [&] { return bare::GpuCopy::create(*route->device); });
  if (!copy.ok()) return copy.status();
  std::vector<Contestant> out;
  out.push_back({.how = "cuMemcpyAsync + flag, " + where, .run = [=, gpu = *copy] {
                   return gpu->run(route->addresses(), bytes, kLimit, depth);
                 }});
  if (against == Against::sync && depth == 1)
    out.push_back({.how = "cuMemcpyAsync + cuStreamSynchronize, " + where, .run = [=, gpu = *copy] {
                     return gpu->run_synchronised(route->addresses(), bytes);
                   }});
  return out;
}

ReferenceCopies::Contestants ReferenceCopies::both_ways(std::span<const Pair> pairs,
                                                        std::uint64_t bytes) {
  std::vector<std::shared_ptr<const Route>> routes;
  std::vector<bare::GpuCopy*> copies;
  for (const Pair& pair : pairs) {
    auto found = route(pair, {});
    if (!found.ok()) return found.status();
    routes.push_back(std::make_shared<const Route>(*std::move(found)));
    const auto copy = find_or_make(copies_, routes.back()->device,
                                   [&] { return bare::GpuCopy::create(*routes.back()->device); });
    if (!copy.ok()) return copy.status();
    copies.push_back(*copy);
  }
  return std::vector{Contestant{.how = "cuMemcpyAsync + flag, both ways at once",
                                .run =
                                    [=] {
                                      return bare::GpuCopy::run_both(
                                          *copies[0], routes[0]->addresses(), *copies[1],
                                          routes[1]->addresses(), bytes, kLimit);
                                    },
                                .ceiling = false}};
}

Result<bare::KernelCopy*> ReferenceCopies::kernel_of(const cuda::Device& device) {
  return find_or_make(kernels_, &device, [&] { return bare::KernelCopy::create(device); });
}

ReferenceCopies::Contestants ReferenceCopies::over_regions(std::span<const Pair> pairs,
                                                           const Layout& layout) {
  auto routes = std::make_shared<std::vector<Route>>();
  std::vector<bare::KernelPiece> pieces;
  pieces.reserve(pairs.size() * layout.pieces.size());
  for (const Pair& pair : pairs) {
    auto found = route(pair, {});
    if (!found.ok()) return found.status();
    for (std::size_t i = 0; i < layout.to_index.size(); ++i)
      pieces.push_back({found->to + layout.to_index[i] * layout.page_bytes,
                        found->from + layout.from_index[i] * layout.page_bytes, layout.page_bytes});
    routes->push_back(*std::move(found));
  }
  const auto made = kernel_of(*routes->front().device);
  if (!made.ok()) return made.status();
  return std::vector{Contestant{
      .how = "one list of all regions in the GPU's memory + a kernel + flag, over bare code's own "
             "CUDA IPC mappings of the same memories",
      .run =
          [routes, list = std::move(pieces), kernel = *made, again = false]() mutable {
            (void)routes;  // keeps the mappings
            return kernel->run(list, kLimit, std::exchange(again, true), true);
          },
      .same_bytes = true}};
}

ReferenceCopies::Contestants ReferenceCopies::by_kernel(const std::shared_ptr<const Route>& route,
                                                        const Layout& layout, Against against,
                                                        const std::string& where) {
  const auto made = kernel_of(*route->device);
  if (!made.ok()) return made.status();
  bare::KernelCopy* const kernel = *made;
  std::vector<bare::KernelPiece> pieces;
  pieces.reserve(layout.pieces.size());
  for (const auto& [from, to, bytes] : layout.pieces)
    pieces.push_back({route->to + to, route->from + from, bytes});
  if (against == Against::captured) return by_graph(route, pieces, where);
  if (layout.page_bytes != 0) {
    const bare::KernelPages pages{route->to, route->from, layout.page_bytes, layout.to_index,
                                  layout.from_index};
    const bool on_gpu = against == Against::ready_on_gpu;
    const bool ready = on_gpu || against == Against::ready;
    return std::vector{
        Contestant{.how = std::string(ready ? "indices in " : "indices copied to ") +
                          (on_gpu ? "the GPU's" : "mapped") + " memory + a kernel + flag, " + where,
                   .run = [=, again = false]() mutable {
                     (void)route;  // keeps the mapping
                     return kernel->run(pages, kLimit, std::exchange(again, ready), on_gpu);
                   }}};
  }
  return std::vector{Contestant{.how = "list built in mapped memory + a kernel + flag, " + where,
                                .run = [=, list = std::move(pieces)] {
                                  (void)route;
                                  return kernel->run(list, kLimit);
                                }}};
}

ReferenceCopies::Contestants ReferenceCopies::by_graph(const std::shared_ptr<const Route>& route,
                                                       std::span<const bare::KernelPiece> pieces,
                                                       const std::string& where) {
  auto made = bare::KernelCopy::create(*route->device);  // its list is the graph's alone
  if (!made.ok()) return made.status();
  auto graph = bare::UserGraph::create(*route->device);
  if (!graph.ok()) return graph.status();
  if (Status s = (*made)->capture(pieces, **graph); !s.ok()) return s;
  // Shared by copies of the contestant.
  const std::shared_ptr<bare::KernelCopy> kernel = *std::move(made);
  const std::shared_ptr<bare::UserGraph> nodes = *std::move(graph);
  return std::vector{Contestant{
      .how = "a kernel whose list lies in the GPU's memory, as the node of a CUDA graph: " +
             std::to_string(kLaunches) + " launches + flag, " + where,
      .run = [route, kernel, nodes]() -> Result<Duration> {
        const auto took = nodes->run(kLaunches, kLimit);
        if (!took.ok()) return took.status();
        return *took / kLaunches;
      }}};
}

ReferenceCopies::Contestants ReferenceCopies::by_staging(std::shared_ptr<const Route> route,
                                                         std::uint64_t bytes, bool to_gpu,
                                                         const std::string& where) {
  std::vector<Contestant> out;
  for (const std::uint64_t buffer_bytes : kStagingBufferBytes) {
    const auto made = find_or_make(staged_, {route->device, buffer_bytes}, [&] {
      return bare::StagedCopy::create(*route->device, kStagingThreads, buffer_bytes);
    });
    if (!made.ok()) return made.status();
    out.push_back({.how = std::to_string(kStagingThreads) + " threads with pinned slots of " +
                          size_name(buffer_bytes) + ", " + where,
                   .run = [=, staged = *made] {
                     return staged->run(to_gpu, to_gpu ? route->to : route->from,
                                        pointer(to_gpu ? route->from : route->to), bytes, kLimit);
                   }});
  }
  return out;
}

/// Both are measured, because the copy engines decide which GPU copies the second hop faster.
ReferenceCopies::Contestants ReferenceCopies::by_two_links(std::shared_ptr<const Route> route,
                                                           const RemoteMemory& far,
                                                           std::uint64_t bytes,
                                                           const std::string& where) {
  const auto other = gpus_.device((far.place.gpu + 1) % gpus_.count());
  if (!other.ok()) return other.status();
  auto opened = cuda::IpcMapping::open(**other, far.memory.handle);
  if (!opened.ok()) return opened.status();
  auto mapping = std::make_shared<const cuda::IpcMapping>(*std::move(opened));
  const auto made = find_or_make(relays_, route->device,
                                 [&] { return bare::RelayCopy::create(*route->device, **other); });
  if (!made.ok()) return made.status();
  const auto one = [&](bare::RelayCopy::SecondHop second, const char* how) {
    return Contestant{
        .how = std::string("half through another GPU, ") + how + " in chunks, + flag, " + where,
        .run = [=, relay = *made, there = mapping->base() + far.memory.allocation_offset] {
          (void)mapping;  // keeps the mapping of `there`
          return relay->run(route->to, there, route->from, bytes, second, kLimit);
        }};
  };
  return std::vector{one(bare::RelayCopy::SecondHop::fetched, "fetched"),
                     one(bare::RelayCopy::SecondHop::pushed, "pushed")};
}

ReferenceCopies::Contestants ReferenceCopies::by_cpu(const Pair& pair, const Layout& layout,
                                                     unsigned depth) {
  if (layout.pieces.size() != 1) return std::vector<Contestant>();
  const std::uint64_t bytes = layout.payload;
  const bool near_shared = pair.local.place().kind == MemoryKind::shared;
  const bool shared = near_shared || pair.remote.place.kind == MemoryKind::shared;
  const bool read = !pair.to_remote();
  // Bare code does not map the peer's shared memory: private or shared memory of our own stands for
  // it.
  const std::uint64_t near = pair.local.address();
  const std::uint64_t far =
      shared ? our({.kind = near_shared ? MemoryKind::host : MemoryKind::shared}).address()
             : pair.remote.memory.address;
  // Where the kernel refuses such calls, the library goes another way, which has no bare code here.
  if (std::byte any{}; !shared && !cpu_.run_across(far_pid_, true, &any, far, 1).ok())
    return std::vector<Contestant>();
  const auto one = [=, this](std::uint64_t offset) {
    const std::uint64_t ours = near + offset, theirs = far + offset;
    if (!shared) return cpu_.run_across(far_pid_, read, pointer(ours), theirs, bytes);
    return read ? cpu_.run(pointer(ours), pointer(theirs), bytes)
                : cpu_.run(pointer(theirs), pointer(ours), bytes);
  };
  const std::string call = read ? "process_vm_readv" : "process_vm_writev";
  const auto all = [=]() -> Result<Duration> {
    Duration sum{0};
    for (unsigned i = 0; i < depth; ++i) {
      const auto took = one(i * bytes);
      if (!took.ok()) return took.status();
      sum += *took;
    }
    return sum;
  };
  return std::vector{Contestant{.how = (shared ? "memcpy in one process" : call) + ", " +
                                       std::to_string(threads_) + " threads",
                                .run = all}};
}

}  // namespace linkspan::tool
