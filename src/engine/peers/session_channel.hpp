// engine/peers/session_channel.hpp - sends a transport's messages through the Session of its peer.
//
// Off the path of a byte.
// Threads: as transport/channel.hpp says.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "control/control_plane.hpp"
#include "transport/channel.hpp"

namespace linkspan::engine {

class SessionChannel final : public transport::Channel {
 public:
  using Inbox = std::function<void(const control::Session&, std::vector<std::byte>,
                                   std::uint64_t after)>;  // as deliver_notification()
  /// `inbox` receives notifications, on any thread. `progress` is called by request_progress().
  SessionChannel(std::shared_ptr<control::Session> session, std::string transport,
                 control::ControlPlane& control, Inbox inbox, std::function<void()> progress)
      : session_(std::move(session)),
        transport_(std::move(transport)),
        control_(control),
        inbox_(std::move(inbox)),
        progress_(std::move(progress)) {}

  Status send(std::uint16_t op, std::span<const std::byte> bytes,
              std::span<base::Fd> fds) override {
    return session_->send(control::FrameOp::for_transport, 0,
                          control::encode_for_transport(transport_, op, bytes), fds);
  }
  transport::SessionKey session_key() const noexcept override { return session_->key(); }
  transport::PeerProcess process() const noexcept override {
    return {session_->pid(), session_->pidfd(), session_->same_user(), session_->incarnation()};
  }
  std::string_view peer_name() const noexcept override { return session_->hello().engine; }
  bool connects() const noexcept override { return session_->is_remote() && session_->initiated(); }
  Status open_data_connection() override {
    return control_.open_data_connection(session_, transport_);
  }
  void fail_peer(const Status& why) override { control_.drop(session_, why); }
  void request_progress() override { progress_(); }
  void deliver_notification(std::vector<std::byte> notification, std::uint64_t after) override {
    inbox_(*session_, std::move(notification), after);
  }

 private:
  const std::shared_ptr<control::Session> session_;  // also control's
  const std::string transport_;
  control::ControlPlane& control_;
  const Inbox inbox_;
  const std::function<void()> progress_;
};

}  // namespace linkspan::engine
