#include "tools/linkspan/ceiling.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr Duration kLimit = 10s;  // of one bare copy

void* pointer(std::uint64_t address) noexcept {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

Result<Duration> Ceiling::run(std::uint64_t bytes, unsigned depth) {
  if (gpu_ != nullptr) return gpu_->run(to_, from_, bytes, kLimit, depth);
  Duration all{0};
  for (unsigned i = 0; i < depth; ++i) {
    const auto one = run_cpu(i * bytes, bytes);
    if (!one.ok()) return one.status();
    all += *one;
  }
  return all;
}

Result<Duration> Ceiling::run_cpu(std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t to = to_ + offset, from = from_ + offset;
  if (across_ != 0)
    return cpu_->run_across(across_, read_, pointer(read_ ? to : from), read_ ? from : to, bytes);
  return cpu_->run(pointer(to), pointer(from), bytes);
}

Result<Ceiling> Ceilings::make(Op op, const Memory& local, const Far& far,
                               const std::string& path) {
  Ceiling out;
  const bool gpu = local.place().on_gpu() || far.place.on_gpu();
  const bool pageable = path.find("pageable") != std::string::npos;
  if (Status s = gpu ? by_gpu(out, op, local, far, pageable) : by_cpu(out, op, local, far); !s.ok())
    return s;
  return out;
}

Status Ceilings::by_gpu(Ceiling& out, Op op, const Memory& local, const Far& far, bool pageable) {
  const cuda::Device* device = local.device();
  if (device == nullptr) {
    auto found = gpus_.device(far.place.gpu);
    if (!found.ok()) return found.status();
    device = *found;
  }
  auto copy = copy_of(*device);
  if (!copy.ok()) return copy.status();
  out.gpu_ = *copy;

  // A shared memory has the ceiling of the kind as which it is treated.
  const Place host{.kind = pageable ? MemoryKind::host : MemoryKind::pinned};
  const auto reached = [&](Place place, std::uint64_t same) {
    return place.on_gpu() ? same : our(host).address();
  };
  std::uint64_t remote = 0;
  if (far.place.on_gpu()) {
    auto mapping = cuda::IpcMapping::open(*device, far.memory.handle);
    if (!mapping.ok()) return mapping.status();
    remote = mapping->base() + far.memory.lead;
    out.mapping_.emplace(*std::move(mapping));
  }
  remote = reached(far.place, remote);
  const std::uint64_t near = reached(local.place(), local.address());
  out.to_ = op == Op::write ? remote : near;
  out.from_ = op == Op::write ? near : remote;
  out.how_ = "cuMemcpyAsync + flag, ";
  if (local.place().on_gpu() && far.place.on_gpu())
    out.how_ += "over bare code's own CUDA IPC mapping of the same memory";
  else
    out.how_ += our(host).place().name() + " memory of this process and " +
                (far.place.on_gpu() ? "bare code's own CUDA IPC mapping" : "its GPU");
  return {};
}

Status Ceilings::by_cpu(Ceiling& out, Op op, const Memory& local, const Far& far) {
  const bool shared =
      local.place().kind == MemoryKind::shared || far.place.kind == MemoryKind::shared;
  std::uint64_t remote = far.memory.address;
  const std::string threads = ", " + std::to_string(threads_) + " threads";
  if (shared) {
    // The peer's mapping is not ours to touch: private and shared memory of our own.
    const bool near_shared = local.place().kind == MemoryKind::shared;
    remote = our({.kind = near_shared ? MemoryKind::host : MemoryKind::shared}).address();
    out.how_ = "memcpy in one process" + threads;
  } else {
    out.across_ = far_pid_;
    out.how_ = (op == Op::read ? "process_vm_readv" : "process_vm_writev") + threads;
  }
  out.cpu_ = &cpu_;
  out.read_ = op == Op::read;
  out.to_ = op == Op::write ? remote : local.address();
  out.from_ = op == Op::write ? local.address() : remote;
  return {};
}

Result<bare::GpuCopy*> Ceilings::copy_of(const cuda::Device& device) {
  auto& copy = copies_[&device];
  if (copy == nullptr) {
    auto made = bare::GpuCopy::create(device);
    if (!made.ok()) return made.status();
    copy = *std::move(made);
  }
  return copy.get();
}

}  // namespace linkspan::tool
