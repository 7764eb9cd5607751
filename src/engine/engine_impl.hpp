// engine/engine_impl.hpp - the object behind the public handles: one Engine's services, put
// together.
//
// Makes the services in the order in which they need each other, passes them the events of the
// control plane's Sessions, and ends them in close().
// On the path of a byte: a call goes through to Submission.
// Threads: any thread; functions of control::SessionEvents the Control thread.
// Invariants: transports outlive endpoints and mappings; after close() has returned OK nothing here
// touches the user's memory.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fork.hpp"
#include "base/log.hpp"
#include "base/log_queue.hpp"
#include "base/options.hpp"
#include "control/control_plane.hpp"
#include "cuda/topology.hpp"
#include "engine/diagnostics/diagnostics.hpp"
#include "engine/directory/import_service.hpp"
#include "engine/directory/region_directory.hpp"
#include "engine/messages/message_service.hpp"
#include "engine/notifications/inbox.hpp"
#include "engine/peers/peer_manager.hpp"
#include "engine/progress/progress_thread.hpp"
#include "engine/registration/registration_service.hpp"
#include "engine/registration/unregistered_buffers.hpp"
#include "engine/transfers/submission.hpp"
#include "engine/windows/window_service.hpp"
#include "linkspan/engine.hpp"

namespace linkspan::engine {

class EngineImpl final : public control::SessionEvents,
                         public std::enable_shared_from_this<EngineImpl> {
 public:
  static Result<std::shared_ptr<EngineImpl>> open(const EngineOptions& options);
  ~EngineImpl();
  EngineImpl(const EngineImpl&) = delete;
  EngineImpl& operator=(const EngineImpl&) = delete;

  RegistrationService& registrations() noexcept { return *registrations_; }
  RegionDirectory& directory() noexcept { return *directory_; }
  ImportService& imports() noexcept { return *imports_; }
  const Submission& submission() const noexcept { return *submission_; }
  MessageService& messages() noexcept { return *messages_; }
  WindowService& windows() noexcept { return *windows_; }
  PeerManager& manager() noexcept { return *manager_; }
  Inbox& inbox() noexcept { return inbox_; }
  const Diagnostics& diagnostics() const noexcept { return *diagnostics_; }

  Status notify(std::uint64_t peer, std::span<const std::byte> message);
  PeerState state(std::uint64_t peer) const;
  Status wait(const TransferState& transfer, Duration timeout);
  Status cancel(TransferState& transfer);
  Status attach_completion_queue(TransferState& transfer,
                                 std::shared_ptr<CompletionQueueState> queue, std::uint64_t cookie);
  std::size_t progress() { return peers_.progress(base::Clock::steady().now()); }
  // engine_close.cpp
  Status close(Duration timeout);
  Status close(std::uint64_t peer, Duration timeout);
  /// Keeps this object until the process ends. Called when close() failed and no handle is left:
  /// something is not quiet, so nothing here may be freed.
  void keep_forever() { self_ = shared_from_this(); }
  /// Returns true in a forked child of the process that opened the Engine. Nothing here may be
  /// touched then.
  bool forked() const noexcept { return fork_.forked(); }

 private:
  EngineImpl(base::Options options, base::Log log, std::shared_ptr<base::LogQueue> log_queue)
      : options_(std::move(options)), log_(std::move(log)), log_queue_(std::move(log_queue)) {}
  Status set_up(const EngineOptions& options);
  Status set_up_identity(const EngineOptions& options);
  Status set_up_gpus(bool use_gpu);
  void set_up_services();
  transport::PollHint poll();
  /// Waits up to one second for the Control thread and returns whether it has ended.
  bool has_ended();
  bool await(CloseBlocker blocker, base::Deadline deadline,
             std::optional<std::uint64_t> peer = std::nullopt);

  // control::SessionEvents
  std::vector<control::TransportAddress> transport_addresses(bool remote) override {
    return manager_->transport_addresses(remote);
  }
  Status on_established(const std::shared_ptr<control::Session>& session) override {
    return manager_->on_established(session);
  }
  void on_up(control::Session& session) override { manager_->on_up(session.shared_from_this()); }
  void on_disconnected(control::Session& session) override;
  void on_terminated(control::Session& session) override { manager_->on_terminated(session); }
  void on_transport_message(control::Session& session, control::TransportMessage message,
                            std::span<base::Fd> fds) override {
    manager_->on_transport_message(session, message, fds);
  }
  void on_data_connection(control::Session& session, const std::string& transport,
                          Result<base::AuthenticatedSocket> socket) override {
    manager_->on_data_connection(session, transport, std::move(socket));
  }
  Result<control::ExportedRegion> on_import_request(control::Session& session,
                                                    std::string_view name,
                                                    std::uint64_t serial) override {
    return registrations_->export_named(session, name, serial);
  }
  void on_set_request(control::Session& session, std::uint64_t request,
                      control::AskSet ask) override {
    directory_->on_request(session, request, std::move(ask));
  }
  void on_set_reply(control::Session& session, std::uint64_t request,
                    memory::PublishedSet set) override {
    imports_->on_set_reply(session, request, std::move(set));
  }
  Result<control::ExportedRegion> on_offer_import_request(control::Session& session,
                                                          std::uint64_t serial) override {
    return registrations_->export_offered(session, serial);
  }
  Status on_message_frame(control::Session& session, base::Frame& frame) override {
    return messages_->on_frame(session, frame);
  }
  void on_import_reply(control::Session& session, std::uint64_t request,
                       Result<control::ExportedRegion> answer) override {
    imports_->on_import_reply(session, request, std::move(answer));
  }
  void on_notification(control::Session& session, std::vector<std::byte> payload) override {
    inbox_.on_frame(session, std::move(payload));
  }
  void on_collect_request(control::Session& session) override {
    inbox_.on_collect_request(session);
  }
  Result<std::string> handle_query(control::IntrospectionOp op) override {
    return diagnostics_->answer(op);
  }

  const base::ForkWatch fork_;
  const base::Options options_;
  const base::Log log_;
  const std::shared_ptr<base::LogQueue> log_queue_;  // also log_'s; null: lines go to stderr
  control::Identity identity_;
  std::unique_ptr<cuda::Topology> topology_;  // null: no_gpu_ says why
  Status no_gpu_;
  std::unique_ptr<memory::Registry> registry_;
  Transports transports_;
  // Each service uses those above it.
  PeerTable peers_;
  Inbox inbox_{log_};
  std::optional<UnregisteredBuffers> buffers_;
  std::optional<StreamOrders> streams_;
  std::unique_ptr<ProgressThread> progress_thread_;
  std::optional<Submission> submission_;
  std::optional<RegistrationService> registrations_;
  std::optional<RegionDirectory> directory_;
  std::optional<ImportService> imports_;
  std::optional<MessageService> messages_;
  std::optional<WindowService> windows_;
  std::optional<PeerManager> manager_;
  std::optional<Diagnostics> diagnostics_;
  std::unique_ptr<control::ControlPlane> control_;
  std::atomic<bool> closed_{false};
  std::shared_ptr<EngineImpl> self_;  // set by keep_forever()
};

}  // namespace linkspan::engine
