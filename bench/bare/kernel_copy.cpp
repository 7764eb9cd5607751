#include "bench/bare/kernel_copy.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace linkspan::bare {
namespace {

constexpr unsigned kThreads = 512, kWarps = kThreads / 32;
constexpr std::uint64_t kMinEntry = 4096, kMaxEntry = 65536;  // of a warp

/// Has the layout of the kernel's parameter LinkspanPages.
struct PagesParameter {
  std::uint64_t to, from, page_bytes, part_bytes;
  cuda::CUdeviceptr to_index, from_index;
  std::uint32_t to_last, from_last, count, parts;
};
static_assert(sizeof(PagesParameter) == 64 && sizeof(KernelPiece) == 24);

void put_lists(const KernelPages& pages, std::byte* to) {
  std::memcpy(to, pages.to_index.data(), pages.to_index.size_bytes());
  std::memcpy(to + pages.to_index.size_bytes(), pages.from_index.data(),
              pages.from_index.size_bytes());
}

/// Puts entries of at most `entry` bytes.
void put_list(std::span<const KernelPiece> pieces, std::uint64_t entry, std::byte* to) {
  auto* list = reinterpret_cast<KernelPiece*>(to);
  for (const KernelPiece& piece : pieces)
    for (std::uint64_t done = 0; done < piece.bytes; done += entry)
      *list++ = {piece.to + done, piece.from + done, std::min(piece.bytes - done, entry)};
}

}  // namespace

Result<std::unique_ptr<KernelCopy>> KernelCopy::create(const cuda::Device& device) {
  if (!device.kernels().ok()) return device.kernels();
  auto scope = device.enter();
  if (!scope.ok()) return scope.status();
  auto stream = cuda::Stream::create(*scope);
  if (!stream.ok()) return stream.status();
  auto word = EndWord::create(*scope);
  if (!word.ok()) return word.status();
  auto aborted = EndWord::create(*scope);
  if (!aborted.ok()) return aborted.status();
  auto abort = cuda::DeviceBuffer::create(*scope, sizeof(std::uint64_t));
  if (!abort.ok()) return abort.status();
  if (Status s = stream->fill(*scope, abort->address(), 0, abort->bytes()); !s.ok()) return s;
  if (Status s = stream->synchronize(*scope); !s.ok()) return s;
  return std::unique_ptr<KernelCopy>(new KernelCopy(device, *std::move(stream), *std::move(word),
                                                    *std::move(aborted), *std::move(abort)));
}

Result<Duration> KernelCopy::run(const KernelPages& pages, Duration limit, bool again,
                                 bool on_gpu) {
  auto scope = device_.enter();
  if (!scope.ok()) return scope.status();
  const std::size_t count = pages.to_index.size(), index_bytes = count * sizeof(std::uint32_t);
  if (Status s = reserve(*scope, 2 * index_bytes); !s.ok()) return s;
  if (on_gpu && (!again || !gpu_list_)) {
    put_lists(pages, list_->data());
    if (Status s = upload(*scope, 2 * index_bytes); !s.ok()) return s;
  }

  const auto begin = Clock::now();
  if (!again && !on_gpu) put_lists(pages, list_->data());
  const cuda::CUdeviceptr lists = on_gpu ? gpu_list_->address() : list_->device_address();
  const std::uint64_t part = std::min(entry_bytes(count * pages.page_bytes), pages.page_bytes);
  const std::uint64_t parts = (pages.page_bytes + part - 1) / part;
  PagesParameter parameter{.to = pages.to,
                           .from = pages.from,
                           .page_bytes = pages.page_bytes,
                           .part_bytes = part,
                           .to_index = lists,
                           .from_index = lists + index_bytes,
                           .to_last = ~std::uint32_t{0},  // nothing is refused
                           .from_last = ~std::uint32_t{0},
                           .count = static_cast<std::uint32_t>(count),
                           .parts = static_cast<std::uint32_t>(parts)};
  cuda::CUdeviceptr abort = abort_.address(), aborted = aborted_.address(), refused = 0;
  void* parameters[] = {&parameter, &abort, &aborted, &refused};
  return launch(*scope, device_.copy_pages(), (count * parts + kWarps - 1) / kWarps, parameters,
                begin, limit);
}

