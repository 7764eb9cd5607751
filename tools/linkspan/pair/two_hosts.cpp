#include "tools/linkspan/pair/two_hosts.hpp"

#include <algorithm>
#include <utility>

#include "tools/linkspan/pair/text_channel.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr Duration kConnectIn = 10s;
constexpr std::string_view kOk = "ok ";

/// Sends requests as texts. The other host notices the end by the end of the connection.
class RemoteHost final : public RemoteTarget {
 public:
  explicit RemoteHost(std::unique_ptr<TextChannel> channel) : channel_(std::move(channel)) {}

  Status send(std::string_view request) override { return record(channel_->send(request)); }
  Result<std::string> receive(Duration timeout) override {
    auto text = channel_->receive(timeout);
    if (Status s = record(text.status()); !s.ok()) return s;
    if (!text->starts_with(kOk))
      return record({Code::corrupt, Scope::peer, "the other host answers what was not asked"});
    return text->substr(kOk.size());
  }
  bool unusable() const noexcept override { return unusable_; }

 private:
  /// Marks the connection unusable after an error, except after a request that was refused.
  Status record(Status status) {
    unusable_ = unusable_ || (!status.ok() && status.code() != Code::canceled);
    return status;
  }

  const std::unique_ptr<TextChannel> channel_;
  bool unusable_ = false;
};

}  // namespace

Result<std::unique_ptr<TwoProcesses>> connect_host(const Gpus& gpus,
                                                   const std::string& host_and_port,
                                                   const NetworkOptions& options) {
  auto engine = Engine::open(options.engine("bench"));
  if (!engine.ok()) return engine.status();
  auto peer = engine->connect(tcp_address(host_and_port), std::min(kConnectIn, options.timeout()));
  if (!peer.ok()) return connect_failed(host_and_port, peer.status());
  auto channel = TextChannel::begin(*peer, options.timeout());
  if (!channel.ok()) return channel.status();
  auto far = std::make_unique<RemoteHost>(*std::move(channel));
  if (Status s = far->send("bench"); !s.ok()) return s;
  if (auto ready = far->receive(options.timeout()); !ready.ok()) return ready.status();
  return TwoProcesses::with(gpus, *std::move(engine), *std::move(peer), std::move(far));
}

}  // namespace linkspan::tool
