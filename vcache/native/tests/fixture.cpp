#include "vcache/native/tests/fixture.hpp"

#include <atomic>

#include "cuda/handles.hpp"

namespace linkspan::test {

GpuMemory::GpuMemory(Lender* lender, int gpu, std::uint64_t seed, std::uint64_t bytes)
    : lender_(lender), gpu_(gpu), seed_(seed) {
  if (lender_ == nullptr) {
    buffer_ = take(Buffer::create(MemoryKind::device, bytes, static_cast<unsigned>(gpu)));
    buffer_->fill(seed);
    return;
  }
  static std::atomic<unsigned> made{0};
  name_ = "memory " + std::to_string(++made);
  handle_ = lender_->lend(name_, gpu, bytes, seed);
}

GpuMemory::~GpuMemory() {
  if (lender_ != nullptr && lender_->lives()) lender_->free(name_);
}

Side GpuMemory::at(std::uint64_t offset) const {
  if (lender_ != nullptr)
    return {.gpu = gpu_, .handle = handle_, .offset = Buffer::kGuard + offset};
  return {
      .gpu = gpu_, .pointer = reinterpret_cast<std::uint64_t>(buffer_->data()), .offset = offset};
}

void GpuMemory::fill(std::uint64_t seed) {
  seed_ = seed;
  if (lender_ != nullptr)
    lender_->fill(name_, seed);
  else
    buffer_->fill(seed);
}

std::string GpuMemory::difference(const std::vector<Expected>& expected) const {
  return lender_ != nullptr ? lender_->difference(name_, seed_, expected)
                            : buffer_->difference(seed_, expected);
}

std::unique_ptr<Lender> NvlinkTransfer::lender_;

void NvlinkTransfer::SetUp() {
  if (const Status status = need_gpus(2); !status.ok()) GTEST_SKIP() << status.to_string();
}

void NvlinkTransfer::TearDownTestSuite() { lender_.reset(); }

Lender& NvlinkTransfer::lender() {
  if (lender_ == nullptr) lender_ = std::make_unique<Lender>();
  return *lender_;
}

void NvlinkTransfer::next_lender() { lender_.reset(); }

const cuda::Device& NvlinkTransfer::device(int gpu) {
  const auto& info = topology()->devices()[static_cast<std::size_t>(gpu)];
  return *take(topology()->activate(info.uuid));
}

cuda::CUstream NvlinkTransfer::stream(int gpu) {
  const cuda::DeviceScope scope = take(device(gpu).enter());
  return streams_.emplace_back(take(cuda::Stream::create(scope))).get();
}

bool NvlinkTransfer::simulated() { return topology()->devices()[0].name.starts_with("Simulated"); }

}  // namespace linkspan::test
