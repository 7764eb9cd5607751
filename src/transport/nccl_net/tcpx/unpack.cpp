#include "transport/nccl_net/tcpx/unpack.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "copy/blocks_kernel.hpp"
#include "copy/chooser.hpp"
#include "copy/cma.hpp"
#include "copy/gpu_copier.hpp"

namespace linkspan::transport::nccl_net::tcpx {
namespace {

constexpr std::size_t kMarkLine = 128;  // the mark has cache lines of its own
constexpr unsigned kThreads = 512, kWarps = kThreads / 32, kCtasPerSm = 2;
constexpr std::size_t kSteps = Unpacker::kStreamEntries / 2 - 1;  // between two marks

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
  std::memset(memory->data(), 0, kMarkLine);
  auto stream = cuda::Stream::create(*scope);
  if (!stream.ok()) return stream.status();
  return std::unique_ptr<Unpacker>(
      new Unpacker(device, method, ctas, clock, *std::move(memory), *std::move(stream)));
}

Unpacker::Unpacker(const cuda::Device& device, Unpack method, unsigned ctas,
                   const base::Clock& clock, cuda::PinnedBuffer memory, cuda::Stream stream)
    : device_(device),
      method_(method),
      ctas_(ctas),
      clock_(clock),
      memory_(std::move(memory)),
      stream_(std::move(stream)) {
  std::size_t at = kMarkLine;
  for (UnpackBatch& batch : batches_) {
    batch.list = reinterpret_cast<UnpackEntry*>(memory_.data() + at);
    batch.list_device = memory_.device_address() + at;
    at += list_bytes(sizeof(UnpackEntry));
    if (method_ != Unpack::host) continue;
    batch.staging = memory_.data() + at;
    batch.staging_device = memory_.device_address() + at;
    at += kHostBytes;
  }
}

Result<Unpacker::UnpackId> Unpacker::begin(std::span<const UnpackRequest> requests) {
  if (!failure_.ok()) return failure_;
  const auto bytes = check(requests);
  if (!bytes.ok()) return bytes.status();
  poll();
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
    if (request.host != nullptr && method_ != Unpack::host)
      return refused("receive " + std::to_string(i) + " goes to host memory, where " +
                     name_of(method_) + " does not unpack: `host` does");
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
  UnpackEntry* next = batch.list;
  batch.runs.clear();
  batch.host_runs.clear();
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
    std::vector<Run>& runs = request.host != nullptr ? batch.host_runs : batch.runs;
    std::uint64_t run_end = ~std::uint64_t{0};  // in the receive
    for (const LoadMeta& piece : request.block->entries()) {
      if (piece.dst_off != run_end)
        runs.push_back({.staged = staged,
                        .bytes = 0,
                        .to = request.destination + piece.dst_off,
                        .host = request.host != nullptr ? request.host + piece.dst_off : nullptr});
      add(piece, batch.staging_device + staged);
      runs.back().bytes += piece.len;
      run_end = piece.dst_off + piece.len;
      staged += piece.len;
    }
  }
  batch.entries = static_cast<std::uint32_t>(next - batch.list);
  batch.steps =
      method_ == Unpack::kernel ? (batch.entries != 0 ? 1 : 0) : batch.entries + batch.runs.size();
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
  if (in_stream_ + some + 1 > kStreamEntries) return {};
  const auto scope = device_.enter();
  if (!scope.ok()) return scope.status();
  Status status;
  const std::size_t before = batch.begun;
  while (batch.begun < before + some && status.ok()) {
    status = step(*scope, batch, batch.begun);
    if (status.ok()) ++batch.begun;
  }
  if (batch.begun == before) return status;
  if (between_.empty()) ask_at_ = clock_.now() + copy::kOverdue;
  between_.push_back(static_cast<unsigned>(batch.begun - before) + 1);
  in_stream_ += between_.back();
  batch.mark = ++marks_;
  const Status marked = stream_.write_value(*scope, memory_.device_address(), marks_);
  if (marked.ok()) return status;
  ask_at_ = clock_.now();  // the mark will not be written, so only the stream shows the end
  return status.ok() ? marked : status;
}

Status Unpacker::step(const cuda::DeviceScope& scope, const UnpackBatch& batch,
                      std::size_t number) const {
  if (method_ == Unpack::kernel) return launch(scope, batch);
  if (number < batch.entries) {
    const UnpackEntry& entry = batch.list[number];
    return stream_.copy(scope, entry.to, batch.pools[entry.pool] + entry.from, entry.bytes);
  }
  const Run& run = batch.runs[number - batch.entries];
  return stream_.copy(scope, run.to, batch.staging_device + run.staged, run.bytes);
}

Status Unpacker::launch(const cuda::DeviceScope& scope, const UnpackBatch& batch) const {
  Parameter parameter{.list = batch.list_device, .pools = batch.pools, .count = batch.entries};
  void* parameters[] = {&parameter};
  const unsigned ctas = std::min(ctas_, (batch.entries + kWarps - 1) / kWarps);
  return stream_.launch(scope, device_.unpack(), ctas, kThreads, parameters);
}

std::optional<Status> Unpacker::poll(UnpackId id) {
  UnpackBatch& batch = of(id);
  if (id == 0 || batch.id != id)
    return Status(Code::internal, Scope::request, "poll of a batch that is not in flight");
  if (!quiet(batch)) {
    poll();
    feed();
  }
  if (!quiet(batch)) {
    batch.polled_at = clock_.now();
    return std::nullopt;
  }
  if (batch.status.ok()) {
    std::vector<copy::Piece> pieces;
    for (const Run& run : batch.host_runs)
      pieces.push_back({.to = reinterpret_cast<std::uintptr_t>(run.host),
                        .from = reinterpret_cast<std::uintptr_t>(batch.staging + run.staged),
                        .bytes = run.bytes});
    batch.status = copy::copy_within(pieces);
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

bool Unpacker::quiet(const UnpackBatch& batch) const noexcept {
  return batch.id <= fed_ && batch.mark <= reached_;
}

void Unpacker::poll() {
  if (between_.empty()) return;
  const auto reach = [this](std::uint64_t mark) {
    for (; reached_ < mark; ++reached_) {
      in_stream_ -= between_.front();
      between_.pop_front();
    }
  };
  const std::uint64_t before = reached_;
  auto& reached_mark = *reinterpret_cast<std::uint64_t*>(memory_.data());
  reach(std::min(std::atomic_ref(reached_mark).load(std::memory_order_acquire), marks_));
  const base::Time now = clock_.now();
  if (reached_ != before) ask_at_ = now + copy::kOverdue;
  if (between_.empty() || now < ask_at_) return;
  ask_at_ = now + copy::kQueryInterval;
  const auto scope = device_.enter();
  const Status answer = scope.ok() ? stream_.query(*scope) : scope.status();
  if (answer.ok()) return reach(marks_);
  if (answer.scope() == Scope::process) fail(answer);
}  // pending, or the driver cannot answer now: not known to be quiet

void Unpacker::fail(const Status& cause) {
  failure_ = cause;
  for (UnpackBatch& batch : batches_)
    if (batch.id != 0 && !quiet(batch)) batch.status = cause;
  between_.clear();
  in_stream_ = 0;
  reached_ = marks_;
  fed_ = last_;
}

}  // namespace linkspan::transport::nccl_net::tcpx
