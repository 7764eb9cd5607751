// engine/engine_services.hpp - the services of one Engine, and how events of its Sessions reach
// them.
//
// On the path of a byte: a call goes through to Submission.
// Threads: any thread; functions of control::SessionEvents the Control thread.
// Invariants: each service uses those above it, and the context, which outlives it.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "engine/captures/capture_service.hpp"
#include "engine/diagnostics/diagnostics.hpp"
#include "engine/directory/import_service.hpp"
#include "engine/directory/region_directory.hpp"
#include "engine/engine_context.hpp"
#include "engine/messages/message_service.hpp"
#include "engine/notifications/inbox.hpp"
#include "engine/peers/peer_manager.hpp"
#include "engine/registration/registration_service.hpp"
#include "engine/registration/unregistered_buffers.hpp"
#include "engine/transfers/submission.hpp"
#include "engine/windows/window_service.hpp"

namespace linkspan::engine {

class EngineServices final : public control::SessionEvents {
 public:
  /// The arguments outlive this object. `engine` identifies the Engine's handles.
  EngineServices(const EngineImpl* engine, const EngineContext& context,
                 const std::atomic<bool>& closed);

  /// Deregisters a region and ends what would go on with it.
  Status deregister(const Region& region, Duration timeout, bool immediately);

  PeerTable peers;
  Inbox inbox;
  UnregisteredBuffers buffers;
  StreamOrders streams;
  Submission submission;
  CaptureService captures;
  RegistrationService registrations;
  RegionDirectory directory;
  ImportService imports;
  MessageService messages;
  WindowService windows;
  PeerManager manager;
  Diagnostics diagnostics;

 private:
  // control::SessionEvents
  std::vector<control::TransportAddress> transport_addresses(bool remote) override {
    return manager.transport_addresses(remote);
  }
  Status on_established(const std::shared_ptr<control::Session>& session) override {
    return manager.on_established(session);
  }
  void on_up(control::Session& session) override { manager.on_up(session.shared_from_this()); }
  void on_disconnected(control::Session& session) override;
  void on_terminated(control::Session& session) override { manager.on_terminated(session); }
  void on_transport_message(control::Session& session, control::TransportMessage message,
                            std::span<base::Fd> fds) override {
    manager.on_transport_message(session, message, fds);
  }
  void on_data_connection(control::Session& session, const std::string& transport,
                          Result<base::AuthenticatedSocket> socket) override {
    manager.on_data_connection(session, transport, std::move(socket));
  }
  Result<control::ExportedRegion> on_import_request(control::Session& session,
                                                    std::string_view name,
                                                    std::uint64_t serial) override {
    return registrations.export_named(session, name, serial);
  }
  void on_set_request(control::Session& session, std::uint64_t request,
                      control::AskSet ask) override {
    directory.on_request(session, request, std::move(ask));
  }
  void on_set_reply(control::Session& session, std::uint64_t request,
                    memory::PublishedSet set) override {
    imports.on_set_reply(session, request, std::move(set));
  }
  Result<control::ExportedRegion> on_offer_import_request(control::Session& session,
                                                          std::uint64_t serial) override {
    return registrations.export_offered(session, serial);
  }
  Status on_message_frame(control::Session& session, base::Frame& frame) override {
    return messages.on_frame(session, frame);
  }
  void on_import_reply(control::Session& session, std::uint64_t request,
                       Result<control::ExportedRegion> answer) override {
    imports.on_import_reply(session, request, std::move(answer));
  }
  void on_notification(control::Session& session, std::vector<std::byte> payload) override {
    inbox.on_frame(session, std::move(payload));
    manager.expect_frames();  // who notifies at all often does so again soon
  }
  void on_collect_request(control::Session& session) override { inbox.on_collect_request(session); }
  Result<std::string> handle_query(control::IntrospectionOp op) override {
    return diagnostics.answer(op);
  }
};

}  // namespace linkspan::engine