Result<Duration> KernelCopy::run(std::span<const KernelPiece> pieces, Duration limit, bool again,
                                 bool on_gpu) {
  auto scope = device_.enter();
  if (!scope.ok()) return scope.status();
  auto [entry, count] = entries_of(pieces);
  if (Status s = reserve(*scope, count * sizeof(KernelPiece)); !s.ok()) return s;
  if (on_gpu && (!again || !gpu_list_)) {
    put_list(pieces, entry, list_->data());
    if (Status s = upload(*scope, count * sizeof(KernelPiece)); !s.ok()) return s;
  }

  const auto begin = Clock::now();
  if (!again && !on_gpu) put_list(pieces, entry, list_->data());
  cuda::CUdeviceptr address = on_gpu ? gpu_list_->address() : list_->device_address();
  cuda::CUdeviceptr abort = abort_.address(), aborted = aborted_.address();
  void* parameters[] = {&address, &count, &abort, &aborted};
  return launch(*scope, device_.copy_blocks(), count, parameters, begin, limit);
}

Status KernelCopy::capture(std::span<const KernelPiece> pieces, UserGraph& graph) {
  auto scope = device_.enter();
  if (!scope.ok()) return scope.status();
  auto [entry, count] = entries_of(pieces);
  if (Status s = reserve(*scope, count * sizeof(KernelPiece)); !s.ok()) return s;
  put_list(pieces, entry, list_->data());
  if (Status s = upload(*scope, count * sizeof(KernelPiece)); !s.ok()) return s;
  cuda::CUdeviceptr address = gpu_list_->address(), abort = abort_.address(),
                    aborted = aborted_.address();
  void* parameters[] = {&address, &count, &abort, &aborted};
  const unsigned ctas = ctas_of(count);
  return graph.capture([&](const cuda::DeviceScope& in_graph) {
    return graph.stream().launch(in_graph, device_.copy_blocks(), ctas, kThreads, parameters);
  });
}

KernelCopy::ListSize KernelCopy::entries_of(std::span<const KernelPiece> pieces) const {
  std::uint64_t bytes = 0;
  for (const KernelPiece& piece : pieces) bytes += piece.bytes;
  ListSize size{.entry = entry_bytes(bytes)};
  for (const KernelPiece& piece : pieces)
    size.count += static_cast<std::uint32_t>((piece.bytes + size.entry - 1) / size.entry);
  return size;
}

unsigned KernelCopy::ctas_of(std::uint64_t wanted) const {
  const auto sms = static_cast<std::uint64_t>(std::max(device_.info().sm_count, 1));
  return static_cast<unsigned>(std::min(wanted, sms));
}

Status KernelCopy::reserve(const cuda::DeviceScope& scope, std::uint64_t bytes) {
  if (list_ && list_->bytes() >= bytes) return {};
  auto list = cuda::PinnedBuffer::create(scope, bytes);
  if (!list.ok()) return list.status();
  list_ = *std::move(list);
  return {};
}

Status KernelCopy::upload(const cuda::DeviceScope& scope, std::uint64_t bytes) {
  auto memory = cuda::DeviceBuffer::create(scope, bytes);
  if (!memory.ok()) return memory.status();
  gpu_list_ = *std::move(memory);
  if (Status s =
          stream_.copy(scope, gpu_list_->address(), list_->device_address(), gpu_list_->bytes());
      !s.ok())
    return s;
  return stream_.synchronize(scope);
}

/// Returns the largest size that still gives work to every warp.
std::uint64_t KernelCopy::entry_bytes(std::uint64_t bytes) const {
  const auto sms = static_cast<std::uint64_t>(std::max(device_.info().sm_count, 1));
  return std::clamp(std::bit_floor(bytes / (sms * kWarps)), kMinEntry, kMaxEntry);
}

Result<Duration> KernelCopy::launch(const cuda::DeviceScope& scope, cuda::CUfunction kernel,
                                    std::uint64_t ctas, void** parameters, Clock::time_point begin,
                                    Duration limit) {
  if (Status s = stream_.launch(scope, kernel, ctas_of(ctas), kThreads, parameters); !s.ok())
    return s;
  if (Status s = word_.write(scope, stream_, ++runs_); !s.ok()) return s;
  if (Status s = word_.wait(scope, stream_, runs_, begin + limit); !s.ok()) return s;
  return Duration(Clock::now() - begin);
}

}  // namespace linkspan::bare
