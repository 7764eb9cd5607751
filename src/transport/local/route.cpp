#include "transport/local/route.hpp"

#include <algorithm>
#include <array>

#include "copy/chooser.hpp"

namespace linkspan::transport::local {
namespace {

/// The round trip of a message (50 us, measured over the simulated driver), and an estimate of the
/// time that the peer's reading thread needs for each request.
constexpr Duration kRequestTime = std::chrono::microseconds(50),
                   kRequestCost = std::chrono::microseconds(20);

static_assert(kHostChunk < copy::kMinRelayBytes);  // no bounce phase is relayed by other GPUs

/// Names of Mapped in its order, and of two reaches without a mapping.
constexpr std::array kReach = {"unmapped", "same_process", "cuda_ipc", "memfd",
                               "cuda_vmm", "cuda_pool",    "kernel",   "bounce"};
constexpr std::size_t kByKernel = 6, kByBounce = 7;

std::size_t reach_of(const RouteFacts& f, const Route& chosen) {
  if (chosen.where == Route::Where::both) return kByBounce;
  if (chosen.where == Route::Where::peer) return static_cast<std::size_t>(f.peer_mapped);
  if (chosen.method == copy::Method::cross_process || chosen.through_slot) return kByKernel;
  return static_cast<std::size_t>(f.mapped);
}

copy::ShapeFacts shape_facts(const RouteFacts& f) {
  return {.pieces = f.shape.blocks,
          .bytes = f.shape.bytes,
          .link = f.link,
          .kernel_available = f.kernel,
          .resident_available = f.resident && f.shape.hints.low_latency,
          .rates = f.rates};
}

copy::Method mapped_method(const RouteFacts& f) {
  if (!on_gpu(f.local) && !on_gpu(f.remote)) return copy::Method::cpu_threads;
  if (!f.local_dma || !f.remote_dma) return copy::Method::pageable;
  if (f.shape.gpu_indices && f.kernel) return copy::Method::sm_kernel;
  return copy::choose_gpu(shape_facts(f));
}

/// Returns whether the mean block is large enough for relays by other GPUs.
bool is_large(const RouteFacts& f) {
  return f.shape.blocks != 0 && f.shape.bytes / f.shape.blocks >= copy::kMinRelayBytes;
}

/// Returns the choice of the peer, which has the same rules.
copy::Method peer_method(const RouteFacts& f) {
  if (!on_gpu(f.local) && !on_gpu(f.remote)) return copy::Method::cpu_threads;
  if (f.remote == MemoryKind::host) return copy::Method::pageable;
  return copy::choose_gpu(shape_facts(f));
}

std::uint64_t chunk_bytes(const RouteFacts& f) { return f.bounce_on_gpu ? kGpuChunk : kHostChunk; }

std::uint64_t chunks(const RouteFacts& f) {
  return f.shape.bytes / chunk_bytes(f) + (f.shape.bytes % chunk_bytes(f) != 0);
}

/// Returns the part of the shape in one chunk.
BatchSummary chunk_shape(const RouteFacts& f) {
  const std::uint64_t count = std::max<std::uint64_t>(chunks(f), 1);
  return {.blocks = (f.shape.blocks + count - 1) / count, .bytes = f.shape.bytes / count};
}

Route bounce(const RouteFacts& f) {
  Route chosen{.where = Route::Where::both};
  const BatchSummary chunk = chunk_shape(f);
  const auto method = [&chunk](MemoryKind end, copy::Link link, bool kernel) {
    if (!on_gpu(end)) return copy::Method::cpu_threads;
    return copy::choose_gpu(
        {.pieces = chunk.blocks, .bytes = chunk.bytes, .link = link, .kernel_available = kernel});
  };
  if (f.bounce_on_gpu) {
    chosen.near_link = copy::Link::same_gpu;
    chosen.far_link = f.link;
  }
  chosen.method = method(f.local, chosen.near_link, f.own_kernel);
  chosen.far_method = method(f.remote, chosen.far_link, f.own_kernel);
  return chosen;
}

/// Returns whether the batch goes through a pinned slot: it is small, and to ask the peer takes
/// longer than two copies.
bool fits_slot(const RouteFacts& f) {
  return f.slots && f.cross_process && f.may_ask_peer && on_gpu(f.local) &&
         f.shape.bytes <= kSlotBatchBytes && f.shape.blocks <= kSlotBatchBlocks;
}

Route through_slot(const RouteFacts& f) {
  return {.where = Route::Where::here,
          .method = copy::choose_gpu({.pieces = f.shape.blocks,
                                      .bytes = f.shape.bytes,
                                      .link = copy::Link::host,
                                      .kernel_available = f.own_kernel}),
          .through_slot = true};
}

/// Estimates the rate of both copies.
double slot_gbps(const RouteFacts& f, const Route& chosen) {
  if (f.shape.bytes == 0) return 0;
  const Duration by_gpu =
      copy::expected_time(chosen.method, copy::Link::host, f.shape.bytes, f.shape.blocks);
  const Duration across = copy::expected_time(copy::Method::cross_process, copy::Link::host,
                                              f.shape.bytes, f.shape.blocks);
  return static_cast<double>(f.shape.bytes) /
         static_cast<double>(std::chrono::nanoseconds(by_gpu + across).count());
}

/// Estimates the rate: both phases of the first chunk, then the slower phase of each other chunk.
double bounced_gbps(const RouteFacts& f, const Route& chosen) {
  if (f.shape.bytes == 0) return 0;
  const BatchSummary chunk = chunk_shape(f);
  const Duration near =
      copy::expected_time(chosen.method, chosen.near_link, chunk.bytes, chunk.blocks, f.threads);
  const Duration far =
      copy::expected_time(chosen.far_method, chosen.far_link, chunk.bytes, chunk.blocks);
  const Duration others =
      std::max({near, far, kRequestCost}) * static_cast<std::int64_t>(chunks(f) - 1);
  const auto time = std::chrono::nanoseconds(near + kRequestTime + far + others);
  return static_cast<double>(f.shape.bytes) / static_cast<double>(time.count());
}

}  // namespace

Route route(const RouteFacts& f) noexcept {
  using enum Route::Where;
  const bool gpu = on_gpu(f.local) || on_gpu(f.remote);
  if (f.mapped != Mapped::nothing) return {here, mapped_method(f)};
  // Private memory of the peer. Between CPUs the kernel copies. A request to the peer would be a
  // detour: it would copy by the kernel as well.
  if (!gpu && f.cross_process) return {here, copy::Method::cross_process};
  if (fits_slot(f)) return through_slot(f);
  if (f.may_ask_peer && f.peer_can_map) return {peer, peer_method(f)};
  return f.may_ask_peer && f.bounce ? bounce(f) : Route{};
}

namespace {

std::string_view path(std::size_t reach, copy::Method method) {
  using Names = std::array<std::array<std::string, copy::kMethods>, kReach.size()>;
  // Never destroyed, because Engines at namespace scope may outlive it.
  static const Names& all = *new Names([] {
    Names names;
    for (std::size_t r = 0; r < kReach.size(); ++r)
      for (std::size_t m = 0; m < copy::kMethods; ++m)
        names[r][m] = std::string(kReach[r]) + "+" + copy::name_of(static_cast<copy::Method>(m));
    return names;
  }());
  return all[reach][static_cast<std::size_t>(method)];
}

}  // namespace

std::string_view path_of(const RouteFacts& f, const Route& chosen) {
  if (chosen.where == Route::Where::nowhere) return {};
  return path(reach_of(f, chosen), chosen.method);
}

std::string_view path_here(Mapped mapped, copy::Method method) {
  return path(static_cast<std::size_t>(mapped), method);
}

Explanation describe(const RouteFacts& f, const Route& chosen) {
  Explanation out;
  const auto refuse = [&out](std::string path, std::string_view reason) {
    out.refused.push_back({std::move(path), std::string(reason)});
  };
  const bool gpu = on_gpu(f.local) || on_gpu(f.remote);
  out.path = path_of(f, chosen);
  if (f.mapped == Mapped::nothing)
    refuse(on_gpu(f.remote) ? "cuda_ipc" : "memfd", f.why_not_mapped);
  const auto refuse_all_but_a_bounce = [&] {
    refuse("kernel+cross_process", gpu ? "one side is GPU memory" : f.why_no_cross_process);
    refuse("executed by the peer",
           f.may_ask_peer ? f.why_peer_cannot : std::string_view("the peer asked us"));
  };
  switch (chosen.where) {
    case Route::Where::here: {
      if (chosen.through_slot) {
        out.executor = "here";
        out.reason =
            "it is small: our GPU copies to or from pinned memory, and the kernel between that and "
            "the peer's private memory, without the peer";
        out.expected_gbps = slot_gbps(f, chosen);
        break;
      }
      const bool start_bounce = chosen.method == copy::Method::cross_process;
      out.executor = "here";
      out.reason = start_bounce
                       ? "the peer's memory is private, the kernel copies it without the peer"
                       : "the peer's region is mapped in this process";
      if (f.link == copy::Link::same_gpu && f.mapped != Mapped::same_process)
        out.reason +=
            "; both processes use one GPU: without MPS their kernels are time-sliced, copies are "
            "not";
      out.expected_gbps = copy::expected_gbps(chosen.method, f.link, f.shape.bytes, f.shape.blocks,
                                              f.threads, f.rates);
      if (f.rates != nullptr && !start_bounce && chosen.method != copy::Method::resident)
        out.reason += "; rates as measured in this process";
      if (chosen.method == copy::Method::pageable) {
        out.reason += "; the host memory is pageable: up to " + std::to_string(f.threads) +
                      " CPU threads copy it through pinned staging memory";
        refuse("copy_engine", "register the host memory with pin, or use allocate_shared");
      }
      if (chosen.method == copy::Method::copy_engine && f.to_gpu && is_large(f)) {
        if (f.links > 1) {
          out.expected_gbps = copy::relayed_gbps(f.shape.bytes, f.shape.blocks, f.links);
          out.reason += "; over " + std::to_string(f.links) + " PCIe links, " +
                        std::to_string(f.links - 1) + " of them through other GPUs";
        } else {
          refuse("copy_engine over several PCIe links", f.why_one_link);
        }
      } else if (f.links > 1) {
        refuse("copy_engine over " + std::to_string(f.links) + " PCIe links",
               "only copies to a GPU, from pinned memory, in blocks of " +
                   std::to_string(copy::kMinRelayBytes >> 20) + " MiB or more");
      }
      if (chosen.method == copy::Method::copy_engine && !f.kernel && f.shape.blocks > 8)
        refuse("sm_kernel", f.why_no_kernel);
      if (chosen.method == copy::Method::copy_engine && f.resident && !f.shape.hints.low_latency) {
        RouteFacts low_latency = f;
        low_latency.shape.hints.low_latency = true;
        if (mapped_method(low_latency) == copy::Method::resident)
          refuse("resident_kernel", "ask for it with TransferOptions::low_latency");
      }
      break;
    }
    case Route::Where::peer:
      if (!gpu && !f.cross_process) refuse("kernel+cross_process", f.why_no_cross_process);
      out.expected_gbps = copy::expected_gbps(chosen.method, f.link, f.shape.bytes, f.shape.blocks);
      out.executor = "peer";
      out.reason = "only the peer can reach both regions: it maps ours and copies";
      if (chosen.method == copy::Method::pageable)
        out.reason += ", its pageable memory through pinned staging memory";
      break;
    case Route::Where::both:
      refuse_all_but_a_bounce();
      if (on_gpu(f.local) && on_gpu(f.remote) && !f.bounce_on_gpu)
        refuse("bounce through GPU memory", f.why_no_gpu_bounce);
      out.expected_gbps = bounced_gbps(f, chosen);
      out.executor = "both";
      out.reason = std::string("neither side can map the other's memory: in chunks through ") +
                   (f.bounce_on_gpu ? "GPU" : "shared") +
                   " memory of ours that both map, each side copies between that and its own";
      break;
    case Route::Where::nowhere:
      refuse_all_but_a_bounce();
      out.reason = "no path";
      break;
  }
  return out;
}

}  // namespace linkspan::transport::local
