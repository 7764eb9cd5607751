// GpuCopier's copies by one kernel on the SMs (kernels/copy_blocks.cu).
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "copy/blocks_kernel.hpp"
#include "copy/gpu_copier.hpp"

namespace linkspan::copy {
namespace {

// The kernel reads the list as LinkspanPiece.
static_assert(sizeof(Piece) == 24 && std::is_standard_layout_v<Piece>);

// 132 CTAs of 512 threads copy 8192 blocks of 4 KiB in 99 us, 16 CTAs in 105 (two H200). One warp
// has 4 KiB in flight at a time, so lists with fewer entries than warps are cut finer.
constexpr unsigned kThreads = 512, kWarps = kThreads / 32;
constexpr std::uint64_t kMinEntry = 4096;

/// Is what the kernel reads as LinkspanPages.
struct PagesParameter {
  std::uint64_t to, from, page_bytes, part_bytes;
  cuda::CUdeviceptr to_index, from_index;
  std::uint32_t to_last, from_last, count, parts;
};
static_assert(sizeof(PagesParameter) == 64);

/// Is what the kernel reads as LinkspanPagesOfPairs.
struct PairsParameter {
  PagesParameter pages{};
  std::uint32_t pairs = 0, list_step = 0;
  std::array<PageBases, GpuCopier::kPairs> at{};
};
static_assert(sizeof(PairsParameter) + 3 * sizeof(std::uint64_t) <= 4096);

/// Is what the kernel writes for a page outside its memory, or for one of several such pages.
struct RefusedPage {
  static constexpr std::uint64_t kIsOne = std::uint64_t{1} << 63, kOfTarget = kIsOne >> 1;
  std::uint64_t bits;
  std::uint64_t position() const noexcept { return (bits & (kOfTarget - 1)) >> 32; }
  std::string text(std::uint64_t first) const {
    return "page " + std::to_string(first + position()) +
           " leaves its region: " + std::to_string(static_cast<std::uint32_t>(bits)) +
           " in the list of the " + ((bits & kOfTarget) != 0 ? "target" : "source") +
           "; other pages may have been copied";
  }
};

static_assert(GpuCopier::kPages < 1u << 30);  // RefusedPage::position()

}  // namespace

std::uint64_t entry_bytes(std::uint64_t pieces, std::uint64_t bytes, std::uint64_t warps,
                          std::uint64_t list) noexcept {
  std::uint64_t entry = GpuCopier::kListBytes;
  while (entry > kMinEntry && bytes / entry < warps && pieces + bytes / (entry / 2) <= list)
    entry /= 2;
  return entry;
}

Status launch_blocks(const cuda::DeviceScope& scope, const cuda::Stream& stream,
                     const cuda::Device& device, unsigned most_ctas, const BlockList& list,
                     std::span<const Piece> pieces, std::uint64_t bytes) {
  const std::uint64_t entry =
      entry_bytes(pieces.size(), bytes, std::uint64_t{most_ctas} * kWarps, list.entries.size());
  unsigned count = 0;
  for (const Piece& piece : pieces) {
    for (std::uint64_t done = 0; done < piece.bytes; done += entry)
      list.entries[count++] = {.to = piece.to + done,
                               .from = piece.from + done,
                               .bytes = std::min(piece.bytes - done, entry)};
  }
  const unsigned ctas = std::min(count, most_ctas);
  cuda::CUdeviceptr address = list.address, abort = list.abort_flag, aborted = list.aborted;
  void* parameters[] = {&address, &count, &abort, &aborted};
  return stream.launch(scope, device.copy_blocks(), ctas, kThreads, parameters);
}

GpuCopier::KernelArgs* GpuCopier::idle_args(CopyQueue& queue) {
  for (KernelArgs& args : queue.kernel_args) {
    if (args.state == KernelArgs::ArgsState::clearing &&
        std::atomic_ref(args.memory->cleared).load(std::memory_order_acquire) != 0)
      args.state = KernelArgs::ArgsState::idle;
    if (args.state == KernelArgs::ArgsState::idle) return &args;
  }
  return nullptr;
}

GpuCopier::SubmitResult GpuCopier::queue_kernel(const cuda::DeviceScope& scope,
                                                const CopyQueue& queue, const KernelArgs& args,
                                                const Order& order, std::uint64_t bytes) const {
  std::atomic_ref(args.memory->aborted).store(0, std::memory_order_relaxed);
  std::atomic_ref(args.memory->refused).store(0, std::memory_order_relaxed);
  const unsigned ctas = std::min(*ctas_, order.ctas);
  Status launched = order.pages.to_index.empty()
                        ? launch_blocks(scope, queue.stream, device_, ctas,
                                        {.entries = args.memory->list,
                                         .address = memory_.device_address(&args.memory->list),
                                         .abort_flag = args.abort_flag,
                                         .aborted = memory_.device_address(&args.memory->aborted)},
                                        order.pieces, bytes)
                        : launch_pages(scope, queue, args, order.pages, ctas);
  return {.entries = launched.ok() ? 1u : 0u, .status = std::move(launched)};
}

Status GpuCopier::launch_pages(const cuda::DeviceScope& scope, const CopyQueue& queue,
                               const KernelArgs& args, const PageList& pages,
                               unsigned most_ctas) const {
  const std::uint64_t each = pages.to_index.size(), count = each * (1 + pages.more.size());
  const std::uint64_t bytes = count * pages.page_bytes;
  const std::uint64_t part =
      entry_bytes(count, bytes, std::uint64_t{most_ctas} * kWarps, ~std::uint64_t{0});
  const std::uint64_t parts = (pages.page_bytes + part - 1) / part;
  const bool own_lists = pages.lists() != 1;
  cuda::CUdeviceptr to_list = pages.to_list, from_list = pages.from_list;
  if (to_list == 0) {
    const std::size_t index_bytes = pages.to_index.size_bytes(), all = index_bytes * pages.lists();
    auto* const lists = reinterpret_cast<std::byte*>(&args.memory->list);
    std::memcpy(lists, pages.to_index.data(), index_bytes);  // a loop takes 4 us longer for 8192
    std::memcpy(lists + all, pages.from_index.data(), index_bytes);
    for (std::size_t i = 1; i < pages.lists(); ++i) {
      std::memcpy(lists + i * index_bytes, pages.more[i - 1].to_index, index_bytes);
      std::memcpy(lists + all + i * index_bytes, pages.more[i - 1].from_index, index_bytes);
    }
    to_list = memory_.device_address(&args.memory->list);
    from_list = to_list + all;
  }
  PagesParameter parameter{.to = pages.to,
                           .from = pages.from,
                           .page_bytes = pages.page_bytes,
                           .part_bytes = part,
                           .to_index = to_list,
                           .from_index = from_list,
                           .to_last = own_lists ? ~std::uint32_t{0} : pages.to_last,
                           .from_last = own_lists ? ~std::uint32_t{0} : pages.from_last,
                           .count = static_cast<std::uint32_t>(each),
                           .parts = static_cast<std::uint32_t>(parts)};
  const auto ctas = std::min<std::uint64_t>((count * parts + kWarps - 1) / kWarps, most_ctas);
  cuda::CUdeviceptr abort = args.abort_flag,
                    aborted = memory_.device_address(&args.memory->aborted),
                    refused = memory_.device_address(&args.memory->refused);
  const auto launch = [&](cuda::CUfunction kernel, void* first) {
    void* parameters[] = {first, &abort, &aborted, &refused};
    return queue.stream.launch(scope, kernel, static_cast<unsigned>(ctas), kThreads, parameters);
  };
  if (pages.more.empty()) return launch(device_.copy_pages(), &parameter);
  PairsParameter of_pairs;
  of_pairs.pages = parameter;
  of_pairs.pairs = static_cast<std::uint32_t>(1 + pages.more.size());
  of_pairs.list_step = own_lists ? parameter.count : 0;
  of_pairs.at[0] = {.to = pages.to, .from = pages.from};
  std::ranges::transform(pages.more, of_pairs.at.begin() + 1, &FurtherPages::bases);
  return launch(device_.copy_pages_of_pairs(), &of_pairs);
}

void GpuCopier::request_abort(KernelArgs& args) {
  if (args.state != KernelArgs::ArgsState::busy) return;
  const auto scope = device_.enter();
  if (scope.ok() && aborts_.write_value(*scope, args.abort_flag, 1).ok())
    args.state = KernelArgs::ArgsState::aborting;
}

Status GpuCopier::retire_args(KernelArgs& args, std::uint64_t first) {
  const RefusedPage refused{std::atomic_ref(args.memory->refused).load(std::memory_order_relaxed)};
  Status page_error;
  if (refused.bits != 0)
    page_error = Status(Code::invalid_argument, Scope::request, refused.text(first));
  if (args.state != KernelArgs::ArgsState::aborting) {
    args.state = KernelArgs::ArgsState::idle;
    return page_error;
  }
  // The write that requested the abort may still be in flight. The flag is cleared after it, and
  // the args are idle once that was written. If the driver refuses, these args are not used again.
  args.state = KernelArgs::ArgsState::clearing;
  std::atomic_ref(args.memory->cleared).store(0, std::memory_order_relaxed);
  const auto scope = device_.enter();
  if (scope.ok() && aborts_.write_value(*scope, args.abort_flag, 0).ok())
    static_cast<void>(
        aborts_.write_value(*scope, memory_.device_address(&args.memory->cleared), 1));
  if (std::atomic_ref(args.memory->aborted).load(std::memory_order_relaxed) != 0)
    return {Code::canceled, Scope::request, "the copy was aborted"};
  return page_error;
}

}  // namespace linkspan::copy
