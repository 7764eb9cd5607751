// copy/resident_copier.hpp - small copies by a kernel that stays on one SM for a while.
//
// An order is a line of mapped host memory that the kernel (kernels/resident.cu) polls; no driver
// is called while the kernel runs. The kernel exits kIdle after the last order, and kStay after its
// start in any case, so that what waits for the whole GPU (cudaDeviceSynchronize, a kernel that
// loads lazily) waits no longer. Orders that it has not begun by then are for the next kernel:
// start() and poll() find that it has exited and launch it again.
// Threads: externally synchronised (under its transport's mutex); create() and the destructor are
// OFF THE LOCK.
// Invariants: at most one kernel runs, in a stream of its own; create() makes all memory.
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
  static constexpr std::uint64_t kMaxBytes = std::uint64_t{64} << 10;  ///< Maximum of an order.
  static constexpr unsigned kOrders = 64;                              ///< Maximum in flight.
  static constexpr Duration kIdle = std::chrono::microseconds(200),
                            kStay = std::chrono::milliseconds(1);

  /// Makes a copier for `device`, which must outlive it and have its kernels. Tests pass `clock`.
  static Result<std::unique_ptr<ResidentCopier>> create(
      const cuda::Device& device, const base::Clock& clock = base::Clock::steady());
  /// Waits until the kernel has exited: at most kStay, once the GPU runs it.
  ~ResidentCopier() override;
  ResidentCopier(const ResidentCopier&) = delete;
  ResidentCopier& operator=(const ResidentCopier&) = delete;

  /// Starts an order of `resident`: one piece of at most kMaxBytes, not ordered with other streams,
  /// else invalid_argument.
  Result<Ticket> start(const Order& order) override;
  void abort(Ticket) override {}  ///< Orders end sooner than an abort arrives.
  std::optional<Status> poll(Ticket ticket) override;
  base::Time expected(base::Time now) const override;

 private:
  struct ResidentOrder {
    std::uint64_t number = 0;  // zero: unused
    Status status{};           // its result, once quiet
    base::Time due{}, last_poll{};
  };

  ResidentCopier(const cuda::Device& device, const base::Clock& clock, cuda::PinnedBuffer memory,
                 cuda::Stream stream);
  bool has_exited() const noexcept;  // true: no kernel runs
  Status launch();                   // starts the kernel at the first order that is not quiet
  void advance();                    // retires ended orders, launches the kernel again if needed
  void end_all(const Status& cause);
  ResidentOrder& of(std::uint64_t number) { return orders_[number % kOrders]; }

  const cuda::Device& device_;
  const base::Clock& clock_;
  Status context_error_;                     // not OK: the context is lost
  std::uint64_t submitted_ = 0, quiet_ = 0;  // order numbers; those between are in flight
  std::uint64_t launches_ = 0;
  std::size_t unreported_ = 0;  // quiet orders that poll() has not returned
  base::Time next_query_{};
  std::array<ResidentOrder, kOrders> orders_;
  cuda::PinnedBuffer memory_;  // commands, and two counters that the kernel writes
  cuda::Stream stream_;
};

}  // namespace linkspan::copy
