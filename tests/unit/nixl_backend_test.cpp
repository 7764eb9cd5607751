// The backend as NIXL calls it: two agents in this process.
#include "integrations/nixl/src/backend.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "tests/unit/cuda_fixture.hpp"

namespace linkspan::nixl {
namespace nixl_backend_test {

using abi::Answer;
using namespace std::chrono_literals;

constexpr std::size_t kBytes = 1 << 16, kPage = 512;

/// An agent with one registered memory, and what it loaded of the other.
struct Agent {
  explicit Agent(const std::string& name, abi::Parameters given = {{"listen", "none"}})
      : parameters(std::move(given)),
        backend({name, "LINKSPAN", &parameters, true, 0, 0, false}),
        name_of_it(name) {}
  ~Agent() {
    EXPECT_EQ(backend.unloadMD(loaded), Answer::success);
    EXPECT_NE(backend.deregisterMem(own), Answer::backend_error);
  }

  void register_memory(std::uintptr_t at, std::size_t bytes, abi::Memory kind) {
    memory.address = at;
    memory.bytes = bytes;
    ASSERT_EQ(backend.registerMem(memory, kind, own), Answer::success);
    ASSERT_EQ(backend.getPublicData(own, memory.text), Answer::success);
  }
  void load(const Agent& other, abi::Memory kind) {
    std::string info;
    ASSERT_EQ(other.backend.getConnInfo(info), Answer::success);
    ASSERT_EQ(backend.loadRemoteConnInfo(other.name_of_it, info), Answer::success);
    ASSERT_EQ(backend.loadRemoteMD(other.memory, kind, other.name_of_it, loaded), Answer::success);
  }
  Answer end_of(abi::Request* request) const {
    const auto until = std::chrono::steady_clock::now() + 20s;
    Answer answer = backend.checkXfer(request);
    while (answer == Answer::in_progress && std::chrono::steady_clock::now() < until) {
      std::this_thread::yield();
      answer = backend.checkXfer(request);
    }
    return answer;
  }
  /// Writes these pages to the other agent's, with a notification.
  Answer write(const Agent& other, std::size_t first, std::size_t count,
               const std::string& message) const {
    abi::TransferList local, remote;
    for (std::size_t i = first; i < first + count; ++i) {
      local.descriptors.push_back({{memory.address + i * kPage, kPage, 0}, own});
      remote.descriptors.push_back({{other.memory.address + i * kPage, kPage, 0}, loaded});
    }
    const auto op = abi::Direction::write;
    const abi::OptionalArguments more{message, true, {}};
    abi::Request* request = nullptr;
    Answer answer = backend.prepXfer(op, local, remote, other.name_of_it, request, nullptr);
    if (answer != Answer::success) return answer;
    answer = backend.postXfer(op, local, remote, other.name_of_it, request, &more);
    if (answer == Answer::in_progress) answer = end_of(request);
    EXPECT_EQ(backend.releaseReqH(request), Answer::success);
    return answer;
  }
  abi::Notifications notifications(std::size_t count) {
    abi::Notifications out;
    const auto until = std::chrono::steady_clock::now() + 20s;
    while (out.size() < count && std::chrono::steady_clock::now() < until) {
      EXPECT_EQ(backend.getNotifs(out), Answer::success);
      std::this_thread::yield();
    }
    return out;
  }

  abi::Parameters parameters;
  LinkspanBackend backend;
  std::string name_of_it;
  abi::DescriptorWithText memory{};
  abi::Handle* own = nullptr;
  abi::Handle* loaded = nullptr;
};

class NixlBackend : public ::testing::Test {
 protected:
  void SetUp() override {
    std::iota(source.begin(), source.end(), 1);
    here.register_memory(reinterpret_cast<std::uintptr_t>(source.data()), kBytes,
                         abi::Memory::dram);
    there.register_memory(reinterpret_cast<std::uintptr_t>(target.data()), kBytes,
                          abi::Memory::dram);
    here.load(there, abi::Memory::dram);
    there.load(here, abi::Memory::dram);
  }

