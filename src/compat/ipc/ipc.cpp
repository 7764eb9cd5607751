// send_ipc() and recv_ipc() over the engine's messages in order.
#include "linkspan/compat/ipc.hpp"

#include "compat/ipc/ipc_log.hpp"
#include "engine/on_engine_impl.hpp"

namespace linkspan::compat {
namespace {

Result<Transfer> begin(const Engine& engine, std::uint64_t conn_id, bool sends, const void* data,
                       std::size_t bytes, Duration deadline) {
  static const ipc::LogObserver observer;
  const auto& impl = engine::HandleAccess::impl(engine);
  auto begun = engine::handle_of<Transfer>(impl, [&](auto& its) {
    return its.messages.submit(
        conn_id, {.sends = sends, .space = control::MatchSpace::in_order, .observer = &observer},
        data, bytes, {.deadline = deadline});
  });
  if (begun.status().code() == Code::disconnected)
    return Status(Code::not_found, Scope::request, "no such conn_id, or its peer is gone");
  return begun;
}

/// Waits until the transfer is quiet and returns its status.
Status finish(const Result<Transfer>& transfer) {
  if (!transfer.ok()) return transfer.status();
  while (!transfer->done()) (void)transfer->wait(std::chrono::seconds(1));
  return transfer->status();
}

}  // namespace

Status send_ipc(Engine& engine, std::uint64_t conn_id, const void* data, std::size_t bytes,
                Duration deadline) {
  return finish(send_ipc_async(engine, conn_id, data, bytes, deadline));
}

Status recv_ipc(Engine& engine, std::uint64_t conn_id, void* data, std::size_t bytes,
                Duration deadline) {
  return finish(recv_ipc_async(engine, conn_id, data, bytes, deadline));
}

Result<Transfer> send_ipc_async(Engine& engine, std::uint64_t conn_id, const void* data,
                                std::size_t bytes, Duration deadline) {
  return begin(engine, conn_id, true, data, bytes, deadline);
}

Result<Transfer> recv_ipc_async(Engine& engine, std::uint64_t conn_id, void* data,
                                std::size_t bytes, Duration deadline) {
  return begin(engine, conn_id, false, data, bytes, deadline);
}

}  // namespace linkspan::compat
