// compat/ipc/ipc_log.hpp - the lines of send_ipc and recv_ipc, word for word as users of the seed's
// programs know them.
//
// At INFO. tests/conformance/ipc_log_test.cpp holds them against the originals.
// Threads: any thread.
#pragma once

#include "engine/message_state.hpp"

namespace linkspan::compat::ipc {

class LogObserver final : public engine::MessageObserver {
 public:
  void begun(const base::Log& log, std::uint64_t peer, std::uint64_t bytes, int device,
             const engine::MessageState& exchange) const override;
  void matched(const base::Log& log, const engine::MessageState& exchange) const override;
  void ended(const base::Log& log, const engine::MessageState& exchange) const override;
};

}  // namespace linkspan::compat::ipc
