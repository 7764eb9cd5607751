// engine/windows/window_service.hpp - windows: kernels' access to a peer's memory, and the proxy
// where they have none.
//
// On the path of a byte: only serve(), which carries out the orders of kernels.
// Threads: any thread; serve() the ProgressThread. Nothing blocks under the WindowSet's mutex.
// Invariants: signal sources are allocated once, by the first window.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/registration/registration_service.hpp"
#include "engine/transfers/submission.hpp"
#include "engine/windows/window.hpp"

namespace linkspan::engine {

class WindowService final : private WindowCopier {
 public:
  /// The arguments outlive this object.
  WindowService(const EngineContext& context, RegistrationService& registrations,
                const Submission& submission, PeerTable& peers)
      : context_(context), registrations_(registrations), submission_(submission), peers_(peers) {}
  WindowService(const WindowService&) = delete;
  WindowService& operator=(const WindowService&) = delete;
  ~WindowService() { clear(); }

  Result<std::shared_ptr<WindowState>> open(std::uint64_t peer, const WindowOptions& options)
      LINKSPAN_EXCLUDES(windows_->mutex);
  Status raise(WindowState& window, std::uint32_t index, std::uint64_t n, Duration timeout)
      LINKSPAN_EXCLUDES(windows_->mutex);
  Result<std::uint64_t> wait_signal(WindowState& window, std::uint32_t index,
                                    std::uint64_t at_least, Duration timeout)
      LINKSPAN_EXCLUDES(windows_->mutex);
  Status cancel(WindowState& window) LINKSPAN_EXCLUDES(windows_->mutex);
  Status failure(const WindowState& window) LINKSPAN_EXCLUDES(windows_->mutex);

  /// Carries out what kernels have ordered. Returns when to call it again.
  transport::PollHint serve() LINKSPAN_EXCLUDES(windows_->mutex);
  /// Waits for the orders of kernels. pending: some are left at the deadline.
  Status finish(base::Deadline deadline) LINKSPAN_EXCLUDES(windows_->mutex);
  /// Ends the windows onto `peer`, or all windows if it is nullopt.
  void end(std::optional<std::uint64_t> peer, const Status& why) LINKSPAN_EXCLUDES(windows_->mutex);
  /// Ends the windows whose local region or pad it is, before it is deregistered.
  void end_on(const memory::Registration& region) LINKSPAN_EXCLUDES(windows_->mutex);
  void clear() LINKSPAN_EXCLUDES(windows_->mutex);  ///< Forgets all windows.
  std::string dump() LINKSPAN_EXCLUDES(windows_->mutex);

 private:
  Result<std::size_t> acquire_signal_source()
      LINKSPAN_EXCLUDES(signal_sources_mutex_, windows_->mutex);
  Result<std::shared_ptr<TransferState>> copy(std::uint64_t peer, Op op,
                                              const WindowRegions& regions,
                                              const Block& block) override {
    return submission_.copy(peer, op, regions.local, regions.remote, regions.transport, block);
  }

  const EngineContext& context_;
  RegistrationService& registrations_;
  const Submission& submission_;
  PeerTable& peers_;
  base::Mutex signal_sources_mutex_;  // the first window allocates; others wait for it
  const std::shared_ptr<WindowSet> windows_ = std::make_shared<WindowSet>();  // also the windows'
};

}  // namespace linkspan::engine
