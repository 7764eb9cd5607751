#include "vcache/native/src/background.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <iterator>
#include <utility>
#include <vector>

#include "base/named_thread.hpp"
#include "base/no_memory.hpp"
#include "vcache/native/src/spares.hpp"

namespace linkspan::nvlink {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kPiece = std::uint64_t{64} << 20;
constexpr std::size_t kPieces = 2;  // of one transfer on its GPU: one runs, the next is ready
constexpr Duration kLongest = 1ms, kLong = 60s;
constexpr Duration kToEnd = 5s;  // for end(), when the process or the library ends

base::Deadline after(Duration wait) { return base::Deadline::after(base::Clock::steady(), wait); }

}  // namespace

/// Runs one transfer. Its driver objects belong to the source GPU.
class Background::Job {
 public:
  Job(Copy copy, Duration timeout, cuda::DeferredDestroyer::DeferralGuard stay)
      : copy_(std::move(copy)),
        limit_(after(timeout > Duration::zero() ? timeout : Duration::max())),
        stay_(std::move(stay)) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job() { release(); }

  /// Records an event in the caller's stream.
  Outcome mark(cuda::CUstream stream) {
    if (Outcome o = take(mark_, "cuEventCreate"); !o.ok()) return o;
    const cuda::Driver& d = copy_.driver();
    return outcome(d, d.cuEventRecord(mark_, stream), "cuEventRecord", copy_.name());
  }

  /// Polls and submits. Returns true once the transfer has ended and nothing of it is on a GPU.
  bool advance(bool ending) {
    const auto scope = copy_.enter();
    if (!scope.ok()) {
      fail({NVLINK_TRANSFER_FAILED, copy_.name() + ": " + scope.status().what()});
      in_flight_ = 0;  // the context is lost
    }
    collect();
    if (end_.ok() && done_ < copy_.bytes()) {
      if (canceled_)
        fail({NVLINK_TRANSFER_CANCELED, copy_.name() + ": canceled"});
      else if (limit_.passed())
        fail({NVLINK_TRANSFER_TIMED_OUT,
              copy_.name() + ": the deadline passed, " + std::to_string(done_) + " are in place"});
      else if (ending)
        fail({NVLINK_TRANSFER_CANCELED, copy_.name() + ": the library is being unloaded"});
    }
    while (end_.ok() && in_flight_ < kPieces && submitted_ < copy_.bytes() && passed(mark_))
      submit();
    if (in_flight_ != 0 || (end_.ok() && done_ < copy_.bytes())) return false;
    release();
    return true;
  }

  /// Returns the mappings. Requires that the transfer has ended.
  Copy::Mappings take() {
    stay_ = {};
    return copy_.take();
  }

  void cancel() noexcept { canceled_ = true; }
  const Copy& copy() const noexcept { return copy_; }
  const Outcome& end() const noexcept { return end_; }     // Requires that the transfer has ended.
  Outcome take_end() noexcept { return std::move(end_); }  // likewise
  std::uint64_t done() const noexcept { return done_; }
  bool over() const noexcept { return over_.load(std::memory_order_acquire); }
  void set_over() noexcept { over_.store(true, std::memory_order_release); }

 private:
  void fail(Outcome why) {
    if (end_.ok()) end_ = std::move(why);
  }

  bool passed(cuda::CUevent event) {
    const auto r = copy_.driver().cuEventQuery(event);
    if (r == cuda::CUDA_SUCCESS) return true;
    if (r != cuda::CUDA_ERROR_NOT_READY) {
      fail(outcome(copy_.driver(), r, "cuEventQuery", copy_.name()));
      if (cuda::loses_context(r)) in_flight_ = 0;  // nothing runs in a lost context
    }
    return false;
  }

  void collect() {
    while (in_flight_ != 0 && passed(ends_[first_])) {
      done_ = std::min(done_ + kPiece, copy_.bytes());
      first_ = (first_ + 1) % kPieces;
      --in_flight_;
    }
  }

  template <class T>
  Outcome take(T& into, const char* call) {
    if (into != nullptr) return {};
    const auto r = Spares::only().take(copy_.driver(), copy_.source_gpu(), into);
    return outcome(copy_.driver(), r, call, copy_.name());
  }

  void submit() {
    Outcome o = take(stream_, "cuStreamCreateWithPriority");
    for (cuda::CUevent& end : ends_)
      if (o.ok()) o = take(end, "cuEventCreate");
    if (o.ok()) o = copy_.submit(submitted_, kPiece, stream_);
    if (!o.ok()) return fail(std::move(o));
    submitted_ += std::min(kPiece, copy_.bytes() - submitted_);
    const cuda::CUevent end = ends_[(first_ + in_flight_) % kPieces];
    ++in_flight_;
    const auto r = copy_.driver().cuEventRecord(end, stream_);
    if (r == cuda::CUDA_SUCCESS) return;
    fail(outcome(copy_.driver(), r, "cuEventRecord", copy_.name()));
    // Only the stream can report the end of this piece; it holds two pieces at most.
    copy_.driver().cuStreamSynchronize(stream_);
    in_flight_ = 0;
  }

