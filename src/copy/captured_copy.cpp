#include "copy/captured_copy.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <list>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "copy/blocks_kernel.hpp"
#include "cuda/graph.hpp"

namespace linkspan::copy {
namespace {

constexpr unsigned kThreads = 512, kWarps = kThreads / 32;
constexpr std::size_t kListAt = 128;  // after the gate, in a cache line of its own

/// Is what the kernel has as LinkspanCapturedGate.
struct CapturedGate {
  std::uint32_t closed, entered;
  std::uint64_t left;  // and kRefused
  static constexpr std::uint64_t kRefused = std::uint64_t{1} << 63;
};
static_assert(sizeof(CapturedGate) <= kListAt);

/// Is what the kernel reads as LinkspanCaptured.
struct CapturedParameter {
  cuda::CUdeviceptr list, gate, counts;
  std::uint32_t count, ctas;
};
static_assert(sizeof(CapturedParameter) == 32);

std::uint64_t read(std::uint64_t& word) noexcept {
  return std::atomic_ref(word).load(std::memory_order_acquire);
}

/// The copies whose Engine has ended before their graph.
struct Orphans {
  base::Mutex mutex;
  std::list<std::shared_ptr<CapturedCopy>> all LINKSPAN_GUARDED_BY(mutex);
};

/// Cuts pieces as launch_blocks() does.
Result<std::vector<Piece>> entries_of(std::span<const Piece> pieces, unsigned ctas) {
  std::uint64_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.bytes;
  const std::uint64_t size =
      entry_bytes(pieces.size(), bytes, std::uint64_t{ctas} * kWarps, CapturedCopy::kMaxEntries);
  std::uint64_t count = 0;
  for (const Piece& piece : pieces) count += (piece.bytes + size - 1) / size;
  if (count > CapturedCopy::kMaxEntries)
    return Status(Code::unsupported, Scope::request,
                  "a captured post of " + std::to_string(count) + " pieces of 64 KiB or less; at " +
                      "most " + std::to_string(CapturedCopy::kMaxEntries) +
                      ": prepare and capture several");
  std::vector<Piece> entries;
  entries.reserve(count);
  for (const Piece& piece : pieces)
    for (std::uint64_t done = 0; done < piece.bytes; done += size)
      entries.push_back({.to = piece.to + done,
                         .from = piece.from + done,
                         .bytes = std::min(piece.bytes - done, size)});
  return entries;
}

}  // namespace

/// Mapped host memory: the counts, which the kernel adds to and has as LinkspanCapturedCounts, and
/// what was last read of the gate.
struct CapturedCopy::HostPart {
  alignas(128) std::uint64_t completed;
  std::uint64_t refused;
  alignas(128) std::uint64_t left;
  std::uint64_t closed_and_entered, answered;
};

Result<std::shared_ptr<CapturedCopy>> CapturedCopy::create(std::shared_ptr<cuda::Topology> topology,
                                                           const cuda::Device& device,
                                                           std::span<const Piece> pieces,
                                                           unsigned most_ctas) {
  const auto entries = entries_of(pieces, most_ctas);
  if (!entries.ok()) return entries.status();
  const auto scope = device.enter();
  if (!scope.ok()) return scope.status();
  auto on_gpu = cuda::DeviceBuffer::create(
      *scope, kListAt + std::max<std::size_t>(entries->size(), 1) * sizeof(Piece));
  if (!on_gpu.ok()) return on_gpu.status();
  auto host = cuda::PinnedBuffer::create(*scope, sizeof(HostPart));
  if (!host.ok()) return host.status();
  auto stream = cuda::Stream::create(*scope);
  if (!stream.ok()) return stream.status();
  auto owned = std::make_unique<CapturedMemory>(
      CapturedMemory{*std::move(on_gpu), *std::move(host), *std::move(stream)});
  const auto count = static_cast<std::uint32_t>(entries->size());
  // Shared by the service, handles, and the Orphans after the Engine's end.
  const std::shared_ptr<CapturedCopy> made(
      new CapturedCopy(std::move(topology), device, std::move(owned), count,
                       std::clamp(count, 1u, std::max(most_ctas, 1u))));
  if (Status status = made->upload(*scope, *entries); !status.ok()) return status;
  return made;
}

Status CapturedCopy::upload(const cuda::DeviceScope& scope, std::span<const Piece> entries) {
  std::memset(memory_->host.data(), 0, sizeof(HostPart));
  const cuda::CUdeviceptr gate = memory_->device.address();
  Status status = memory_->stream.fill(scope, gate, 0, kListAt);
  if (status.ok() && !entries.empty())
    status = memory_->stream.copy(scope, gate + kListAt,
                                  reinterpret_cast<std::uintptr_t>(entries.data()),
                                  entries.size_bytes());
  return status.ok() ? memory_->stream.synchronize(scope) : status;
}

CapturedCopy::~CapturedCopy() { topology_->destroyer()->end(std::move(memory_)); }

CapturedCopy::HostPart& CapturedCopy::host() const noexcept {
  return *reinterpret_cast<HostPart*>(memory_->host.data());
}

Status CapturedCopy::record(const cuda::DeviceScope& scope, cuda::CUstream stream,
                            cuda::CUgraph graph) {
  const auto ended = [](void* data) {
    static_cast<CapturedCopy*>(data)->graph_ended_.store(true, std::memory_order_release);
  };
  if (Status status = cuda::give_to_graph(scope, graph, this, ended); !status.ok()) return status;
  CapturedParameter parameter{
      .list = memory_->device.address() + kListAt,
      .gate = memory_->device.address(),
      .counts = memory_->host.device_address(&host().completed),
      .count = entries_,
      .ctas = ctas_,
  };
  void* parameters[] = {&parameter};
  return cuda::launch_in(scope, stream, device_.copy_captured(), ctas_, kThreads, parameters);
}

std::uint64_t CapturedCopy::completed() const noexcept { return read(host().completed); }
std::uint64_t CapturedCopy::refused() const noexcept { return read(host().refused); }

void CapturedCopy::close_gate() {
  if (asked_ == 0) last_ask_ = ask();
}

/// Closes the gate and reads it: `left` before `entered`, because a CTA that leaves between the two
/// would else hide one that runs. `entered` wraps around.
Status CapturedCopy::ask() {
  ++asked_;
  const auto scope = device_.enter();
  if (!scope.ok()) return scope.status();
  cuda::Stream& stream = memory_->stream;
  const cuda::CUdeviceptr gate = memory_->device.address();
  const auto copy = [&](std::uint64_t& to, std::size_t from) {
    return stream.copy(*scope, memory_->host.device_address(&to), gate + from, sizeof to);
  };
  Status status = stream.write_value32(*scope, gate + offsetof(CapturedGate, closed), 1);
  if (status.ok()) status = copy(host().left, offsetof(CapturedGate, left));
  if (status.ok()) status = copy(host().closed_and_entered, offsetof(CapturedGate, closed));
  if (status.ok())
    status = stream.write_value(*scope, memory_->host.device_address(&host().answered), asked_);
  return status;
}

bool CapturedCopy::is_quiet() {
  if (quiet_) return true;
  if (last_ask_.ok() && read(host().answered) == asked_) {
    const std::uint64_t left = host().left & ~CapturedGate::kRefused;
    const auto entered = static_cast<std::uint32_t>(host().closed_and_entered >> 32);
    quiet_ =
        static_cast<std::uint32_t>(left) == entered && left == (completed() + refused()) * ctas_;
    if (quiet_) return true;
    last_ask_ = ask();
  } else if (last_ask_.ok()) {
    const auto scope = device_.enter();
    const Status status = scope.ok() ? memory_->stream.query(*scope) : scope.status();
    if (status.code() != Code::pending) last_ask_ = status;
  } else {
    last_ask_ = ask();
  }
  // A kernel ends with its context.
  return quiet_ = !last_ask_.ok() && last_ask_.scope() == Scope::process;
}

void CapturedCopy::keep_until_graph_ends(std::shared_ptr<CapturedCopy> copy) {
  static auto& orphans = *new Orphans;  // never destroyed: a graph may outlive all statics
  std::list<std::shared_ptr<CapturedCopy>> ended;  // may end a Topology, without the mutex
  const base::MutexLock lock(orphans.mutex);
  orphans.all.remove_if([&](const auto& each) {
    if (each->graph_has_ended()) ended.push_back(each);
    return each->graph_has_ended();
  });
  if (copy != nullptr) orphans.all.push_back(std::move(copy));
}

}  // namespace linkspan::copy
