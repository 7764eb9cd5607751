#include "tools/linkspan/pair/two_hosts.hpp"

#include <algorithm>
#include <utility>

#include "tools/linkspan/pair/conversation.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr Duration kConnectIn = 10s;
constexpr std::string_view kOk = "ok ";

/// Asks it by words. It hears of the end by the end of the connection.
class HostSide final : public FarSide {
 public:
  explicit HostSide(std::unique_ptr<Conversation> talk) : talk_(std::move(talk)) {}

  Status tell(std::string_view request) override { return note(talk_->tell(request)); }
  Result<std::string> answer(Duration timeout) override {
    auto words = talk_->hear(timeout);
    if (Status s = note(words.status()); !s.ok()) return s;
    if (!words->starts_with(kOk))
      return note({Code::corrupt, Scope::peer, "the other host answers what was not asked"});
    return words->substr(kOk.size());
  }
  bool lost() const noexcept override { return lost_; }

 private:
  /// A request that was refused leaves it as it was.
  Status note(Status status) {
    lost_ = lost_ || (!status.ok() && status.code() != Code::canceled);
    return status;
  }

  const std::unique_ptr<Conversation> talk_;
  bool lost_ = false;
};

}  // namespace

Result<std::unique_ptr<TwoProcesses>> meet_host(const Gpus& gpus, const std::string& host_and_port,
                                                const NetworkOptions& options) {
  auto engine = Engine::open(options.engine("bench"));
  if (!engine.ok()) return engine.status();
  auto peer = engine->connect(tcp_address(host_and_port), std::min(kConnectIn, options.timeout()));
  if (!peer.ok()) return nobody_there(host_and_port, peer.status());
  auto talk = Conversation::begin(*peer, options.timeout());
  if (!talk.ok()) return talk.status();
  auto far = std::make_unique<HostSide>(*std::move(talk));
  if (Status s = far->tell("bench"); !s.ok()) return s;
  if (auto ready = far->answer(options.timeout()); !ready.ok()) return ready.status();
  return TwoProcesses::with(gpus, *std::move(engine), *std::move(peer), std::move(far));
}

}  // namespace linkspan::tool
