// Tests which of a region's keys a peer gets: a local peer gets all, a remote one those that leave
// the host and need no file descriptor.
#include "engine/registration/keys.hpp"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include "memory/descriptor.hpp"
#include "tests/support/take.hpp"

namespace linkspan::engine {
namespace keys_test {

using test::take;
using transport::Capabilities, transport::Channel, transport::Endpoint, transport::Mapping;

/// A transport of which nothing but its name and its key is asked.
class Named final : public transport::Transport {
 public:
  struct As {
    bool leaves_host = false, fds = false, last_fd = false, refuses = false;
  };
  Named(std::string name, As as)
      : name_(std::move(name)), as_(as), capabilities_{.leaves_host = as.leaves_host} {}

  std::string_view name() const noexcept override { return name_; }
  const Capabilities& capabilities() const noexcept override { return capabilities_; }
  Result<memory::PublishedKey> publish(const memory::Region&) override {
    if (as_.refuses) return none();
    memory::PublishedKey key{.bytes = {std::byte{7}}, .fds = {}};
    if (as_.fds) key.fds.push_back(std::make_shared<base::Fd>(::eventfd(0, EFD_CLOEXEC)));
    if (as_.last_fd) key.last_fd = [] { return base::Fd::from("", ::eventfd(0, EFD_CLOEXEC)); };
    return key;
  }
  Status retract(const memory::Region&, bool) override { return {}; }
  Status forget(const memory::Region&) override { return {}; }
  Result<std::unique_ptr<Mapping>> import_key(transport::RemoteKey, base::Deadline) override {
    return none();
  }
  std::vector<transport::CopyCount> copies() const override { return {}; }
  std::vector<std::byte> address() const override { return {}; }
  Result<std::unique_ptr<Endpoint>> connect(std::span<const std::byte>, Channel&,
                                            base::Deadline) override {
    return none();
  }

 private:
  static Status none() { return {Code::unsupported, Scope::transport, "not asked"}; }

  const std::string name_;
  const As as_;
  const Capabilities capabilities_;
};

class KeysOf : public ::testing::Test {
 protected:
  void add(const std::string& name, Named::As as) {
    transports_.push_back(std::make_unique<Named>(name, as));
  }
  Result<control::ExportedRegion> exported(bool remote) {
    const auto keys = take(publish_everywhere(transports_, region_->region()));
    return engine::export_region(transports_, region_->region(), *keys, "kv", remote);
  }
  /// Returns the names of the transports that have a key in it, and the number of fds.
  static std::string told(const control::ExportedRegion& exported) {
    std::string names;
    for (const auto& key : take(memory::decode(exported.descriptor)).keys)
      names += key.transport + " ";
    return names + std::to_string(exported.fds.size());
  }
  void expect_unreachable(std::initializer_list<const char*> words) {
    const Status why = exported(true).status();
    EXPECT_EQ(why.code(), Code::unreachable) << why.to_string();
    for (const char* word : words)
      EXPECT_NE(why.what().find(word), std::string::npos) << why.what();
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(64);
  memory::Registry registry_{77, nullptr};
  std::shared_ptr<const memory::Registration> region_ =
      take(registry_.add(memory_.data(), memory_.size(), {.read = true}, false));
  Transports transports_;
};

TEST_F(KeysOf, EveryTransportGoToAPeerOfThisHost) {
  add("shared", {.fds = true, .last_fd = true});
  add("wire", {.leaves_host = true});
  EXPECT_EQ(told(take(exported(false))), "shared wire 2");
}

TEST_F(KeysOf, WiresAloneGoToARemotePeerAndNoFds) {
  add("shared", {.fds = true, .last_fd = true});
  add("wire", {.leaves_host = true});
  add("copier", {});
  add("other", {.leaves_host = true});
  EXPECT_EQ(told(take(exported(true))), "wire other 0");
}

TEST_F(KeysOf, AWireThatNeedsFdsDoNotGoEither) {
  add("odd", {.leaves_host = true, .fds = true});
  add("lazy", {.leaves_host = true, .last_fd = true});
  EXPECT_EQ(told(take(exported(false))), "odd lazy 2");
  expect_unreachable({"\"kv\"", "odd, lazy"});
}

TEST_F(KeysOf, ARegionThatNoWireReachesSayWhose) {
  add("shared", {.fds = true});
  add("copier", {});
  expect_unreachable({"\"kv\"", "shared, copier", "no transport of this release", "unix:"});
  add("wire", {.leaves_host = true, .refuses = true});
  expect_unreachable({"shared, copier", "wire leaves the host", "no key"});
}

}  // namespace keys_test
}  // namespace linkspan::engine
