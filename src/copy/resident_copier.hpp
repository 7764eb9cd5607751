// copy/resident_copier.hpp - small copies by a kernel that stays on one SM for a while.
//
// An order is a line of mapped host memory that the kernel (kernels/resident.cu) looks for; no
// driver is called while it is there. It leaves kIdle after the last order and kStay after its
// start, whatever comes, so that what waits for the whole GPU (cudaDeviceSynchronize, a kernel that
// loads lazily) waits no longer. Orders that it has not taken when it leaves are the next
// one's: who starts or polls an order finds that it left and launches it again.
// Threads: externally synchronised (under the scheduler's lock); create() and the destructor are
// OFF THE LOCK.
// Invariants: at most one kernel runs, in a stream of its own; all memory is made in create().
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "copy/copier.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "cuda/topology.hpp"

namespace linkspan::copy {

class ResidentCopier final : public Copier {
 public:
  static constexpr std::uint64_t kMaxBytes = std::uint64_t{64} << 10;  ///< Of an order.
  static constexpr unsigned kOrders = 64;                              ///< In flight.
  static constexpr Duration kIdle = std::chrono::microseconds(200),
                            kStay = std::chrono::milliseconds(1);

  /// `device` outlives the copier and has its kernels. `clock` is for tests.
  static Result<std::unique_ptr<ResidentCopier>> create(
      const cuda::Device& device, const base::Clock& clock = base::Clock::steady());
  /// Waits until the kernel has left, at most kStay where the GPU runs it.
  ~ResidentCopier() override;
  ResidentCopier(const ResidentCopier&) = delete;
  ResidentCopier& operator=(const ResidentCopier&) = delete;

  /// `resident` only, one piece of at most kMaxBytes, in no order with other streams:
  /// invalid_argument.
  Result<Ticket> start(const Order& order) override;
  void abort(Ticket) override {}  ///< It ends sooner than one could tell it.
  std::optional<Status> poll(Ticket ticket) override;
  base::Time expected(base::Time now) const override;

 private:
  struct ResidentOrder {
    std::uint64_t number = 0;  // zero: free
    Status status{};           // its end, once it is quiet
    base::Time due{}, last_poll{};
  };

  ResidentCopier(const cuda::Device& device, const base::Clock& clock, cuda::PinnedBuffer memory,
                 cuda::Stream stream);
  bool has_exited() const noexcept;  // no kernel runs
  Status launch();                   // the kernel, for the first order that is not quiet
  void advance();                    // takes note of what has ended
  void end_all(const Status& cause);
  ResidentOrder& of(std::uint64_t number) { return orders_[number % kOrders]; }

  const cuda::Device& device_;
  const base::Clock& clock_;
  Status context_error_;                     // why the context is exited
  std::uint64_t submitted_ = 0, quiet_ = 0;  // numbers; what lies between is in flight
  std::uint64_t launches_ = 0;
  std::size_t unreported_ = 0;  // quiet orders that poll() has not told
  base::Time next_query_{};
  std::array<ResidentOrder, kOrders> orders_;
  cuda::PinnedBuffer memory_;  // lines, and two words of the kernel
  cuda::Stream stream_;
};

}  // namespace linkspan::copy
