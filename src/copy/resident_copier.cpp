#include "copy/resident_copier.hpp"

#include <algorithm>
#include <atomic>
#include <string>

#include "copy/chooser.hpp"

namespace linkspan::copy {
namespace {

constexpr std::size_t kLineU64s = 8;  // as in kernels/resident.cu
constexpr std::size_t kLineBytes = kLineU64s * sizeof(std::uint64_t);
constexpr std::size_t kDone = ResidentCopier::kOrders * kLineBytes,
                      kExited = kDone + 2 * kLineBytes,
                      kMemory =
                          kExited +
                          2 * kLineBytes;  // counters of the kernel, each on a line of its own
constexpr std::uint32_t kExit = ~std::uint32_t{0};  // in place of a size
constexpr unsigned kResidentThreads = 512;

/// Is what the kernel reads as LinkspanResident.
struct ResidentParameter {
  cuda::CUdeviceptr commands, done, left;
  std::uint64_t next, launch, idle, stay;
  std::uint32_t lines;
};
static_assert(sizeof(ResidentParameter) == 64);

std::uint64_t* u64_at(const cuda::PinnedBuffer& memory, std::size_t offset) {
  return reinterpret_cast<std::uint64_t*>(memory.data() + offset);
}

std::uint64_t load(const cuda::PinnedBuffer& memory, std::size_t offset) {
  return std::atomic_ref(*u64_at(memory, offset)).load(std::memory_order_acquire);
}

/// Writes a command. Each u64 has the order's number, so the kernel accepts them in any order. What
/// the caller wrote before is visible to the kernel once it has seen all of them.
void write_command(const cuda::PinnedBuffer& memory, std::uint64_t number, const Piece& piece,
                   std::uint32_t bytes) {
  std::uint64_t* const line = u64_at(memory, number % ResidentCopier::kOrders * kLineBytes);
  const std::uint32_t content[] = {
      static_cast<std::uint32_t>(piece.to), static_cast<std::uint32_t>(piece.to >> 32),
      static_cast<std::uint32_t>(piece.from), static_cast<std::uint32_t>(piece.from >> 32), bytes};
  for (std::size_t i = 0; i < std::size(content); ++i)
    std::atomic_ref(line[i]).store(number << 32 | content[i], std::memory_order_release);
}

}  // namespace

Result<std::unique_ptr<ResidentCopier>> ResidentCopier::create(const cuda::Device& device,
                                                               const base::Clock& clock) {
  if (!device.kernels().ok()) return device.kernels();
  const auto scope = device.enter();
  if (!scope.ok()) return scope.status();
  auto memory = cuda::PinnedBuffer::create(*scope, kMemory);
  if (!memory.ok()) return memory.status();
  std::fill_n(memory->data(), kMemory, std::byte{0});
  auto stream = cuda::Stream::create(*scope);
  if (!stream.ok()) return stream.status();
  return std::unique_ptr<ResidentCopier>(
      new ResidentCopier(device, clock, *std::move(memory), *std::move(stream)));
}

ResidentCopier::ResidentCopier(const cuda::Device& device, const base::Clock& clock,
                               cuda::PinnedBuffer memory, cuda::Stream stream)
    : device_(device), clock_(clock), memory_(std::move(memory)), stream_(std::move(stream)) {}

ResidentCopier::~ResidentCopier() {
  if (has_exited() || !context_error_.ok()) return;
  write_command(memory_, submitted_ + 1, {}, kExit);
  if (const auto scope = device_.enter(); scope.ok()) (void)stream_.synchronize(*scope);
}

bool ResidentCopier::has_exited() const noexcept { return load(memory_, kExited) == launches_; }

Result<Ticket> ResidentCopier::start(const Order& order) {
  if (order.method != Method::resident || order.pieces.size() != 1 ||
      order.pieces[0].bytes > kMaxBytes || order.after != nullptr || order.release != nullptr)
    return Status(Code::invalid_argument, Scope::request,
                  "a resident kernel takes one piece of at most " + std::to_string(kMaxBytes) +
                      " bytes, in no stream's order");
  advance();
  if (!context_error_.ok()) return context_error_;
  const std::uint64_t number = submitted_ + 1;
  ResidentOrder& record = of(number);
  if (record.number != 0) return Status::no_resource();
  // Otherwise advance() launches it: what is in flight may have ended since then.
  if (quiet_ == submitted_ && has_exited())
    if (Status launched = launch(); !launched.ok()) return launched;
  const Piece& piece = order.pieces[0];
  write_command(memory_, number, piece, static_cast<std::uint32_t>(piece.bytes));
  const base::Time now = clock_.now();
  record = {.number = number,
            .status = {},
            .due = now + earliest_time(Method::resident, order.link, piece.bytes, 1),
            .last_poll = now};
  submitted_ = number;
  if (number == quiet_ + 1) next_query_ = record.due + kOverdue;
  return number;
}

std::optional<Status> ResidentCopier::poll(Ticket ticket) {
  ResidentOrder& order = of(ticket);
  if (ticket == 0 || order.number != ticket)
    return Status(Code::internal, Scope::request, "poll of a ticket that is not in flight");
  if (ticket > quiet_) advance();
  if (ticket > quiet_) return std::nullopt;
  Status end = std::move(order.status);
  order = {};
  --unreported_;
  return end;
}

base::Time ResidentCopier::expected(base::Time now) const {
  if (unreported_ > 0) return now;
  if (quiet_ == submitted_) return base::Time::max();
  const ResidentOrder& oldest = orders_[(quiet_ + 1) % kOrders];
  return poll_hint(oldest.due, oldest.last_poll);
}

/// Checks whether the kernel has exited before it reads how far the kernel came.
void ResidentCopier::advance() {
  if (quiet_ == submitted_) return;
  const base::Time now = clock_.now();
  of(quiet_ + 1).last_poll = now;
  const bool exited = has_exited();
  const std::uint64_t done = std::min(load(memory_, kDone), submitted_);
  if (done > quiet_) {
    unreported_ += done - quiet_;
    quiet_ = done;
    next_query_ = now + kOverdue;
  }
  if (quiet_ == submitted_) return;
  if (exited) {
    if (Status launched = launch(); !launched.ok()) end_all(launched);
  } else if (now >= next_query_) {
    next_query_ = now + kQueryInterval;
    const auto scope = device_.enter();
    const Status answer = scope.ok() ? stream_.query(*scope) : scope.status();
    if (answer.scope() == Scope::process) end_all(answer);
  }
}

Status ResidentCopier::launch() {
  const auto scope = device_.enter();
  if (!scope.ok()) return scope.status();
  const cuda::CUdeviceptr memory = memory_.device_address();
  ResidentParameter parameter{.commands = memory,
                              .done = memory + kDone,
                              .left = memory + kExited,
                              .next = quiet_ + 1,
                              .launch = launches_ + 1,
                              .idle = static_cast<std::uint64_t>(kIdle.count()),
                              .stay = static_cast<std::uint64_t>(kStay.count()),
                              .lines = kOrders};
  void* parameters[] = {&parameter};
  Status launched = stream_.launch(*scope, device_.resident(), 1, kResidentThreads, parameters);
  if (launched.ok()) ++launches_;
  if (launched.scope() == Scope::process) end_all(launched);
  return launched;
}

/// Ends all orders in flight. No kernel runs, and none will see these orders.
void ResidentCopier::end_all(const Status& cause) {
  if (cause.scope() == Scope::process) context_error_ = cause;
  for (std::uint64_t number = quiet_ + 1; number <= submitted_; ++number) of(number).status = cause;
  unreported_ += submitted_ - quiet_;
  quiet_ = submitted_;
}

}  // namespace linkspan::copy
