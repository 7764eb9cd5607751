// tests/unit/fake_verbs_hostile_test.cpp - that simulated network cards are as bad as a test wants
// them.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "cuda/driver.hpp"
#include "tests/unit/fake_verbs_fixture.hpp"

namespace linkspan::transport::verbs {
namespace fake_verbs_hostile_test {

class FakeVerbsHostile : public FakeVerbsFixture {
 protected:
  /// Posts `count` writes with an immediate each, of 64 KiB to places of their own, and returns the
  /// immediates in the order in which the target heard of them.
  std::vector<std::uint32_t> heard(std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) EXPECT_EQ(far->post_receive(i), 0);
    for (std::uint32_t i = 0; i < count; ++i) {
      IbvSendWr wr = near->request(kWrRdmaWriteWithImm, i * 65'536, 65'536, i * 65'536);
      wr.imm_data = i;
      EXPECT_EQ(near->post(wr), 0);
    }
    std::vector<std::uint32_t> order;
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto wc = far->received();
      EXPECT_EQ(status_of(wc), kWcSuccess);
      if (wc) order.push_back(wc->imm_data);
    }
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto wc = near->sent();
      EXPECT_EQ(status_of(wc), kWcSuccess);
      EXPECT_EQ(wc.value_or(IbvWc{}).wr_id, i * 65'536u) << "completions are in order";
    }
    expect_memory(*far, {{0, 1, 0, count * 65'536}});
    return order;
  }
};

TEST_F(FakeVerbsHostile, IsInOrder_UnlessAskedForAnyOrder) {
  connect();
  std::vector<std::uint32_t> in_order(16);
  for (std::uint32_t i = 0; i < 16; ++i) in_order[i] = i;
  EXPECT_EQ(heard(16), in_order);
  ASSERT_EQ(fake.set("unordered", 1), 0);
  connect();
  fake.hold(0, 1);  // so that there is something to choose from
  std::vector<std::uint32_t> order;
  std::thread release([this] {
    ::poll(nullptr, 0, 20);
    fake.hold(0, 0);
  });
  order = heard(16);
  release.join();
  EXPECT_NE(order, in_order);
  EXPECT_EQ(std::set<std::uint32_t>(order.begin(), order.end()).size(), 16u);
}

TEST_F(FakeVerbsHostile, TellsLate) {
  ASSERT_EQ(fake.set("late_us", 20'000), 0);
  connect();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 10; ++i) ASSERT_EQ(write(0, 100, 0), kWcSuccess);
  EXPECT_GT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(20));
}

TEST_F(FakeVerbsHostile, KeepsToARate) {
  ASSERT_EQ(fake.set("rate", 10'000'000), 0);
  connect();
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(write(0, 1'000'000, 0), kWcSuccess);
  EXPECT_GT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(80));
}

TEST_F(FakeVerbsHostile, HasNoReceiveAtFirst) {
  ASSERT_EQ(fake.set("rnr_percent", 100), 0);
  connect();
  heard(8);
  EXPECT_EQ(fake.count("rnrs"), 8u);
}

TEST_F(FakeVerbsHostile, FailsTheNthRegistration) {
  connect();
  ASSERT_EQ(fake.set("fail_registration", 2), 0);
  IbvMr* const first = ibv.reg_mr(near->pd, near->data(), 10, 1);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(ibv.reg_mr(near->pd, near->data(), 10, 1), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  IbvMr* const third = ibv.reg_mr(near->pd, near->data(), 10, 1);
  ASSERT_NE(third, nullptr);
  EXPECT_EQ(ibv.dereg_mr(first), 0);
  EXPECT_EQ(ibv.dereg_mr(third), 0);
  ASSERT_EQ(fake.set("memlock", 3 << 20), 0);
  IbvMr* const fits = ibv.reg_mr(near->pd, near->data(), 1 << 20, 1);
  ASSERT_NE(fits, nullptr);
  EXPECT_EQ(ibv.reg_mr(near->pd, near->data(), 1, 1), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(ibv.dereg_mr(fits), 0);
}

TEST_F(FakeVerbsHostile, PostsAPart) {
  connect();
  ASSERT_EQ(fake.set("fail_post", 3), 0);
  std::array<IbvSendWr, 4> chain{};
  for (std::size_t i = 0; i < chain.size(); ++i) {
    chain[i] = near->request(kWrRdmaWrite, 0, 16, 16 * i);
    chain[i].next = i + 1 < chain.size() ? &chain[i + 1] : nullptr;
  }
  IbvSendWr* bad = nullptr;
  EXPECT_EQ(post_send(near->qp, chain.data(), &bad), ENOMEM);
  EXPECT_EQ(bad, &chain[2]);
  EXPECT_EQ(status_of(near->sent()), kWcSuccess);
  EXPECT_EQ(status_of(near->sent()), kWcSuccess);
  EXPECT_FALSE(near->sent(0.02));
}

TEST_F(FakeVerbsHostile, ExceedsTheRetriesOfTheNth) {
  connect();
  ASSERT_EQ(fake.set("fail_send", 2), 0);
  EXPECT_EQ(write(0, 16, 0), kWcSuccess);
  EXPECT_EQ(write(0, 16, 0), kWcRetryExcErr);
  EXPECT_EQ(write(0, 16, 0), kWcWrFlushErr);
}

TEST_F(FakeVerbsHostile, LosesADevice) {
  Options first, second;
  second.device = 1;
  connect(first, second);
  ASSERT_EQ(fake.set("lose_device", 2), 0);
  EXPECT_EQ(write(0, 16, 0), kWcSuccess);
  near->post(near->request(kWrRdmaWrite, 0, 16, 0));
  EXPECT_EQ(near->event(), kEventDeviceFatal);
  IbvSendWr wr = near->request(kWrRdmaWrite, 0, 16, 0);
  EXPECT_EQ(near->post(wr), EIO);
  IbvPortAttr port{};
  EXPECT_EQ(ibv.query_port(near->context, 1, port), EIO);
  EXPECT_EQ(ibv.reg_mr(near->pd, near->data(), 16, 1), nullptr);
  EXPECT_EQ(errno, EIO);
  const IbvWcStatus status = status_of(near->sent());
  EXPECT_TRUE(status == kWcWrFlushErr || status == kWcSuccess) << status;
  std::swap(near, far);
  EXPECT_EQ(write(0, 16, 0), kWcRetryExcErr) << "the other end of it";
}

TEST_F(FakeVerbsHostile, SurvivesAPortThatIsDownForLessThanItsRetries) {
  Options patient;
  patient.timeout = 17;  // 0.5 s
  connect(patient);
  fake.set_port(0, 0);
  EXPECT_EQ(near->event(), kEventPortErr);
  IbvPortAttr port{};
  ASSERT_EQ(ibv.query_port(near->context, 1, port), 0);
  EXPECT_EQ(port.state, kPortDown);
  ASSERT_EQ(near->post(near->request(kWrRdmaWrite, 0, 16, 0)), 0);
  EXPECT_FALSE(near->sent(0.05));
  fake.set_port(0, 1);
  EXPECT_EQ(near->event(), kEventPortActive);
  EXPECT_EQ(status_of(near->sent()), kWcSuccess);
}

TEST_F(FakeVerbsHostile, ReachesNothingByAnOldGid) {
  connect();
  const auto before = near->place().gid;
  fake.change_gid(0);
  EXPECT_EQ(near->event(), kEventGidChange);
  EXPECT_NE(near->place().gid, before);
  EXPECT_EQ(write(0, 16, 0), kWcRetryExcErr);
  connect();
  EXPECT_EQ(write(0, 16, 0), kWcSuccess);
}

TEST_F(FakeVerbsHostile, CanBeInfiniBand) {
  ASSERT_EQ(fake.set("infiniband", 1), 0);
  Options only;
  only.gid_index = 0;
  connect(only, only);
  IbvPortAttr port{};
  ASSERT_EQ(ibv.query_port(near->context, 1, port), 0);
  EXPECT_EQ(port.link_layer, kLinkInfiniband);
  EXPECT_NE(port.lid, 0);
  IbvGidEntry entry{};
  EXPECT_EQ(ibv.query_gid_entry(near->context, 1, 1, entry), ENODATA);
  EXPECT_EQ(write(0, 16, 0), kWcSuccess);
}

TEST_F(FakeVerbsHostile, CountsDoorbellsAndChains) {
  connect();
  fake.reset();
  std::array<IbvSendWr, 8> chain{};
  for (std::size_t i = 0; i < chain.size(); ++i) {
    chain[i] = near->request(kWrRdmaWrite, 0, 16, 16 * i);
    chain[i].next = i + 1 < chain.size() ? &chain[i + 1] : nullptr;
  }
  IbvSendWr* bad = nullptr;
  ASSERT_EQ(post_send(near->qp, chain.data(), &bad), 0);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(status_of(near->sent()), kWcSuccess);
  EXPECT_EQ(write(0, 16, 0), kWcSuccess);
  EXPECT_EQ(fake.count("doorbells"), 2u);
  EXPECT_EQ(fake.count("chains"), 1u);
  EXPECT_EQ(fake.count("work_requests"), 9u);
  EXPECT_EQ(fake.count("completions"), 9u);
  EXPECT_EQ(fake.count("bytes"), 9u * 16);
  EXPECT_EQ(fake.count("no such name"), ~0ULL);
  EXPECT_EQ(fake.set("no such name", 1), EINVAL);
}

TEST_F(FakeVerbsHostile, RegistersAMemfdAsADmaBuf) {
  connect();
  const int fd = ::memfd_create("fake_verbs_test", MFD_CLOEXEC);
  ASSERT_EQ(::ftruncate(fd, 1 << 20), 0);
  auto* const seen =
      static_cast<std::byte*>(::mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  ASSERT_EQ(::lseek(fd, 4096, SEEK_SET), 4096);  // where a DMA-BUF of the simulated driver begins
  constexpr std::uint64_t kAddress = 0x7000'0000'0000;
  EXPECT_EQ(ibv.reg_dmabuf_mr(far->pd, 8192, 1 << 20, kAddress, fd, 7), nullptr)
      << "beyond its end";
  IbvMr* const mr = ibv.reg_dmabuf_mr(far->pd, 8192, 100'000, kAddress, fd, 7);
  ASSERT_NE(mr, nullptr);
  ::close(fd);
  IbvSendWr wr = near->request(kWrRdmaWrite, 3, 90'001, 0);
  wr.wr.rdma = {kAddress + 5, mr->rkey};
  ASSERT_EQ(near->post(wr), 0);
  ASSERT_EQ(status_of(near->sent()), kWcSuccess);
  EXPECT_EQ(std::memcmp(seen + 12'288 + 5, near->data() + 3, 90'001), 0);
  EXPECT_EQ(seen[12'288 + 4], std::byte{0});
  EXPECT_EQ(ibv.dereg_mr(mr), 0);
  ASSERT_EQ(fake.set("dmabuf", 0), 0);
  EXPECT_EQ(ibv.reg_dmabuf_mr(far->pd, 0, 4096, 0, 0, 7), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ::munmap(seen, 1 << 20);
}

TEST_F(FakeVerbsHostile, CanBeAnOldLibraryWithoutDmaBuf) {
  const auto old = Library::load(test::file_beside_this_program("libfake_verbs_old.so").c_str());
  ASSERT_TRUE(old.ok()) << old.status().to_string();
  EXPECT_EQ(old->reg_dmabuf_mr, nullptr);
  EXPECT_EQ(old->reg_mr_iova2, nullptr);
}

/// Memory of a simulated GPU, by both ways.
class FakeVerbsGpu : public FakeVerbsHostile {
 protected:
  static constexpr std::size_t kBytes = 300'000;
  void SetUp() override {
    const auto found = cuda::Driver::get();
    if (!found.ok() || ::getenv("LINKSPAN_CUDA_LIBRARY") == nullptr)
      GTEST_SKIP() << "needs the simulated driver";
    cu = *found;
    FakeVerbsHostile::SetUp();
    ASSERT_EQ(cu->cuDevicePrimaryCtxRetain(&context, 0), cuda::CUDA_SUCCESS);
    ASSERT_EQ(cu->cuCtxPushCurrent(context), cuda::CUDA_SUCCESS);
    ASSERT_EQ(cu->cuMemAlloc(&memory, kBytes), cuda::CUDA_SUCCESS);
  }
  void TearDown() override {
    if (cu == nullptr || memory == 0) return;
    EXPECT_EQ(cu->cuMemFree(memory), cuda::CUDA_SUCCESS);
    EXPECT_EQ(cu->cuCtxPopCurrent(&context), cuda::CUDA_SUCCESS);
    EXPECT_EQ(cu->cuDevicePrimaryCtxRelease(0), cuda::CUDA_SUCCESS);
    FakeVerbsHostile::TearDown();
  }
  std::vector<std::byte> read_gpu(std::size_t bytes) {
    std::vector<std::byte> read(bytes);
    EXPECT_EQ(cu->cuMemcpyAsync(reinterpret_cast<cuda::CUdeviceptr>(read.data()), memory + 7,
                                read.size(), nullptr),
              cuda::CUDA_SUCCESS);
    EXPECT_EQ(cu->cuCtxSynchronize(), cuda::CUDA_SUCCESS);
    return read;
  }
  /// Writes into the GPU's memory by `mr`, whose addresses begin with the GPU's, and compares.
  void write_and_compare(IbvMr* mr) {
    ASSERT_NE(mr, nullptr) << std::strerror(errno);
    IbvSendWr wr = near->request(kWrRdmaWrite, 1, 200'001, 0);
    wr.wr.rdma = {memory + 7, mr->rkey};
    ASSERT_EQ(near->post(wr), 0);
    ASSERT_EQ(status_of(near->sent()), kWcSuccess);
    const auto read = read_gpu(200'001);
    EXPECT_EQ(std::memcmp(read.data(), near->data() + 1, read.size()), 0);
    EXPECT_EQ(ibv.dereg_mr(mr), 0);
  }

  const cuda::Driver* cu = nullptr;
  cuda::CUcontext context = nullptr;
  cuda::CUdeviceptr memory = 0;
};

TEST_F(FakeVerbsGpu, IsReachedByDmaBuf) {
  connect();
  ASSERT_NE(cu->cuMemGetHandleForAddressRange, nullptr);
  int fd = -1;
  EXPECT_EQ(cu->cuMemGetHandleForAddressRange(&fd, memory + 1, 4096,
                                              cuda::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
            cuda::CUDA_ERROR_INVALID_VALUE);
  const std::size_t whole = (kBytes + 4095) / 4096 * 4096;
  ASSERT_EQ(cu->cuMemGetHandleForAddressRange(&fd, memory, whole,
                                              cuda::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
            cuda::CUDA_SUCCESS);
  write_and_compare(ibv.reg_dmabuf_mr(far->pd, 0, kBytes, memory, fd, 7));
  ::close(fd);
}

TEST_F(FakeVerbsGpu, IsReachedByPeermem_AndNotWithoutIt) {
  connect();
  auto* const address = reinterpret_cast<void*>(memory);
  EXPECT_EQ(ibv.reg_mr(far->pd, address, kBytes, 7), nullptr);
  EXPECT_EQ(errno, EFAULT);
  ASSERT_EQ(fake.set("peermem", 1), 0);
  write_and_compare(ibv.reg_mr(far->pd, address, kBytes, 7));
}

TEST_F(FakeVerbsGpu, ShowsWhatWasWrittenOnlyAfterAFlush) {
  ASSERT_EQ(fake.set("peermem", 1), 0);
  ASSERT_EQ(fake.set("gpu_late", 1), 0);
  connect();
  IbvMr* const mr = ibv.reg_mr(far->pd, reinterpret_cast<void*>(memory), kBytes, 7);
  ASSERT_NE(mr, nullptr);
  const auto same = [this](std::uint64_t offset) {
    return std::memcmp(read_gpu(100).data(), near->data() + offset, 100) == 0;
  };
  const auto write_gpu = [this, mr](std::uint64_t offset) {
    IbvSendWr wr = near->request(kWrRdmaWrite, offset, 100, 0);
    wr.wr.rdma = {memory + 7, mr->rkey};
    EXPECT_EQ(near->post(wr), 0);
    return status_of(near->sent());
  };
  ASSERT_EQ(write_gpu(0), kWcSuccess);
  EXPECT_FALSE(same(0));
  fake.flush();
  EXPECT_TRUE(same(0));
  ASSERT_EQ(write_gpu(1000), kWcSuccess);
  EXPECT_FALSE(same(1000));
  IbvSendWr read = near->request(kWrRdmaRead, 5000, 1, 0);  // as a loopback queue pair would
  read.wr.rdma = {memory, mr->rkey};
  ASSERT_EQ(near->post(read), 0);
  ASSERT_EQ(status_of(near->sent()), kWcSuccess);
  EXPECT_TRUE(same(1000));
  EXPECT_EQ(ibv.dereg_mr(mr), 0);
}

}  // namespace fake_verbs_hostile_test
}  // namespace linkspan::transport::verbs
