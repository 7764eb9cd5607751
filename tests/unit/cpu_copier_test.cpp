#include "copy/cpu_copier.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.hpp"

namespace linkspan::copy {
namespace cpu_copier_test {

using Bytes = std::vector<unsigned char>;

constexpr unsigned char kPoison = 0xEE;

Bytes pattern(std::size_t bytes, std::size_t seed) {
  Bytes data(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    data[i] = static_cast<unsigned char>(i * 131 + (i >> 8) * 7 + seed);
  return data;
}

std::uint64_t address(const void* p) { return reinterpret_cast<std::uint64_t>(p); }

Status end_of(Copier& copier, Ticket ticket) {
  const auto deadline = base::Deadline::after(base::Clock::steady(), std::chrono::seconds(30));
  while (!deadline.passed()) {
    if (auto end = copier.poll(ticket)) return *end;
    std::this_thread::yield();
  }
  return Status(Code::timed_out, Scope::request, "the order never ended");
}

Status run(Copier& copier, const Order& order) {
  auto ticket = copier.start(order);
  return ticket.ok() ? end_of(copier, *ticket) : ticket.status();
}

base::Fd pidfd_of(pid_t pid) {
  return base::Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

/// Returns pieces of odd sizes at odd places, none adjacent to the next; offsets into buffers of
/// `bytes`.
std::vector<Piece> scattered(std::size_t bytes) {
  std::vector<Piece> pieces;
  std::uint64_t to = 3, from = 1, k = 0;
  const std::uint64_t sizes[] = {1, 3, 16, 255, 4095, 4097, 65537, (1u << 20) + 1, 0, 17};
  while (true) {
    const std::uint64_t n = sizes[k % std::size(sizes)];
    if (to + n + 64 > bytes || from + n + 64 > bytes) return pieces;
    pieces.push_back({to, from, n});
    to += n + k % 17 + 1;
    from += n + k * 7 % 17 + 1;
    ++k;
  }
}

std::vector<Piece> placed(std::vector<Piece> pieces, std::uint64_t to, std::uint64_t from) {
  for (Piece& piece : pieces) piece = {piece.to + to, piece.from + from, piece.bytes};
  return pieces;
}

/// Returns the expected contents of `to`, with the guards between and around the pieces.
Bytes expected_after(Bytes to, const Bytes& from, const std::vector<Piece>& offsets) {
  for (const Piece& p : offsets) std::memcpy(to.data() + p.to, from.data() + p.from, p.bytes);
  return to;
}

/// Returns how many executors of this process live.
std::size_t executors() {
  std::size_t found = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    found += name == "ls-copy" ? 1 : 0;
  }
  return found;
}

class CpuCopierTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = CpuCopier::create(3);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    copier = *std::move(made);
  }

