// Between two private memories where neither mapping nor cross-process read is allowed: the
// receiver reads chunk by chunk into shared memory of its own, which the sender maps and fills, and
// copies each chunk to its place. One message at a time.
#include <algorithm>
#include <cstring>

#include "engine/worker.hpp"

namespace linkspan::engine {
namespace {

constexpr std::uint64_t kChunk = std::uint64_t{4} << 20;

}  // namespace

bool Worker::can_bounce(const TransferState& whole, const Status& failure) {
  const Exchange& x = *whole.exchange;
  return failure.code() == Code::unreachable && !x.sends && !x.bounces &&
         x.kind != MemoryKind::device && x.peer.kind != MemoryKind::device;
}

void Worker::bounce(TransferState& whole) {
  whole.exchange->bounces = true;
  if (log_.enabled(base::Level::info))
    log_.write(base::Level::info, "transfer " + std::to_string(whole.id) +
                                      " goes by bounce+cpu_threads: no way between the private "
                                      "memories of this and the peer's process");
  bouncing_.push_back(&whole);
  if (bouncing_.size() == 1)  // later: nothing of it may end before its caller returns
    aside_.run([] {}, [this]() LINKSPAN_TSA(no_thread_safety_analysis) { bounce_next(); });
}

/// The next chunk of the first one, or its end.
void Worker::bounce_next() {
  if (bouncing_.empty()) return;
  TransferState& whole = *bouncing_.front();
  Exchange& x = *whole.exchange;
  if (bounce_ == nullptr) {
    auto made = std::make_shared<Result<std::shared_ptr<const memory::Registration>>>(Status());
    aside_.run([made, make = aside_.shared_memory] { *made = make(kChunk); },
               [this, made]() LINKSPAN_TSA(no_thread_safety_analysis) {
                 if (!made->ok()) return bounce_over(made->status());
                 bounce_ = **made;
                 bounce_next();
               });
    return;
  }
  Status status = x.stopping ? Status(Code::canceled, Scope::request, "canceled") : Status();
  if (status.ok() && bounced_ == x.bytes) return bounce_over({});
  if (status.ok())
    status = copy_by(whole, bounce_,
                     {0, x.peer.offset + bounced_, std::min(kChunk, x.bytes - bounced_)});
  if (!status.ok()) bounce_over(status);
}

void Worker::bounced_in(TransferState& whole, const Status& status) {
  if (!status.ok()) return bounce_over(status);
  const Exchange& x = *whole.exchange;
  const std::uint64_t bytes = std::min(kChunk, x.bytes - bounced_);
  const std::uint64_t to =
      x.memory.registration()->region().facts().address + x.memory.offset() + bounced_;
  aside_.run(
      [to, bytes, from = bounce_] {
        std::memcpy(reinterpret_cast<void*>(to),    // NOLINT(performance-no-int-to-ptr)
                    reinterpret_cast<const void*>(  // NOLINT(performance-no-int-to-ptr)
                        from->region().facts().address),
                    bytes);
      },
      [this, bytes]() LINKSPAN_TSA(no_thread_safety_analysis) {
        bounced_ += bytes;
        bounce_next();
      });
}

void Worker::bounce_over(const Status& status) {
  TransferState& whole = *bouncing_.front();
  bouncing_.pop_front();
  bounced_ = 0;
  rendezvous_.copied(whole, status);
  bounce_next();
}

}  // namespace linkspan::engine
