#include "transport/nccl_net/tcpx/unpack.hpp"

#include <algorithm>
#include <string>

#include "copy/blocks_kernel.hpp"
#include "copy/chooser.hpp"
#include "copy/gpu_copier.hpp"

namespace linkspan::transport::nccl_net::tcpx {
namespace {

constexpr std::size_t kMarkLine = 128;  // the mark has cache lines of its own
constexpr unsigned kThreads = 512, kWarps = kThreads / 32, kCtasPerSm = 2;
constexpr std::size_t kSteps = MarkedStream::kEntries / 2 - 1;  // between two marks

/// Has the layout of the kernel's LinkspanUnpack.
struct Parameter {
  cuda::CUdeviceptr list;
  std::array<cuda::CUdeviceptr, Unpacker::kRequests> pools;
  std::uint32_t count;
};
static_assert(sizeof(Parameter) == 8 + 32 * 8 + 8);

Status refused(const std::string& what, Where at = {}) {
  return {Code::invalid_argument, Scope::request, what, at};
}

constexpr std::size_t list_bytes(std::size_t entry) {
  return (Unpacker::kEntries * entry + kMarkLine - 1) / kMarkLine * kMarkLine;
}

}  // namespace

Result<Unpack> choose_unpack(std::string_view option, std::optional<Unpack> set, Unpack fallback) {
  if (option.empty()) return set.value_or(fallback);
  const auto method = parse_unpack(option);
  if (!method)
    return refused("no unpack is called \"" + std::string(option) + "\": " + kUnpackRemedy);
  return *method;
}

Result<std::unique_ptr<Unpacker>> Unpacker::create(const cuda::Device& device, Unpack method,
                                                   const KernelBounds& bounds,
                                                   const base::Clock& clock) {
  const auto sms = static_cast<unsigned>(std::max(device.info().sm_count, 1));
  const unsigned ctas = std::min(bounds.ctas.value_or(~0u), sms * kCtasPerSm);
  if (method == Unpack::kernel) {
    if (!device.kernels().ok()) return device.kernels();
    if (ctas == 0)
      return Status(Code::unsupported, Scope::request,
                    "copies may take no CTAs here (LINKSPAN_COPY_CTAS or "
                    "EngineOptions::copy_ctas is 0), so that no kernel unpacks");
  }
  const auto scope = device.enter();
  if (!scope.ok()) return scope.status();
  const std::size_t each =
      list_bytes(sizeof(UnpackEntry)) + (method == Unpack::host ? kHostBytes : 0);
  auto memory = cuda::PinnedBuffer::create(*scope, kMarkLine + kBatches * each);
  if (!memory.ok()) return memory.status();
  auto flag = copy::CompletionFlag::create(*scope, *memory, 0, false);
  if (!flag.ok()) return flag.status();
  auto stream = cuda::Stream::create(*scope);
  if (!stream.ok()) return stream.status();
  return std::unique_ptr<Unpacker>(
      new Unpacker(device, method, ctas, clock, *std::move(memory),
                   MarkedStream(device, clock, *std::move(flag), *std::move(stream))));
}

Unpacker::Unpacker(const cuda::Device& device, Unpack method, unsigned ctas,
                   const base::Clock& clock, cuda::PinnedBuffer memory, MarkedStream stream)
    : device_(device),
      method_(method),
      ctas_(ctas),
      clock_(clock),
      memory_(std::move(memory)),
      stream_(std::move(stream)) {
  std::size_t at = kMarkLine;
  for (UnpackBatch& batch : batches_) {
    batch.entries = {reinterpret_cast<UnpackEntry*>(memory_.data() + at), 0};
    at += list_bytes(sizeof(UnpackEntry));
    if (method_ != Unpack::host) continue;
    batch.staging = memory_.data() + at;
    at += kHostBytes;
  }
}

Result<Unpacker::UnpackId> Unpacker::begin(std::span<const UnpackRequest> requests) {
  if (!failure_.ok()) return failure_;
  const auto bytes = check(requests);
  if (!bytes.ok()) return bytes.status();
  poll_stream();
  if (!failure_.ok()) return failure_;
  UnpackBatch& batch = of(last_ + 1);
  if (batch.id != 0) return Status::no_resource();
  lay_out(batch, requests, cut_of(requests));
  const base::Time now = clock_.now();
  last_due_ = std::max(now, last_due_) +
              copy::earliest_time(copy::Method::sm_kernel, copy::Link::same_gpu, *bytes, 1);
  batch.due = last_due_;
  batch.polled_at = now;
  batch.id = ++last_;
  feed();
  if (batch.begun != 0 || batch.status.ok()) return batch.id;
  Status failed = std::move(batch.status);
  batch.id = 0;
  --last_;
  fed_ = std::min(fed_, last_);
  return failed;
}

/// Returns the sum of the bytes if a batch takes the requests.
Result<std::uint64_t> Unpacker::check(std::span<const UnpackRequest> requests) const {
  if (requests.size() > kRequests)
    return refused(std::to_string(requests.size()) + " receives to unpack at once, " +
                   std::to_string(kRequests) + " are the most");
  const std::uint64_t most = method_ == Unpack::kernel ? copy::GpuCopier::kListBytes : kMaxCopy;
  std::uint64_t bytes = 0, entries = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const UnpackRequest& request = requests[i];
    if (request.block == nullptr) return refused("receive " + std::to_string(i) + " has no block");
    bytes += request.block->bytes();
    // There may be 16k entries: checking each takes as long as moving it.
    if (request.block->largest() <= most) {
      entries += request.block->entries().size();
      continue;
    }
    for (const LoadMeta& entry : request.block->entries()) entries += (entry.len + most - 1) / most;
  }
  if (entries > kEntries)
    return refused("the receives have " + std::to_string(entries) + " entries of at most " +
                   std::to_string(most) + " bytes, of which " + std::to_string(kEntries) +
                   " go at once");
  if (method_ == Unpack::host && bytes > kHostBytes)
    return refused("the receives have " + std::to_string(bytes) + " bytes, of which " +
                   std::to_string(kHostBytes) + " go through host memory at once");
  return bytes;
}