  std::unique_ptr<CpuCopier> copier;
};

TEST_F(CpuCopierTest, CopiesExactlyThePieces) {
  const Bytes from = pattern(5'000'001, 1);
  Bytes to(from.size(), kPoison);
  const auto offsets = scattered(from.size());
  const Bytes want = expected_after(to, from, offsets);
  const auto pieces = placed(offsets, address(to.data()), address(from.data()));
  ASSERT_TRUE(run(*copier, {.method = Method::cpu_threads, .pieces = pieces}).ok());
  EXPECT_TRUE(to == want);
}

TEST_F(CpuCopierTest, CopiesSmallSealedMemoryBeforeStartReturns) {
  const Bytes from = pattern(CpuCopier::kInlineBytes + 200, 1);
  Bytes to(from.size(), kPoison);
  const auto all = [&](std::size_t count) {
    std::vector<Piece> pieces{{3, 1, CpuCopier::kInlineBytes - 4 * (count - 1)}};
    while (pieces.size() < count)
      pieces.push_back({pieces.back().to + pieces.back().bytes + 1,
                        pieces.back().from + pieces.back().bytes + 1, 4});
    return pieces;
  };
  for (const std::size_t count : {std::size_t{1}, CpuCopier::kInlinePieces}) {
    const auto offsets = all(count);
    const Bytes want = expected_after(to, from, offsets);
    const auto pieces = placed(offsets, address(to.data()), address(from.data()));
    const auto ticket =
        copier->start({.method = Method::cpu_threads, .pieces = pieces, .sealed = true});
    ASSERT_TRUE(ticket.ok());
    EXPECT_EQ(copier->expected(base::Time{}), base::Time{});
    const auto end = copier->poll(*ticket);
    ASSERT_TRUE(end.has_value()) << count;
    EXPECT_TRUE(end->ok());
    EXPECT_TRUE(to == want);
  }
  EXPECT_EQ(executors(), 0u);
  // Executors copy what is larger, has more pieces, or is not sealed.
  const Piece larger[] = {{address(to.data()), address(from.data()), CpuCopier::kInlineBytes + 1}};
  const auto more =
      placed(all(CpuCopier::kInlinePieces + 1), address(to.data()), address(from.data()));
  EXPECT_TRUE(run(*copier, {.pieces = larger, .sealed = true}).ok());
  EXPECT_EQ(executors(), 1u);
  EXPECT_TRUE(run(*copier, {.pieces = more, .sealed = true}).ok());
  EXPECT_TRUE(run(*copier, {.pieces = std::span(more).first(1)}).ok());
}

TEST_F(CpuCopierTest, AbortOfWhatStartHasCopiedChangesNothing) {
  const Bytes from = pattern(std::size_t{3} << 20, 1);
  Bytes to(from.size(), kPoison);
  const Piece small{address(to.data()), address(from.data()), 8};
  const auto copied = copier->start({.pieces = {&small, 1}, .sealed = true});
  ASSERT_TRUE(copied.ok());
  copier->abort(*copied);
  const auto end = copier->poll(*copied);
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(end->ok()) << end->to_string();
  const Piece all{address(to.data()), address(from.data()), from.size()};
  EXPECT_EQ(run(*copier, {.pieces = {&all, 1}}).to_string(), "ok");
  EXPECT_TRUE(to == from);
}

TEST_F(CpuCopierTest, LeavesASmallCopyAcrossProcessesToItsCaller) {
  const base::Fd pidfd = pidfd_of(::getpid());
  const Bytes from = pattern(4001, 1);
  Bytes to(from.size(), kPoison);
  const Piece piece{address(to.data()) + 3, address(from.data()) + 1, 3990};
  EXPECT_TRUE(CpuCopier::is_small({&piece, 1}));
  std::atomic<bool> prompt{false};
  const auto start = [&] {
    return copier->start({.method = Method::cross_process,
                          .pieces = {&piece, 1},
                          .pid = ::getpid(),
                          .pidfd = pidfd.get(),
                          .prompt = &prompt,
                          .by_caller = true});
  };
  auto ticket = start();
  ASSERT_TRUE(ticket.ok());
  EXPECT_EQ(executors(), 0u);
  EXPECT_FALSE(copier->poll(*ticket).has_value());
  copier->abort(*ticket);
  EXPECT_FALSE(copier->poll(*ticket).has_value()) << "its caller may be at it";
  copier->run(*ticket);
  const auto end = copier->poll(*ticket);
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(end->ok()) << end->to_string();
  EXPECT_TRUE(to == expected_after(Bytes(to.size(), kPoison), from, {{3, 1, 3990}}));
  // This thread may lose its core in the middle of a copy, which is not prompt then.
  for (int i = 0; i < 100 && !prompt; ++i) {
    ticket = start();
    ASSERT_TRUE(ticket.ok());
    copier->run(*ticket);
    ASSERT_TRUE(copier->poll(*ticket).has_value());
  }
  EXPECT_TRUE(prompt);
}

TEST_F(CpuCopierTest, CopiesOnceWhatItsCallerCopies) {
  const Bytes from = pattern(100, 1);
  Bytes to(from.size(), kPoison);
  const Piece piece{address(to.data()), address(from.data()), from.size()};
  const auto ticket = copier->start({.pieces = {&piece, 1}, .sealed = true, .by_caller = true});
  ASSERT_TRUE(ticket.ok());
  EXPECT_FALSE(copier->poll(*ticket).has_value());
  EXPECT_TRUE(to == Bytes(from.size(), kPoison));
  copier->run(*ticket);
  EXPECT_TRUE(copier->poll(*ticket).has_value());
  EXPECT_TRUE(to == from);
}

TEST_F(CpuCopierTest, CompletesWhatHasNoBytes) {
  const Piece empty[] = {{1, 1, 0}, {0, 0, 0}};
  for (const auto& pieces : {std::span<const Piece>(), std::span<const Piece>(empty)}) {
    auto ticket = copier->start({.method = Method::cpu_threads, .pieces = pieces});
    ASSERT_TRUE(ticket.ok());
    EXPECT_EQ(copier->expected(base::Time{}), base::Time{});  // has news
    const auto end = copier->poll(*ticket);
    ASSERT_TRUE(end.has_value());
    EXPECT_TRUE(end->ok());
  }
}

TEST_F(CpuCopierTest, TellsAnEndOnce) {
  auto ticket = copier->start({.method = Method::cpu_threads, .pieces = {}});
  ASSERT_TRUE(ticket.ok());
  EXPECT_NE(*ticket, 0u);
  EXPECT_TRUE(end_of(*copier, *ticket).ok());
  for (Ticket gone : {*ticket, Ticket{0}, *ticket + CpuCopier::kOrders}) {
    copier->abort(gone);
    const auto end = copier->poll(gone);
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->code(), Code::internal);
  }
  EXPECT_EQ(copier->expected(base::Time{}), base::Time::max());
}

