#include "transport/local/route.hpp"

#include <array>

#include "copy/chooser.hpp"

namespace linkspan::transport::local {
namespace {

/// 50 us for the message there and back (measured over the simulated driver) at the 4 GB/s by
/// which process_vm_readv lags behind.
constexpr std::uint64_t kWorthAsking = 256u << 10;

bool on_gpu(MemoryKind kind) { return kind == MemoryKind::device; }

/// By what this process, or the peer, or the kernel reaches the other side's memory.
enum class Reach : std::uint8_t { same_process, cuda_ipc, memfd, kernel };
constexpr std::array kReach = {"same_process", "cuda_ipc", "memfd", "kernel"};

Reach reach_of(const RouteFacts& f, const Route& chosen) {
  if (chosen.where == Route::Where::peer) return on_gpu(f.local) ? Reach::cuda_ipc : Reach::memfd;
  if (chosen.method == copy::Method::cross_process) return Reach::kernel;
  if (f.mapped == Mapped::same_process) return Reach::same_process;
  return f.mapped == Mapped::cuda_ipc ? Reach::cuda_ipc : Reach::memfd;
}

copy::ShapeFacts shape_facts(const RouteFacts& f) {
  return {.pieces = f.shape.blocks,
          .bytes = f.shape.bytes,
          .link = f.link,
          .kernel_available = f.kernel};
}

copy::Method mapped_method(const RouteFacts& f) {
  if (!on_gpu(f.local) && !on_gpu(f.remote)) return copy::Method::cpu_threads;
  if (!f.local_dma || !f.remote_dma) return copy::Method::pageable;
  return copy::choose_gpu(shape_facts(f));
}

/// As the peer will choose, which has the same rules.
copy::Method peer_method(const RouteFacts& f) {
  if (!on_gpu(f.local) && !on_gpu(f.remote)) return copy::Method::cpu_threads;
  if (f.remote == MemoryKind::host) return copy::Method::pageable;
  return copy::choose_gpu(shape_facts(f));
}

}  // namespace

Route route(const RouteFacts& f) noexcept {
  using enum Route::Where;
  const bool gpu = on_gpu(f.local) || on_gpu(f.remote);
  if (f.mapped != Mapped::nothing) return {here, mapped_method(f)};
  // Private memory of the peer: it can map ours and copy at full speed. Between CPUs the kernel can
  // copy too, slower but without waking the peer, which wins while the message takes longer.
  const bool ask = f.may_ask_peer && f.peer_can_map;
  if (!gpu && f.cross_process && (!ask || f.shape.bytes < kWorthAsking))
    return {here, copy::Method::cross_process};
  if (ask) return {peer, peer_method(f)};
  return {};
}

std::string_view path_of(const RouteFacts& f, const Route& chosen) {
  using Names = std::array<std::array<std::string, copy::kMethods>, kReach.size()>;
  static const Names all = [] {
    Names names;
    for (std::size_t reach = 0; reach < kReach.size(); ++reach)
      for (std::size_t method = 0; method < copy::kMethods; ++method)
        names[reach][method] =
            std::string(kReach[reach]) + "+" + copy::name_of(static_cast<copy::Method>(method));
    return names;
  }();
  if (chosen.where == Route::Where::nowhere) return {};
  return all[static_cast<std::size_t>(reach_of(f, chosen))]
            [static_cast<std::size_t>(chosen.method)];
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
  switch (chosen.where) {
    case Route::Where::here: {
      const bool cross = chosen.method == copy::Method::cross_process;
      out.executor = "here";
      out.reason = cross ? "the peer's memory is private, the kernel copies it without the peer"
                         : "the peer's region is mapped in this process";
      if (f.link == copy::Link::same_gpu && f.mapped == Mapped::cuda_ipc)
        out.reason +=
            "; both processes use one GPU: without MPS their kernels are time-sliced, copies are "
            "not";
      out.expected_gbps = copy::expected_gbps(chosen.method, f.link, f.shape.bytes, f.shape.blocks);
      if (chosen.method == copy::Method::pageable)
        refuse("copy_engine",
               "the host memory is pageable: register it with pin, or use allocate_shared");
      if (chosen.method == copy::Method::copy_engine && !f.kernel && f.shape.blocks > 8)
        refuse("sm_kernel", "the copy kernel is not loaded on this GPU");
      break;
    }
    case Route::Where::peer:
      if (!gpu && !f.cross_process) refuse("kernel+cross_process", f.why_no_cross_process);
      out.expected_gbps = copy::expected_gbps(chosen.method, f.link, f.shape.bytes, f.shape.blocks);
      out.executor = "peer";
      out.reason = "only the peer can reach both regions: it maps ours and copies";
      break;
    case Route::Where::nowhere:
      if (gpu)
        refuse("kernel+cross_process", "one side is GPU memory");
      else
        refuse("kernel+cross_process", f.why_no_cross_process);
      refuse("executed by the peer",
             f.may_ask_peer ? f.why_peer_cannot : std::string_view("the peer asked us"));
      out.reason = "no path";
      break;
  }
  return out;
}

}  // namespace linkspan::transport::local
