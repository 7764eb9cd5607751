// Tests two processes that copy between each other's memory of both GPUs without an Engine. One is
// killed meanwhile; the other's mappings still work, and its context lives. LINKSPAN_OWNER_ROUNDS
// is the number of kills for each kind of memory.
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <optional>
#include <random>

#include "copy/gpu_copier.hpp"
#include "cuda/handles.hpp"
#include "cuda/shared_range.hpp"
#include "tests/faults/killer.hpp"
#include "tests/support/kinds.hpp"
#include "tests/support/process.hpp"
#include "tests/support/take.hpp"

namespace linkspan::test {
namespace dying_owner_test {

constexpr const char* kHelper = "dying owner";
constexpr std::uint64_t kBytes = 8u << 20;
constexpr unsigned kOrders = 16;  // in flight
using Bytes64 = std::array<unsigned char, 64>;

const cuda::Device& gpu(unsigned index) {
  return *take(topology()->activate(topology()->devices()[index].uuid));
}

/// Memory of a GPU, and what another process needs to map it.
struct Lent {
  Lent(unsigned index, Make make)
      : how(make),
        buffer(take(Buffer::create(MemoryKind::device, kBytes, index, 0, make))),
        address(reinterpret_cast<std::uint64_t>(buffer->data())) {
    const auto facts = take(topology()->query(buffer->data()));
    const cuda::Device& device = gpu(index);
    std::uint64_t begin = facts.base;
    if (make == Make::allocated)
      handle = std::bit_cast<Bytes64>(take(cuda::export_ipc(device, address)));
    if (make == Make::pool) {
      fds.push_back(take(cuda::export_pool(device, facts.base)));  // before its pointers
      handle = std::bit_cast<Bytes64>(take(cuda::export_pool_pointer(device, facts.base)));
    }
    if (make == Make::chunks)
      for (std::uint64_t at = begin; at < address + kBytes; at += ChunkRow::kChunk)
        fds.push_back(take(cuda::export_chunk(device, at)));
    offset = address - begin;
  }
  Json json() const {
    return {{"make", static_cast<int>(how)},
            {"handle", handle},
            {"offset", offset},
            {"fds", fds.size()}};
  }

  const Make how;
  const std::unique_ptr<Buffer> buffer;
  const std::uint64_t address;
  std::uint64_t offset = 0;
  Bytes64 handle{};
  std::vector<base::Fd> fds;  // given away with json()
};

/// The other process's, mapped here for one GPU.
struct Borrowed {
  Borrowed(const Json& lent, const std::vector<base::Fd>& fds, const cuda::Device& device) {
    const auto handle = lent.at("handle").get<Bytes64>();
    const auto offset = lent.at("offset").get<std::uint64_t>();
    switch (static_cast<Make>(lent.at("make").get<int>())) {
      case Make::pool:
        range =
            take(cuda::SharedRange::open(device, fds[0], std::bit_cast<cuda::PoolPointer>(handle)));
        break;
      case Make::chunks:
        range = take(cuda::SharedRange::reserve(device, fds.size() * ChunkRow::kChunk));
        for (const base::Fd& fd : fds) must(range->add(fd, ChunkRow::kChunk));
        break;
      default:
        ipc.emplace(take(cuda::IpcMapping::open(device, std::bit_cast<cuda::IpcHandle>(handle))));
    }
    if (range != nullptr) must(range->allow(device));
    address = (range != nullptr ? range->base() : ipc->base()) + offset;
  }

  std::uint64_t address = 0;
  std::optional<cuda::IpcMapping> ipc;
  std::unique_ptr<cuda::SharedRange> range;
};

/// Copies without an end, in both directions, large ones by the engines and many by the kernel.
class Traffic {
 public:
  Traffic(const cuda::Device& device, std::uint64_t here, std::uint64_t there)
      : copier_(take(copy::GpuCopier::create(device, {}))), here_(here), there_(there) {}
  ~Traffic() { settle(); }
  Traffic(const Traffic&) = delete;
  Traffic& operator=(const Traffic&) = delete;

  void pump() {
    for (auto& [ticket, what] : tickets_) look(ticket, what);
    std::erase_if(tickets_, [](const auto& each) { return each.first == 0; });
    while (tickets_.size() < kOrders && error_.empty()) {
      const std::uint64_t at = turn_ % 4 * (kBytes / 8), to = (turn_ % 4 + 4) * (kBytes / 8);
      const bool writes = turn_ % 2 == 0, kernel = turn_ / 2 % 2 == 0 && copier_->has_kernel();
      std::vector<copy::Piece> pieces;
      const std::uint64_t bytes = kernel ? 4096 : kBytes / 8;
      for (std::uint64_t done = 0; done < kBytes / 8; done += bytes)
        pieces.push_back(writes ? copy::Piece{there_ + at + done, here_ + to + done, bytes}
                                : copy::Piece{here_ + at + done, there_ + to + done, bytes});
      auto ticket =
          copier_->start({.method = kernel ? copy::Method::sm_kernel : copy::Method::copy_engine,
                          .pieces = pieces,
                          .queue = static_cast<unsigned>(turn_),
                          .link = copy::Link::peer});
      ++turn_;
      if (ticket.status().code() == Code::no_resource) return;
      const std::string what = std::string(kernel ? "kernel" : "engine") +
                               (writes ? " writes there" : " reads from there");
      if (ticket.ok())
        tickets_.emplace_back(*ticket, what);
      else
        error_ = what + ": " + ticket.status().to_string();
    }
  }
  /// Returns the first failure; empty if none.
  std::string settle() {
    const auto limit = base::Deadline::after(base::Clock::steady(), std::chrono::seconds(5));
    for (auto& [ticket, what] : tickets_)
      while (ticket != 0 && !limit.passed()) look(ticket, what);
    tickets_.clear();
    return error_;
  }