TEST_F(CpuCopierTest, RefusesOrdersThatItCannotDo) {
  EXPECT_EQ(CpuCopier::create(0).status().code(), Code::invalid_argument);
  for (const Order& bad :
       {Order{.method = Method::copy_engine}, Order{.method = Method::sm_kernel},
        Order{.method = Method::pageable}, Order{.method = Method::cross_process},
        Order{.method = Method::cross_process, .pid = ::getpid()}})
    EXPECT_EQ(copier->start(bad).status().code(), Code::invalid_argument) << name_of(bad.method);
}

TEST_F(CpuCopierTest, TakesSoManyOrdersAndMoreAfterAPoll) {
  const Bytes from = pattern(1000, 1);
  Bytes to(from.size() * CpuCopier::kOrders, kPoison);
  std::vector<Ticket> tickets;
  for (std::size_t i = 0; i < CpuCopier::kOrders; ++i) {
    const Piece piece{address(to.data() + i * 1000), address(from.data()), 1000};
    auto ticket = copier->start({.method = Method::cpu_threads, .pieces = {&piece, 1}});
    ASSERT_TRUE(ticket.ok()) << i;
    tickets.push_back(*ticket);
  }
  EXPECT_EQ(copier->start({}).status().code(), Code::no_resource);
  // A slow one does not hold up the others' slots: any order of polls frees.
  EXPECT_TRUE(end_of(*copier, tickets[100]).ok());
  auto again = copier->start({});
  ASSERT_TRUE(again.ok());
  tickets[100] = *again;
  for (Ticket ticket : tickets) EXPECT_TRUE(end_of(*copier, ticket).ok());
  for (std::size_t i = 0; i < to.size(); ++i) ASSERT_EQ(to[i], from[i % 1000]) << i;
}

TEST_F(CpuCopierTest, AbortDropsWhatHasNotBegun) {
  auto made = CpuCopier::create(1);  // so that pieces may share their memory
  ASSERT_TRUE(made.ok());
  const Bytes from = pattern(CpuCopier::kChunkBytes, 1);
  Bytes to(from.size(), kPoison);
  // 16 GiB: more than a second, and no more of it than needed.
  const std::vector<Piece> much(16384, {address(to.data()), address(from.data()), from.size()});
  auto first = (*made)->start({.method = Method::cpu_threads, .pieces = much});
  auto second = (*made)->start({.method = Method::cpu_threads, .pieces = much});
  ASSERT_TRUE(first.ok() && second.ok());
  (*made)->abort(*second);
  const auto dropped = (*made)->poll(*second);  // nothing of it had begun: quiet at once
  ASSERT_TRUE(dropped.has_value());
  EXPECT_EQ(dropped->code(), Code::canceled);
  (*made)->abort(*first);
  EXPECT_EQ(end_of(**made, *first).code(), Code::canceled);
  to.assign(to.size(), kPoison);
  EXPECT_TRUE(run(**made, {.method = Method::cpu_threads, .pieces = {}}).ok());
  made->reset();
  EXPECT_TRUE(to == Bytes(to.size(), kPoison));  // no late bytes
}