  template <class T>
  void release(T& taken) noexcept {
    if (taken != nullptr) Spares::only().release(copy_.source_gpu(), std::exchange(taken, nullptr));
  }
  void release() noexcept {
    release(mark_);
    for (cuda::CUevent& end : ends_) release(end);
    release(stream_);
  }

  Copy copy_;
  const base::Deadline limit_;
  cuda::DeferredDestroyer::DeferralGuard stay_;
  cuda::CUevent mark_ = nullptr;
  std::array<cuda::CUevent, kPieces> ends_{};
  cuda::CUstream stream_ = nullptr;
  std::size_t first_ = 0, in_flight_ = 0;  // of the pieces
  std::uint64_t submitted_ = 0;
  Outcome end_{};
  std::atomic<std::uint64_t> done_{0};
  std::atomic<bool> canceled_{false}, over_{false};
};

void Background::end() {
  std::jthread thread;
  {
    const base::MutexLock lock(mutex_);
    ending_ = true;
    thread = std::move(thread_);
  }
  changed_.notify_all();
}  // the jthread joins here

Outcome Background::begin(Copy copy, cuda::CUstream stream, Duration timeout, std::uint64_t& id) {
  const bool nothing = copy.bytes() == 0;
  const auto job = std::make_shared<Job>(
      std::move(copy), timeout,
      nothing ? cuda::DeferredDestroyer::DeferralGuard() : destroyer_.defer());
  {
    const base::MutexLock lock(mutex_);
    if (jobs_.size() >= kKept)
      return {NVLINK_TRANSFER_FAILED, std::to_string(kKept) +
                                          " transfers are kept: ask nvlink_transfer_test() or "
                                          "_wait() for their ends"};
  }
  if (nothing)
    job->set_over();
  else if (Outcome o = job->mark(stream); !o.ok())
    return o;
  const base::MutexLock lock(mutex_);
  // Starts the thread and allocates first: if one of these throws, nothing has begun.
  if (!nothing && !thread_.joinable() && !ending_)
    thread_ = base::named_thread<"ls-nvlink">([this] { loop(); });
  std::list<std::shared_ptr<Job>> active(nothing ? 0 : 1, job);
  jobs_.emplace_hint(jobs_.end(), last_ + 1, job);
  id = ++last_;
  active_.splice(active_.end(), active);
  changed_.notify_all();
  return {};
}

bool Background::test(std::uint64_t id, Duration wait, Outcome& end, std::uint64_t& done) {
  const base::Deadline deadline = after(wait);
  const base::MutexLock lock(mutex_);
  for (;;) {
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) return false;
    Job& job = *found->second;
    done = job.done();
    if (job.over()) {
      end = job.take_end();
      jobs_.erase(found);
      return true;
    }
    if (deadline.passed()) {
      end = {NVLINK_TRANSFER_NOT_READY};
      return true;
    }
    changed_.wait(mutex_, deadline);
  }
}

bool Background::cancel(std::uint64_t id) {
  const base::MutexLock lock(mutex_);
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return false;
  found->second->cancel();
  changed_.notify_all();
  return true;
}

void Background::loop() {
  Duration nap = 0us;
  std::optional<base::Deadline> last;
  mutex_.lock();
  for (;;) {
    const bool ending = ending_;
    if (ending && !last) last = after(kToEnd);
    if (ending && (active_.empty() || last->passed())) break;
    if (active_.empty()) {
      changed_.wait(mutex_, after(kLong));
      nap = 0us;
      continue;
    }
    std::vector<std::shared_ptr<Job>> some, over;
    try {
      const std::size_t most = std::min(kActive, active_.size());
      over.reserve(most);
      some.assign(active_.begin(), std::next(active_.begin(), static_cast<std::ptrdiff_t>(most)));
    } catch (const std::exception&) {
      changed_.wait(mutex_, after(base::kWithoutMemory));
      continue;
    }
    mutex_.unlock();
    for (const auto& job : some) {
      bool ended = false;
      try {
        ended = job->advance(ending);
        if (!ended) continue;
        ended_(job->copy(), job->end().code);
        destroyer_.run([mappings = job->take()] {});
      } catch (const std::exception&) {
        // No memory: a transfer that has ended is reported all the same, another one is polled
        // again.
      }
      if (ended) over.push_back(job);
    }
    mutex_.lock();
    for (const auto& job : over) {
      job->set_over();
      std::erase(active_, job);
    }
    if (!over.empty()) changed_.notify_all();
    // Polls less and less often, because a caller's stream may be blocked for long.
    nap = over.empty() ? std::clamp<Duration>(nap + nap / 8, 5us, kLongest) : Duration::zero();
    if (nap > Duration::zero()) changed_.wait(mutex_, after(nap));
  }
  mutex_.unlock();
}

}  // namespace linkspan::nvlink
