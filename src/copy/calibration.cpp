#include "copy/calibration.hpp"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "copy/blocks_kernel.hpp"

namespace linkspan::copy {
namespace {

constexpr unsigned kFew = 16, kMany = 1024, kLarge = 4;  // pieces: of 8 B, of 8 B, of all bytes
constexpr unsigned kTries = 3;
constexpr std::uint64_t kLittle = 8;

// Layout of the pinned memory: flags, the kernel's list, data.
constexpr std::size_t kCalibrationLine = 128, kAborted = kCalibrationLine,
                      kList = 2 * kCalibrationLine;
constexpr std::size_t kEntries = 16384, kData = kList + kEntries * sizeof(Piece);
// Layout of the GPU memory: the abort flag, data twice.
constexpr std::size_t kGpuData = kCalibrationLine;

}  // namespace

Result<std::unique_ptr<Calibration>> Calibration::create(const cuda::Device& device, unsigned ctas,
                                                         Duration limit) {
  const auto scope = device.enter();
  if (!scope.ok()) return scope.status();
  auto pinned = cuda::PinnedBuffer::create(*scope, kData + kBytes);
  if (!pinned.ok()) return pinned.status();
  std::fill_n(pinned->data(), kList, std::byte{0});
  auto gpu = cuda::DeviceBuffer::create(*scope, kGpuData + 2 * kBytes);
  if (!gpu.ok()) return gpu.status();
  auto stream = cuda::Stream::create(*scope);
  if (!stream.ok()) return stream.status();
  if (Status s = stream->fill(*scope, gpu->address(), 0, kCalibrationLine); !s.ok()) return s;
  return std::unique_ptr<Calibration>(new Calibration(device, ctas, limit, *std::move(pinned),
                                                      *std::move(gpu), *std::move(stream)));
}

Calibration::Calibration(const cuda::Device& device, unsigned ctas, Duration limit,
                         cuda::PinnedBuffer pinned, cuda::DeviceBuffer gpu, cuda::Stream stream)
    : device_(device),
      ctas_(ctas),
      limit_(limit),
      pinned_(std::move(pinned)),
      gpu_(std::move(gpu)),
      stream_(std::move(stream)) {}

const Rates* Calibration::rates(Link link) {
  const cuda::CUdeviceptr own = gpu_.address() + kGpuData;
  const cuda::CUdeviceptr other =
      link == Link::host ? pinned_.device_address() + kData : own + kBytes;
  return find_or_measure(link, {.to = own, .from = other, .bytes = kBytes}, nullptr);
}

const Rates* Calibration::rates_to(cuda::CUdeviceptr from, std::uint64_t bytes,
                                   std::shared_ptr<const void> mapping) {
  return find_or_measure(
      Link::peer, {.to = gpu_.address() + kGpuData, .from = from, .bytes = std::min(bytes, kBytes)},
      std::move(mapping));
}

const Rates* Calibration::find_or_measure(Link link, const Piece& piece,
                                          std::shared_ptr<const void> mapping) {
  const base::MutexLock lock(mutex_);
  std::optional<Rates>& known = known_.at(static_cast<std::size_t>(link));
  if (known) return &*known;
  if (piece.bytes < kMin || !is_quiet()) return nullptr;
  deadline_ = base::Clock::steady().now() + limit_;
  mapping_ = std::move(mapping);
  const auto engine = measure(Method::copy_engine, kFew, piece);
  const auto kernel = engine ? measure(Method::sm_kernel, kMany, piece) : engine;
  if (is_quiet()) mapping_.reset();
  if (!kernel) return nullptr;
  return &known.emplace(Rates{.engine = *engine, .kernel = *kernel});
}

/// Measures the start, the cost of a piece and the bandwidth by three sizes.
std::optional<Rate> Calibration::measure(Method method, unsigned many, const Piece& piece) {
  const Piece little{.to = piece.to, .from = piece.from, .bytes = kLittle};
  const auto one = best(method, little, 1), more = best(method, little, many);
  const auto all = best(method, piece, kLarge);
  if (!one || !more || !all) return std::nullopt;
  const double each = std::max(0.0, (*more - *one) / (many - 1));
  const double start = std::max(0.0, *one - each);
  // Half of it on an H200; less than a tenth is noise.
  const double moving = std::max(*all - start - kLarge * each, *all / 10);
  return Rate{.start_us = start,
              .piece_us = each,
              .bytes = static_cast<double>(kLarge * piece.bytes) / moving};
}

std::optional<double> Calibration::best(Method method, const Piece& piece, unsigned pieces) {
  const std::vector<Piece> list(pieces, piece);
  std::optional<double> least;
  for (unsigned i = 0; i <= kTries; ++i) {  // the first warms up
    const base::Time begin = base::Clock::steady().now();
    if (!run(method, list)) return std::nullopt;
    const std::chrono::duration<double, std::micro> took = base::Clock::steady().now() - begin;
    if (i != 0) least = std::min(least.value_or(took.count()), took.count());
  }
  return least;
}

/// Returns false if the copies were refused or did not end in time.
bool Calibration::run(Method method, std::span<const Piece> pieces) {
  if (!is_quiet()) return false;  // a run that timed out may still read the list
  const auto scope = device_.enter();
  if (!scope.ok()) return false;
  ++runs_;  // something may be in flight from now on
  Status status;
  if (method == Method::sm_kernel) {
    status = launch_blocks(*scope, stream_, device_, ctas_,
                           {.entries = {reinterpret_cast<Piece*>(pinned_.data() + kList), kEntries},
                            .address = pinned_.device_address() + kList,
                            .abort_flag = gpu_.address(),
                            .aborted = pinned_.device_address() + kAborted},
                           pieces, pieces.size() * pieces.front().bytes);
  } else {
    for (const Piece& each : pieces)
      if (status.ok()) status = stream_.copy(*scope, each.to, each.from, each.bytes);
  }
  if (!stream_.write_value(*scope, pinned_.device_address(), runs_).ok() || !status.ok())
    return false;
  while (!is_quiet())
    if (base::Clock::steady().now() > deadline_) return false;
  return true;
}

bool Calibration::is_quiet() const {
  auto& flag = *reinterpret_cast<std::uint64_t*>(pinned_.data());
  return std::atomic_ref(flag).load(std::memory_order_acquire) == runs_;
}

}  // namespace linkspan::copy