TEST_F(CpuCopierTest, IsDestroyedWithOrdersQueued) {
  constexpr std::size_t kOrders = 20;
  const Bytes from = pattern(std::size_t{4} << 20, 1);
  Bytes to(kOrders * from.size(), kPoison);
  for (std::size_t i = 0; i < kOrders; ++i) {
    const Piece all{address(&to[i * from.size()]), address(from.data()), from.size()};
    ASSERT_TRUE(copier->start({.method = Method::cpu_threads, .pieces = {&all, 1}}).ok());
  }
  copier.reset();
}

TEST_F(CpuCopierTest, ReadsAndWritesTheMemoryOfAProcess) {
  const base::Fd pidfd = pidfd_of(::getpid());
  ASSERT_TRUE(pidfd.valid());
  for (bool read : {true, false}) {
    const Bytes from = pattern(3'000'001, read ? 5 : 6);
    Bytes to(from.size(), kPoison);
    const auto offsets = scattered(from.size());
    const auto pieces = placed(offsets, address(to.data()), address(from.data()));
    const Status end = run(*copier, {.method = Method::cross_process,
                                     .pieces = pieces,
                                     .pid = ::getpid(),
                                     .pidfd = pidfd.get(),
                                     .remote_is_source = read});
    ASSERT_TRUE(end.ok()) << end.to_string();
    EXPECT_TRUE(to == expected_after(Bytes(from.size(), kPoison), from, offsets));
  }
}

TEST_F(CpuCopierTest, NamesTheAddressThatCannotBeRead) {
  const base::Fd pidfd = pidfd_of(::getpid());
  const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* hole =
      ::mmap(nullptr, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(hole, MAP_FAILED);
  // Not unmapped, because another thread's mmap could take the place.
  ASSERT_EQ(::mprotect(static_cast<std::byte*>(hole) + 2 * page, page, PROT_NONE), 0);
  Bytes mine(4 * page, kPoison);
  const Piece over{address(mine.data()), address(hole), 4 * page};
  const Status end = run(*copier, {.method = Method::cross_process,
                                   .pieces = {&over, 1},
                                   .pid = ::getpid(),
                                   .pidfd = pidfd.get(),
                                   .remote_is_source = true});
  EXPECT_EQ(end.code(), Code::unreachable);
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx",
                static_cast<unsigned long long>(address(hole) + 2 * page));
  EXPECT_NE(end.what().find(text), std::string::npos) << end.what();
  EXPECT_TRUE(std::all_of(mine.begin() + static_cast<std::ptrdiff_t>(2 * page), mine.end(),
                          [](unsigned char c) { return c == kPoison; }));
  ::munmap(hole, 4 * page);
}

TEST_F(CpuCopierTest, SaysThatAProcessHasEnded) {
  Bytes there = pattern(4096, 1), here(4096, kPoison);
  int gate[2];
  ASSERT_EQ(::pipe(gate), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    char byte = 0;
    ::close(gate[1]);
    [[maybe_unused]] const auto n = ::read(gate[0], &byte, 1);
    ::_exit(0);
  }
  ::close(gate[0]);
  const base::Fd pidfd = pidfd_of(child);
  ASSERT_TRUE(pidfd.valid());
  const Piece piece{address(here.data()), address(there.data()), 4096};
  const Order order{.method = Method::cross_process,
                    .pieces = {&piece, 1},
                    .pid = child,
                    .pidfd = pidfd.get(),
                    .remote_is_source = true};
  there.assign(there.size(), 0);  // ours, not the child's
  const Status alive = run(*copier, order);
  EXPECT_TRUE(alive.ok()) << alive.to_string();
  EXPECT_TRUE(here == pattern(4096, 1));
  ::close(gate[1]);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(run(*copier, order).code(), Code::disconnected);
  // Only the number is valid, as if another process had it now: the pidfd shows that.
  Order reused = order;
  reused.pid = ::getpid();
  EXPECT_EQ(run(*copier, reused).code(), Code::disconnected);
  ProcessProof proof{.state = ProcessProof::ProofState::right};
  reused.proof = &proof;
  EXPECT_EQ(run(*copier, reused).code(), Code::disconnected) << "it was not seen to live";
}

}  // namespace cpu_copier_test
}  // namespace linkspan::copy