/// Returns the largest size of a list entry; larger fragments are split.
std::uint64_t Unpacker::cut_of(std::span<const UnpackRequest> requests) const {
  if (method_ != Unpack::kernel) return kMaxCopy;
  std::uint64_t pieces = 0, bytes = 0;
  for (const UnpackRequest& request : requests) {
    pieces += request.block->entries().size();
    bytes += request.block->bytes();
  }
  return copy::entry_bytes(pieces, bytes, std::uint64_t{ctas_} * kWarps, kEntries);
}

void Unpacker::lay_out(UnpackBatch& batch, std::span<const UnpackRequest> requests,
                       std::uint64_t cut) const {
  UnpackEntry* next = batch.entries.data();
  batch.runs.clear();
  std::uint64_t staged = 0;
  for (std::uint32_t i = 0; i < requests.size(); ++i) {
    const UnpackRequest& request = requests[i];
    batch.pools[i] = request.bounce;
    const auto add = [&next, i, cut](const LoadMeta& piece, std::uint64_t to) {
      const auto entry = [i](std::uint32_t from, std::uint32_t bytes, std::uint64_t at) {
        return UnpackEntry{.from = from, .bytes = bytes & 0xffffff, .pool = i & 0xff, .to = at};
      };
      if (piece.len <= cut) {
        *next++ = entry(piece.src_off, piece.len, to);
        return;
      }
      for (std::uint64_t done = 0; done < piece.len; done += cut)
        *next++ = entry(static_cast<std::uint32_t>(piece.src_off + done),
                        static_cast<std::uint32_t>(std::min(piece.len - done, cut)), to + done);
    };
    if (method_ != Unpack::host) {
      for (const LoadMeta& piece : request.block->entries())
        add(piece, request.destination + piece.dst_off);
      continue;
    }
    std::uint64_t run_end = ~std::uint64_t{0};  // in the receive
    for (const LoadMeta& piece : request.block->entries()) {
      if (piece.dst_off != run_end)
        batch.runs.push_back(
            {.staged = staged, .bytes = 0, .to = request.destination + piece.dst_off});
      add(piece, memory_.device_address(batch.staging) + staged);
      batch.runs.back().bytes += piece.len;
      run_end = piece.dst_off + piece.len;
      staged += piece.len;
    }
  }
  batch.entries = {batch.entries.data(), next};
  batch.steps = method_ != Unpack::kernel ? batch.entries.size() + batch.runs.size()
                : batch.entries.empty()   ? 0
                                          : 1;
  batch.begun = 0;
  batch.mark = 0;
  batch.status = {};
}

