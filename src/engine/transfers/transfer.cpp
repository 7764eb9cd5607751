#include "engine/transfers/transfer.hpp"

#include <string>
#include <utility>

namespace linkspan::engine {

transport::TransferHints hints_of(const TransferOptions& options) {
  using Kind = StreamOrder::Kind;
  const bool in_a_stream = options.after.kind != Kind::none || options.release.kind != Kind::none;
  return {.low_latency = options.low_latency && !in_a_stream,
          .ctas = options.copy_ctas.value_or(transport::TransferHints{}.ctas),
          .checksum = options.checksum};
}

bool satisfies(std::string_view path, bool leaves_host, std::string_view required) {
  const bool not_that = required.starts_with('!');
  if (not_that) required.remove_prefix(1);
  return (required == "local" ? path.empty() || !leaves_host : path.starts_with(required)) !=
         not_that;
}

Status TransferEnding::user_status(const Status& status) const {
  if (status.ok() || status.code() == Code::disconnected || !is_asked()) return status;
  std::string what = expired ? "its deadline passed" : "canceled by its owner";
  if (!status.what().empty()) what.append("; ").append(status.what());
  return {expired ? Code::timed_out : Code::canceled, Scope::request, std::move(what)};
}

}  // namespace linkspan::engine
