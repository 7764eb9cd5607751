// Tests peers' transfers with host memory that its owner has protected, truncated or unmapped: on
// each path the transfer ends as `unreachable`, and the owner lives and serves others.
#include <sys/mman.h>
#include <unistd.h>

#include "tests/conformance/engine_fixture.hpp"

namespace linkspan::test {
namespace guarded_memory_test {

constexpr std::uint64_t kMiB = 1u << 20;
constexpr const char* kHelper = "owner_of_pages";

/// Owns the region's memory: 1 MiB of a memfd, mapped shared in the helper alone.
class Owner {
 public:
  Result<Answer> handle(const Json& call) {
    const auto what = call.at("do").get<std::string>();
    if (what == "open") {
      EngineOptions options = engine_options("owner");
      options.use_gpu = false;
      engine_ = take(Engine::open(options));
      const auto at = call.at("at").get<std::string>();
      must(at.empty() ? engine_->listen() : engine_->listen(at));
      file_ = base::Fd(::memfd_create("pages", MFD_CLOEXEC));
      if (::ftruncate(file_.get(), kMiB) != 0) return Status(Code::system, Scope::process, "");
      // Far from the addresses that the kernel gives out, so that nothing else is mapped here after
      // the unmap.
      void* const apart = reinterpret_cast<void*>(std::uintptr_t{0x7ea0} << 32);
      memory_ = ::mmap(apart, kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
      kept_ = take(engine_->register_memory(spare_.data(), kMiB));
      must(engine_->publish("kept", kept_));
      const RegionOptions region{.peers = {true, true, call.at("exclusive").get<bool>()}};
      region_ = take(engine_->register_memory(memory_, kMiB, region));
      must(engine_->publish("pages", region_));
      return Answer{engine_->address(), {}};
    }
    if (what == "protect") ::mprotect(memory_, kMiB, PROT_READ);
    // The first page stays, so a check of the mapping alone finds all of it.
    if (what == "truncate" && ::ftruncate(file_.get(), 4096) != 0)
      return Status(Code::system, Scope::process, "ftruncate");
    if (what == "unmap") ::munmap(memory_, kMiB);
    return Answer{};
  }

 private:
  base::Fd file_;
  void* memory_ = nullptr;
  std::vector<std::byte> spare_ = std::vector<std::byte>(kMiB);
  std::optional<Engine> engine_;
  Region kept_, region_;
};

void owner_main(Line& line) {
  Owner owner;
  line.serve([&](const Json& call, const std::vector<base::Fd>&) { return owner.handle(call); },
             [] { return false; });
}
const bool kRegistered = add_helper(kHelper, owner_main);

struct Path {
  const char* name;
  bool tcp = false, exclusive = false, checksum = false, tls = false;
  std::uint64_t bytes = kMiB;
};
constexpr Path kPaths[] = {
    {.name = "ItsOwnerCopies", .exclusive = true},
    {.name = "TheKernelCopies", .bytes = 8192},
    {.name = "Tcp", .tcp = true},
    {.name = "TcpOfLittle", .tcp = true, .bytes = 8192 + 5},
    {.name = "TcpWithChecksum", .tcp = true, .checksum = true},
    {.name = "TcpByTls", .tcp = true, .tls = true},
};
void PrintTo(const Path& path, std::ostream* out) { *out << path.name; }

class GuardedMemory : public ::testing::TestWithParam<Path> {
 protected:
  void SetUp() override {
    EngineOptions options = engine_options("near");
    options.use_gpu = false;
    std::vector<std::string> environment;
    if (GetParam().tls) {
      ::setenv("LINKSPAN_SECRET", "a secret of the tests", 1);
      ::setenv("LINKSPAN_SECURITY", "encrypted", 1);
    }
    owner_ = take(Child::spawn(kHelper));
    engine_ = take(Engine::open(options));
    ::unsetenv("LINKSPAN_SECRET");
    ::unsetenv("LINKSPAN_SECURITY");
    mine_ = Held::make(*engine_, {.kind = "shared"});
    mine_.fill(1);
    const std::string address = take(owner_->line().call({{"do", "open"},
                                                          {"at", GetParam().tcp ? kAnyPort : ""},
                                                          {"exclusive", GetParam().exclusive}}))
                                    .value;
    peer_ = take(engine_->connect(address));
    pages_ = take(peer_->lookup("pages"));
    EXPECT_EQ(move(Op::write, pages_).to_string(), "ok");
  }
  /// Checks that the owner lives and serves what it has kept, over the same connections.
  void TearDown() override {
    const RemoteRegion kept = take(peer_->lookup("kept"));
    mine_.fill(1);
    EXPECT_EQ(move(Op::write, kept).to_string(), "ok");
    mine_.fill(2);
    EXPECT_EQ(move(Op::read, kept).to_string(), "ok");
    EXPECT_EQ(mine_.difference(2, {{.offset = 0, .seed = 1, .from = 0, .bytes = GetParam().bytes}}),
              "");
    EXPECT_EQ(peer_->state(), PeerState::up);
  }
  Status move(Op op, const RemoteRegion& remote) {
    const Block block{0, 0, GetParam().bytes};
    TransferOptions options;
    options.deadline = 20s;
    options.checksum = GetParam().checksum;
    const std::span<const Block> blocks(&block, 1);
    return finished(op == Op::write ? peer_->write(mine_.region, remote, blocks, options)
                                    : peer_->read(mine_.region, remote, blocks, options));
  }
  void owner_does(const char* what) { take(owner_->line().call({{"do", what}})); }
  void expect_unreachable(Op op) {
    const Status end = move(op, pages_);
    EXPECT_EQ(end.code(), Code::unreachable) << end.to_string();
    // By a wire that answer is the end of what was looked up.
    if (auto again = peer_->lookup("pages"); again.ok()) pages_ = *std::move(again);
  }

  static constexpr const char* kAnyPort = "tcp:127.0.0.1:0";
  std::unique_ptr<Child> owner_;
  Held mine_;  // outlives the Engine
  std::optional<Engine> engine_;
  std::optional<Peer> peer_;
  RemoteRegion pages_;
};

TEST_P(GuardedMemory, IsNotWritten_WhenItIsProtected) {
  owner_does("protect");
  expect_unreachable(Op::write);
  EXPECT_EQ(move(Op::read, pages_).to_string(), "ok");
}

TEST_P(GuardedMemory, IsUnreachable_WhenItsFileIsTruncated) {
  owner_does("truncate");
  expect_unreachable(Op::write);
  expect_unreachable(Op::read);
}

TEST_P(GuardedMemory, IsUnreachable_WhenItIsUnmapped) {
  owner_does("unmap");
  expect_unreachable(Op::write);
  expect_unreachable(Op::read);
}

INSTANTIATE_TEST_SUITE_P(By, GuardedMemory, ::testing::ValuesIn(kPaths),
                         [](const auto& path) { return path.param.name; });

}  // namespace guarded_memory_test
}  // namespace linkspan::test
