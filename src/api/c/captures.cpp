// Prepared transfers inside a CUDA graph.
#include "api/c/options.hpp"

using namespace linkspan;  // NOLINT(google-build-using-namespace)

void linkspan_captured_transfer_free(linkspan_captured_transfer* captured) { delete captured; }

int linkspan_prepared_capture(const linkspan_prepared* prepared, const linkspan_stream* stream,
                              const linkspan_capture_options* options,
                              linkspan_captured_transfer** captured) {
  return c::make(captured, {{prepared, "prepared"}, {stream, "stream"}},
                 [&]() -> Result<CapturedTransfer> {
                   const auto order = c::stream_of(*stream);
                   if (!order.ok()) return order.status();
                   const auto known = c::capture_options(options);
                   if (!known.ok()) return known.status();
                   return prepared->is.capture(*order, *known);
                 });
}

uint64_t linkspan_captured_transfer_bytes(const linkspan_captured_transfer* captured) {
  return captured == nullptr ? 0 : captured->is.bytes();
}
uint64_t linkspan_captured_transfer_completed(const linkspan_captured_transfer* captured) {
  return captured == nullptr ? 0 : captured->is.completed();
}
uint64_t linkspan_captured_transfer_refused(const linkspan_captured_transfer* captured) {
  return captured == nullptr ? 0 : captured->is.refused();
}

int linkspan_captured_transfer_wait(const linkspan_captured_transfer* captured, uint64_t n,
                                    int64_t timeout) {
  return c::run({{captured, "captured"}}, {"timeout", timeout},
                [&](Duration limit) { return captured->is.wait(n, limit); });
}

int linkspan_captured_transfer_status(const linkspan_captured_transfer* captured) {
  return c::run({{captured, "captured"}}, [&] { return captured->is.status(); });
}

int linkspan_captured_transfer_close(const linkspan_captured_transfer* captured, int64_t timeout) {
  return c::run({{captured, "captured"}}, {"timeout", timeout},
                [&](Duration limit) { return captured->is.close(limit); });
}
