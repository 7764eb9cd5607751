// linkspan.h: send_ipc() and recv_ipc().
#include "api/c/options.hpp"
#include "linkspan/compat/ipc.hpp"

using namespace linkspan;  // NOLINT(google-build-using-namespace): the functions of C are in none

int linkspan_ipc_send(linkspan_engine* engine, uint64_t conn_id, const void* data, size_t bytes,
                      int64_t deadline) {
  return c::run({{engine, "engine"}}, {"deadline", deadline}, [&](Duration limit) {
    return compat::send_ipc(engine->is, conn_id, data, bytes, limit);
  });
}

int linkspan_ipc_recv(linkspan_engine* engine, uint64_t conn_id, void* data, size_t bytes,
                      int64_t deadline) {
  return c::run({{engine, "engine"}}, {"deadline", deadline}, [&](Duration limit) {
    return compat::recv_ipc(engine->is, conn_id, data, bytes, limit);
  });
}

int linkspan_ipc_send_async(linkspan_engine* engine, uint64_t conn_id, const void* data,
                            size_t bytes, int64_t deadline, linkspan_transfer** transfer) {
  return c::make(transfer, {{engine, "engine"}}, {"deadline", deadline}, [&](Duration limit) {
    return compat::send_ipc_async(engine->is, conn_id, data, bytes, limit);
  });
}

int linkspan_ipc_recv_async(linkspan_engine* engine, uint64_t conn_id, void* data, size_t bytes,
                            int64_t deadline, linkspan_transfer** transfer) {
  return c::make(transfer, {{engine, "engine"}}, {"deadline", deadline}, [&](Duration limit) {
    return compat::recv_ipc_async(engine->is, conn_id, data, bytes, limit);
  });
}
