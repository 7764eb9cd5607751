// compat/ipc/ipc_log.hpp - logs send_ipc and recv_ipc with the lines of the original programs.
//
// The lines are word for word those of the originals, at level INFO;
// tests/conformance/ipc_log_test.cpp compares them.
// On the path of a byte: beside it, called by the engine at the steps of a message.
// Threads: any thread.
// Invariants: none.
#pragma once

#include "engine/messages/message_state.hpp"

namespace linkspan::compat::ipc {

class LogObserver final : public engine::MessageObserver {
 public:
  void begun(const base::Log& log, std::uint64_t peer, std::uint64_t bytes, int device,
             const engine::MessageState& exchange) const override;
  void matched(const base::Log& log, const engine::MessageState& exchange) const override;
  void ended(const base::Log& log, const engine::MessageState& exchange) const override;
};

}  // namespace linkspan::compat::ipc
