// Tests which of a region's keys a peer gets: a local peer gets all, a remote one those that leave
// the host and need no file descriptor.
#include "engine/registration/keys.hpp"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include "memory/descriptor.hpp"
#include "tests/support/take.hpp"
#include "tests/unit/stub_transport.hpp"

namespace linkspan::engine {
namespace keys_test {

using test::take;

/// A transport of which nothing but its name and its key is asked.
class Named final : public test::StubTransport {
 public:
  struct As {
    bool leaves_host = false, fds = false, last_fd = false, refuses = false;
  };
  Named(std::string name, As as)
      : StubTransport({.leaves_host = as.leaves_host}), name_(std::move(name)), as_(as) {}

  std::string_view name() const noexcept override { return name_; }
  Result<memory::PublishedKey> publish(const memory::Region& region) override {
    if (as_.refuses) return none();
    auto key = StubTransport::publish(region);
    if (as_.fds) key->fds.push_back(std::make_shared<base::Fd>(::eventfd(0, EFD_CLOEXEC)));
    if (as_.last_fd) key->last_fd = [] { return base::Fd::from("", ::eventfd(0, EFD_CLOEXEC)); };
    return key;
  }

 private:
  const std::string name_;
  const As as_;
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