void Unpacker::feed() {
  for (; fed_ < last_; ++fed_) {
    UnpackBatch& batch = of(fed_ + 1);
    while (batch.begun < batch.steps) {
      const std::size_t before = batch.begun;
      Status status = feed(batch);
      if (status.ok() && batch.begun == before) return;  // the stream is full
      if (status.ok()) continue;
      batch.steps = batch.begun;
      batch.status = status;
      if (status.scope() == Scope::process) return fail(status);
    }
  }
}

Status Unpacker::feed(UnpackBatch& batch) {
  const std::size_t some = std::min(batch.steps - batch.begun, kSteps);
  if (!stream_.room(some)) return {};
  const auto scope = device_.enter();
  if (!scope.ok()) return scope.status();
  Status status;
  const std::size_t before = batch.begun;
  while (batch.begun < before + some && status.ok()) {
    status = step(*scope, batch, batch.begun);
    if (status.ok()) ++batch.begun;
  }
  if (batch.begun == before) return status;
  const Status marked = stream_.mark(*scope, batch.begun - before, batch.mark);
  return status.ok() ? marked : status;
}

Status Unpacker::step(const cuda::DeviceScope& scope, const UnpackBatch& batch,
                      std::size_t number) const {
  if (method_ == Unpack::kernel) return launch(scope, batch);
  if (number < batch.entries.size()) {
    const UnpackEntry& entry = batch.entries[number];
    return stream_.get().copy(scope, entry.to, batch.pools[entry.pool] + entry.from, entry.bytes);
  }
  const Run& run = batch.runs[number - batch.entries.size()];
  return stream_.get().copy(scope, run.to, memory_.device_address(batch.staging) + run.staged,
                            run.bytes);
}

Status Unpacker::launch(const cuda::DeviceScope& scope, const UnpackBatch& batch) const {
  const auto count = static_cast<std::uint32_t>(batch.entries.size());
  Parameter parameter{
      .list = memory_.device_address(batch.entries.data()), .pools = batch.pools, .count = count};
  void* parameters[] = {&parameter};
  const unsigned ctas = std::min(ctas_, (count + kWarps - 1) / kWarps);
  return stream_.get().launch(scope, device_.unpack(), ctas, kThreads, parameters);
}

std::optional<Status> Unpacker::poll(UnpackId id) {
  UnpackBatch& batch = of(id);
  if (id == 0 || batch.id != id)
    return Status(Code::internal, Scope::request, "poll of a batch that is not in flight");
  if (!quiet(batch)) {
    poll_stream();
    feed();
  }
  if (!quiet(batch)) {
    batch.polled_at = clock_.now();
    return std::nullopt;
  }
  batch.id = 0;
  return std::move(batch.status);
}

base::Time Unpacker::expected(base::Time now) const {
  base::Time soonest = base::Time::max();
  for (const UnpackBatch& batch : batches_) {
    if (batch.id == 0) continue;
    if (quiet(batch) || batch.id > fed_) return now;
    soonest = std::min(soonest, copy::poll_hint(batch.due, batch.polled_at));
  }
  return soonest;
}

void Unpacker::poll_stream() {
  if (const Status status = stream_.poll(); !status.ok()) fail(status);
}

void Unpacker::fail(const Status& cause) {
  failure_ = cause;
  for (UnpackBatch& batch : batches_)
    if (batch.id != 0 && !quiet(batch)) batch.status = cause;
  stream_.end();
  fed_ = last_;
}

}  // namespace linkspan::transport::nccl_net::tcpx