  std::vector<unsigned char> source = std::vector<unsigned char>(kBytes);
  std::vector<unsigned char> target = std::vector<unsigned char>(kBytes);
  Agent here{"here"}, there{"there"};
};

TEST_F(NixlBackend, MovesPagesBeforeTheirNotification) {
  EXPECT_EQ(here.write(there, 0, kBytes / kPage, "moved"), Answer::success);
  EXPECT_EQ(there.notifications(1), (abi::Notifications{{"here", "moved"}}));
  EXPECT_EQ(source, target);
}

TEST_F(NixlBackend, ServesEightThreadsAtOnce) {
  constexpr std::size_t kThreads = 8, kTurns = 10, kPages = kBytes / kPage / kThreads;
  {
    std::vector<std::jthread> threads;
    for (std::size_t thread = 0; thread < kThreads; ++thread)
      threads.emplace_back([this, thread] {
        for (std::size_t turn = 0; turn < kTurns; ++turn) {
          EXPECT_EQ(here.write(there, thread * kPages, kPages, "turn"), Answer::success);
          EXPECT_EQ(here.backend.genNotif("there", "beside"), Answer::success);
        }
      });
  }
  EXPECT_EQ(there.notifications(2 * kThreads * kTurns).size(), 2 * kThreads * kTurns);
  EXPECT_EQ(source, target);
}

TEST_F(NixlBackend, MovesAgain_WhenARequestIsPostedAgain) {
  const abi::Direction op = abi::Direction::read;
  abi::TransferList local, remote;
  local.descriptors.push_back({{here.memory.address, kBytes, 0}, here.own});
  remote.descriptors.push_back({{there.memory.address, kBytes, 0}, here.loaded});
  abi::Request* request = nullptr;
  ASSERT_EQ(here.backend.prepXfer(op, local, remote, "there", request, nullptr), Answer::success);
  for (unsigned char turn = 0; turn < 3; ++turn) {
    std::fill(target.begin(), target.end(), turn);
    const Answer posted = here.backend.postXfer(op, local, remote, "there", request, nullptr);
    EXPECT_EQ(posted == Answer::in_progress ? here.end_of(request) : posted, Answer::success);
    EXPECT_EQ(source, target);
  }
  EXPECT_EQ(here.backend.releaseReqH(request), Answer::success);
}

TEST_F(NixlBackend, RefusesInNumbersThatNixlKnows) {
  abi::Request* request = nullptr;
  abi::TransferList local, remote;
  local.descriptors.push_back({{here.memory.address + 1, kBytes, 0}, here.own});
  remote.descriptors.push_back({{there.memory.address, kBytes, 0}, here.loaded});
  const auto op = abi::Direction::write;
  EXPECT_EQ(here.backend.prepXfer(op, local, remote, "there", request, nullptr),
            Answer::invalid_argument);
  EXPECT_EQ(here.backend.prepXfer(op, local, remote, "nobody", request, nullptr),
            Answer::not_found);
  EXPECT_EQ(request, nullptr);
  EXPECT_EQ(here.backend.genNotif("nobody", "a"), Answer::not_found);
  EXPECT_EQ(here.backend.genNotif("there", std::string(70'000, 'a')), Answer::invalid_argument);
  EXPECT_EQ(here.backend.loadRemoteConnInfo("there", "other bytes"), Answer::backend_error);
  abi::Handle* handle = nullptr;
  EXPECT_EQ(here.backend.registerMem(here.memory, abi::Memory::file, handle), Answer::unsupported);
  EXPECT_EQ(here.backend.registerMem(here.memory, abi::Memory::vram, handle),
            Answer::invalid_argument);
  abi::DescriptorWithText nothing = here.memory;
  nothing.bytes = 0;
  EXPECT_EQ(here.backend.registerMem(nothing, abi::Memory::dram, handle), Answer::invalid_argument);
  EXPECT_EQ(handle, nullptr);
}

TEST_F(NixlBackend, KnowsThePeerNoMore_AfterADisconnect) {
  EXPECT_EQ(here.write(there, 0, 1, "before"), Answer::success);
  EXPECT_EQ(here.backend.disconnect("there"), Answer::success);
  EXPECT_EQ(here.write(there, 0, 1, "after"), Answer::not_found);
  EXPECT_EQ(here.backend.unloadMD(here.loaded), Answer::success);
  here.load(there, abi::Memory::dram);
  EXPECT_EQ(here.write(there, 0, 1, "again"), Answer::success);
}

TEST_F(NixlBackend, AnswersThatThePeerIsGone_WhenItEnded) {
  auto other = std::make_unique<Agent>("other");
  std::vector<unsigned char> memory(kBytes);
  other->register_memory(reinterpret_cast<std::uintptr_t>(memory.data()), kBytes,
                         abi::Memory::dram);
  here.backend.unloadMD(here.loaded);
  here.load(*other, abi::Memory::dram);
  EXPECT_EQ(here.write(*other, 0, 1, "before"), Answer::success);
  const abi::DescriptorWithText there_it_was = other->memory;
  other.reset();
  abi::TransferList local, remote;
  local.descriptors.push_back({{here.memory.address, kPage, 0}, here.own});
  remote.descriptors.push_back({{there_it_was.address, kPage, 0}, here.loaded});
  abi::Request* request = nullptr;
  const auto op = abi::Direction::write;
  ASSERT_EQ(here.backend.prepXfer(op, local, remote, "other", request, nullptr), Answer::success);
  // The end of its memory may be seen before its own.
  Answer answer = Answer::backend_error;
  for (const auto limit = base::Deadline::in(std::chrono::seconds(1));
       answer == Answer::backend_error && !limit.passed();) {
    answer = here.backend.postXfer(op, local, remote, "other", request, nullptr);
    if (answer == Answer::in_progress) answer = here.end_of(request);
  }
  EXPECT_EQ(answer, Answer::remote_disconnect);
  EXPECT_EQ(here.backend.releaseReqH(request), Answer::success);
}

TEST_F(NixlBackend, CancelsATransfer_ThatIsReadyWhenItsDeadlineHasPassed) {
  Agent late("late", {{"listen", "none"}, {"deadline_s", "1e-9"}});
  late.register_memory(here.memory.address, kBytes, abi::Memory::dram);
  late.load(there, abi::Memory::dram);
  ASSERT_EQ(late.backend.genNotif("there", "connected"), Answer::success);
  ASSERT_EQ(there.notifications(1).size(), 1u);
  EXPECT_EQ(late.write(there, 0, 1, ""), Answer::canceled);
  std::this_thread::sleep_for(50ms);  // until the memory is imported
  EXPECT_EQ(late.write(there, 0, 1, ""), Answer::canceled);
}

TEST_F(NixlBackend, ReachesAgentsOfAnyName) {
  std::string cut_in_a_character = "x";
  while (cut_in_a_character.size() < 250) cut_in_a_character += "\u00e9";
  for (const std::string& name : {cut_in_a_character, std::string("\xff\xfe"),
                                  std::string("two\nlines\0", 10), std::string("\u200b")}) {
    Agent other(name);
    other.register_memory(there.memory.address, kBytes, abi::Memory::dram);
    here.backend.unloadMD(here.loaded);
    here.load(other, abi::Memory::dram);
    other.load(here, abi::Memory::dram);
    EXPECT_EQ(here.write(other, 0, 1, "there"), Answer::success) << name;
    EXPECT_EQ(other.notifications(1), (abi::Notifications{{"here", "there"}})) << name;
    EXPECT_EQ(other.backend.genNotif("here", "back"), Answer::success) << name;
    EXPECT_EQ(here.notifications(1), (abi::Notifications{{name, "back"}}));
  }
}

TEST_F(NixlBackend, ReachesALiveAgent_BesideManyDeadOnes) {
  for (int i = 0; i < 24; ++i) {  // three times as many as the Engine has threads to connect
    std::string info;
    ASSERT_EQ(Agent("dead").backend.getConnInfo(info), Answer::success);
    ASSERT_EQ(here.backend.loadRemoteConnInfo("dead " + std::to_string(i), info), Answer::success);
  }
  Agent live("live");
  std::string info;
  ASSERT_EQ(live.backend.getConnInfo(info), Answer::success);
  ASSERT_EQ(here.backend.loadRemoteConnInfo("live", info), Answer::success);
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(here.backend.genNotif("live", "hello"), Answer::success);
  EXPECT_EQ(live.notifications(1), (abi::Notifications{{"here", "hello"}}));
  EXPECT_LT(std::chrono::steady_clock::now() - began, 9s);
}

using NixlBackendOnDevice = cuda::OnDevice;

TEST_F(NixlBackendOnDevice, MovesMemoryOfAGpu) {
  auto source = cuda::DeviceBuffer::create(*scope, kBytes).value();
  std::vector<unsigned char> content(kBytes), target(kBytes);
  std::iota(content.begin(), content.end(), 3);
  auto pinned = cuda::PinnedBuffer::create(*scope, kBytes).value();
  std::memcpy(pinned.data(), content.data(), kBytes);
  ASSERT_EQ(
      device->driver().cuMemcpyAsync(source.address(), pinned.device_address(), kBytes, nullptr),
      cuda::CUDA_SUCCESS);
  ASSERT_EQ(device->driver().cuStreamSynchronize(nullptr), cuda::CUDA_SUCCESS);
  Agent here{"here"}, there{"there"};
  here.register_memory(source.address(), kBytes, abi::Memory::vram);
  there.register_memory(reinterpret_cast<std::uintptr_t>(target.data()), kBytes, abi::Memory::dram);
  here.load(there, abi::Memory::dram);
  EXPECT_EQ(here.write(there, 0, kBytes / kPage, "moved"), Answer::success);
  EXPECT_EQ(there.notifications(1).size(), 1u);
  EXPECT_EQ(content, target);
  abi::Handle* handle = nullptr;
  EXPECT_EQ(here.backend.registerMem(here.memory, abi::Memory::dram, handle),
            Answer::invalid_argument);
}

}  // namespace nixl_backend_test
}  // namespace linkspan::nixl