 private:
  void look(copy::Ticket& ticket, const std::string& what) {
    const auto end = copier_->poll(ticket);
    if (!end) return;
    ticket = 0;
    if (!end->ok() && error_.empty()) error_ = what + ": " + end->to_string();
  }

  const std::unique_ptr<copy::GpuCopier> copier_;
  const std::uint64_t here_, there_;
  std::uint64_t turn_ = 0;
  std::vector<std::pair<copy::Ticket, std::string>> tickets_;
  std::string error_;
};

/// The memories of one process of such a pair: of both GPUs, and for each kind of traffic the
/// mapped memory of the other process.
class Side {
 public:
  explicit Side(Make make) : lent_{{{0, make}, {1, make}}} {}

  Answer lend() {
    Answer all{Json::array(), {}};
    for (Lent& lent : lent_) {
      all.value.push_back(lent.json());
      std::move(lent.fds.begin(), lent.fds.end(), std::back_inserter(all.fds));
      lent.fds.clear();
    }
    return all;
  }
  void meet(Answer other) {
    auto fd = std::move_iterator(other.fds.begin());
    for (unsigned theirs = 0; theirs < kGpus; ++theirs) {
      const Json& lent = other.value.at(theirs);
      const auto end = fd + lent.at("fds").get<std::ptrdiff_t>();
      const unsigned ours = kGpus - 1 - theirs;
      borrowed_.push_back(
          std::make_unique<Borrowed>(lent, std::vector<base::Fd>(fd, end), gpu(ours)));
      traffic_.push_back(
          std::make_unique<Traffic>(gpu(ours), lent_[ours].address, borrowed_.back()->address));
      fd = end;
    }
  }
  void pump() {
    for (const auto& traffic : traffic_) traffic->pump();
  }
  std::string end() {
    std::string wrong;
    for (const auto& traffic : traffic_) wrong += traffic->settle();
    traffic_.clear();
    borrowed_.clear();
    return wrong;
  }

 private:
  static constexpr unsigned kGpus = 2;
  std::array<Lent, kGpus> lent_;
  std::vector<std::unique_ptr<Borrowed>> borrowed_;
  std::vector<std::unique_ptr<Traffic>> traffic_;
};

void serve(Line& line) {
  std::optional<Side> side;
  line.serve(
      [&](const Json& call, std::vector<base::Fd> fds) -> Result<Answer> {
        side.emplace(static_cast<Make>(call.at("lent").at(0).at("make").get<int>()));
        Answer ours = side->lend();
        side->meet({call.at("lent"), std::move(fds)});
        return ours;
      },
      [&] {
        if (side) side->pump();
        return side.has_value();
      });
}
const bool kRegistered = add_helper(kHelper, serve);

class DyingOwnerOnDevice : public ::testing::TestWithParam<Make> {
 protected:
  void SetUp() override {
    if (const Status status = need_gpus(2); !status.ok()) GTEST_SKIP() << status.to_string();
  }
};

TEST_P(DyingOwnerOnDevice, LeavesWhatOthersHaveMapped) {
  const char* set = std::getenv("LINKSPAN_OWNER_ROUNDS");
  const auto rounds = set != nullptr ? std::strtoull(set, nullptr, 10) : 3;
  std::mt19937_64 random(std::random_device{}());
  Killer killer;
  for (std::uint64_t round = 0; round < rounds && !HasFailure(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    Side side(GetParam());
    const auto child = take(Child::spawn(kHelper));
    Answer lent = side.lend();
    side.meet(
        take(child->line().call({{"do", "meet"}, {"lent", lent.value}}, std::move(lent.fds))));
    Strike strike;
    killer.kill(child->pid(), base::Clock::steady().now() + Duration(random() % 30'000'000),
                strike);
    const auto until = base::Deadline::after(base::Clock::steady(), std::chrono::milliseconds(80));
    while (!until.passed() || !strike.came()) side.pump();
    EXPECT_EQ(side.end(), "")
        << "process " << child->pid() << " was killed at "
        << std::chrono::duration<double>(strike.at().time_since_epoch()).count();
    child->kill();
    if (round % 20 == 19) {
      std::printf("%zu kills\n", std::size_t{round + 1});
      std::fflush(stdout);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, DyingOwnerOnDevice,
                         ::testing::Values(Make::allocated, Make::chunks, Make::pool),
                         [](const auto& param) {
                           return param.param == Make::allocated ? "allocated"
                                  : param.param == Make::chunks  ? "chunks"
                                                                 : "pool";
                         });

}  // namespace dying_owner_test
}  // namespace linkspan::test
