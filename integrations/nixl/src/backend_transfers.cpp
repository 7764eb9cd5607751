#include <chrono>
#include <utility>

#include "integrations/nixl/src/backend_answer.hpp"
#include "integrations/nixl/src/request.hpp"

namespace linkspan::nixl {
namespace {

/// Is the handle that NIXL gets for a Request. While a post waits, BackgroundTasks own the Request
/// too.
struct RequestHandle final : abi::Request {
  explicit RequestHandle(std::shared_ptr<nixl::Request> made) : request(std::move(made)) {}

  const std::shared_ptr<nixl::Request> request;
};

nixl::Request& request_of(abi::Request* handle) {
  return *static_cast<RequestHandle*>(handle)->request;
}

PairMemories memories_of(const TransferPlan& plan) {
  PairMemories out;
  for (const TransferPlan::Pair& pair : plan.pairs()) {
    out.local.push_back(static_cast<const LocalMemory*>(pair.local)->region);
    out.remote.push_back(static_cast<const LoadedMemory*>(pair.remote)->memory);
  }
  return out;
}

}  // namespace

abi::Answer LinkspanBackend::prepXfer(const abi::Direction& direction,
                                      const abi::TransferList& local,
                                      const abi::TransferList& remote, const std::string& agent,
                                      abi::Request*& out,
                                      const abi::OptionalArguments* /*more*/) const {
  return answer("prepXfer", [&]() -> Status {
    auto found = find(agent);
    if (!found.ok()) return found.status();
    auto plan = TransferPlan::make(local.descriptors, remote.descriptors);
    if (!plan.ok()) return plan.status();
    PairMemories memories = memories_of(*plan);
    auto request =
        std::make_shared<nixl::Request>(parts_->services, *std::move(found),
                                        direction == abi::Direction::write ? Op::write : Op::read,
                                        *std::move(plan), std::move(memories));
    out = std::make_unique<RequestHandle>(std::move(request)).release();
    return {};
  });
}

abi::Answer LinkspanBackend::postXfer(const abi::Direction& /*direction*/,
                                      const abi::TransferList& /*local*/,
                                      const abi::TransferList& /*remote*/,
                                      const std::string& /*agent*/, abi::Request*& request,
                                      const abi::OptionalArguments* more) const {
  abi::Answer posted = abi::Answer::success;  // whose errors the request has logged
  const abi::Answer out = answer("postXfer", [&]() -> Status {
    std::vector<std::byte> notification;
    if (more != nullptr && more->has_notification) {
      auto message = AgentMessage::serialize(agent_, more->notification);
      if (!message.ok()) return message.status();
      notification = *std::move(message);
    }
    const Code code = request_of(request).post(std::move(notification)).code();
    posted = code == Code::busy ? abi::Answer::repost_active : answer_of(code);
    return {};
  });
  return out == abi::Answer::success ? posted : out;
}

abi::Answer LinkspanBackend::checkXfer(abi::Request* request) const {
  abi::Answer checked = abi::Answer::success;
  const abi::Answer out = answer("checkXfer", [&]() -> Status {
    checked = answer_of(request_of(request).check().code());
    return {};
  });
  return out == abi::Answer::success ? checked : out;
}

abi::Answer LinkspanBackend::releaseReqH(abi::Request* request) const {
  bool quiet = false;
  const abi::Answer out = answer("releaseReqH", [&]() -> Status {
    quiet = request_of(request).release().ok();
    return {};
  });
  if (out != abi::Answer::success) return out;
  if (!quiet) return abi::Answer::not_allowed;  // the memory is not the user's yet: ask again
  delete request;
  return abi::Answer::success;
}

abi::Answer LinkspanBackend::getNotifs(abi::Notifications& out) {
  return answer("getNotifs", [&]() -> Status {
    for (const Notification& each : parts_->engine.notifications()) {
      auto message = AgentMessage::parse(each.bytes);
      if (message.ok())
        out.emplace_back(std::move(message->agent), std::move(message->text));
      else
        parts_->log.write(base::Level::warning, "dropped: " + message.status().to_string());
    }
    return {};
  });
}

abi::Answer LinkspanBackend::genNotif(const std::string& agent, const std::string& message) const {
  return answer("genNotif", [&]() -> Status {
    auto found = find(agent);
    if (!found.ok()) return found.status();
    auto bytes = AgentMessage::serialize(agent_, message);
    if (!bytes.ok()) return bytes.status();
    return (*found)->notify(*std::move(bytes));
  });
}

abi::Answer LinkspanBackend::estimateXferCost(
    const abi::Direction& /*direction*/, const abi::TransferList& /*local*/,
    const abi::TransferList& /*remote*/, const std::string& /*agent*/, abi::Request* const& request,
    std::chrono::microseconds& duration, std::chrono::microseconds& margin, int& method,
    const abi::CostArguments* /*more*/) const {
  const abi::Answer out = answer("estimateXferCost", [&]() -> Status {
    auto estimate = request_of(request).estimate();
    if (!estimate.ok()) return estimate.status();
    duration = std::chrono::duration_cast<std::chrono::microseconds>(*estimate);
    margin = {};
    method = 0;  // by rates
    return {};
  });
  // The agent expects a final answer.
  return out == abi::Answer::in_progress ? abi::Answer::unsupported : out;
}

}  // namespace linkspan::nixl
