// tests/unit/stub_transport.hpp - a Transport that publishes regions and does nothing else, for
// tests of what the engine does with keys.
//
// Threads: externally synchronised.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "transport/transport.hpp"

namespace linkspan::test {

class StubTransport : public transport::Transport {
 public:
  explicit StubTransport(transport::Capabilities capabilities) : capabilities_(capabilities) {}

  const transport::Capabilities& capabilities() const noexcept override { return capabilities_; }
  Result<memory::PublishedKey> publish(const memory::Region&) override {
    return memory::PublishedKey{.bytes = {std::byte{7}}, .fds = {}};
  }
  Status retract(const memory::Region& region, bool) override { return forget(region); }
  Status forget(const memory::Region&) override { return {}; }
  Result<std::unique_ptr<transport::Mapping>> import_key(transport::RemoteKey,
                                                         base::Deadline) override {
    return none();
  }
  std::vector<transport::CopyCount> copies() const override { return {}; }
  std::vector<std::byte> address() const override { return {}; }
  Result<std::unique_ptr<transport::Endpoint>> connect(std::span<const std::byte>,
                                                       transport::Channel&,
                                                       base::Deadline) override {
    return none();
  }

 protected:
  static Status none() { return {Code::unsupported, Scope::transport, "not asked"}; }

 private:
  const transport::Capabilities capabilities_;
};

}  // namespace linkspan::test
