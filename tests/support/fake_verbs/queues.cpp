// tests/support/fake_verbs/queues.cpp - completion queues, their channels, and asynchronous events.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tests/support/fake_verbs/fake_verbs.hpp"

namespace linkspan::transport::verbs::fake {
namespace {

using namespace std::chrono_literals;
/// So long a call waits for events that were taken and not acknowledged; the real one has no limit.
constexpr auto kAcknowledgedWithin = 10s;

/// Reads one event from a pipe. False: errno says why.
bool read_event(int fd, std::uint64_t& event) {
  ssize_t bytes = 0;
  do {
    bytes = read(fd, &event, sizeof event);
  } while (bytes < 0 && errno == EINTR);
  if (bytes == static_cast<ssize_t>(sizeof event)) return true;
  if (bytes >= 0) errno = EIO;
  return false;
}

/// Returns a place in the arena; all bits set if there is none.
std::uint64_t allocate(std::uint64_t bytes) {
  World& w = world();
  const std::lock_guard lock(w.mutex);
  return w.arena.allocate(bytes);
}

/// Waits until events that were taken are acknowledged, as the real one does. Returns 0 or EBUSY.
template <class Object>
int await_acknowledged(Object& object, std::uint32_t Object::*taken, std::uint32_t& completed) {
  const Time deadline = now() + kAcknowledgedWithin;
  pthread_mutex_lock(&object.mutex);
  while (object.*taken != completed && now() < deadline) {
    timespec until{};
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 10'000'000;
    if (until.tv_nsec >= 1'000'000'000) {
      until.tv_nsec -= 1'000'000'000;
      ++until.tv_sec;
    }
    pthread_cond_timedwait(&object.cond, &object.mutex, &until);
  }
  const bool all = object.*taken == completed;
  pthread_mutex_unlock(&object.mutex);
  return all ? 0 : EBUSY;
}

}  // namespace

bool add_completion(Host& host, std::uint32_t cq, const Completion& completion, bool solicited) {
  Segment& segment = host.segment();
  CqShared& queue = segment.cqs[cq % kCqs];
  std::uint32_t serial = 0;
  bool tell = false, overrun = false;
  {
    const SharedHold lock(queue.lock, 20ms);
    if (!lock) return false;
    serial = queue.serial;
    const std::uint64_t tail = queue.tail;
    if (serial == 0) return true;
    if (tail - queue.head >= queue.slots) {
      overrun = queue.overrun.exchange(1) == 0;
    } else {
      segment.completion(queue, tail) = completion;
      queue.tail = tail + 1;
      const std::uint32_t armed = queue.armed;
      tell = armed == 2 || (armed == 1 && (solicited || completion.wc.status != kWcSuccess));
      if (tell) queue.armed = 0;
    }
  }
  if (tell) host.notify(queue.channel, serial, std::uint64_t{serial} << 32 | cq);
  if (overrun) add_event(host, queue.context, kEventCqErr, cq);
  return true;
}

void purge(CqObject& cq, std::uint32_t qp_num) {
  const std::lock_guard consumer(cq.consumer);
  Segment& segment = own_segment();
  for (std::uint64_t i = cq.shared->head; i < cq.shared->tail; ++i) {
    Completion& each = segment.completion(*cq.shared, i);
    if (each.wc.qp_num == qp_num) each.purged = 1;
  }
}

void add_event(Host& host, std::uint32_t context, IbvEventType type, std::uint32_t subject) {
  const ContextShared& shared = host.segment().contexts[context % kContexts];
  host.notify(shared.events, shared.serial,
              std::uint64_t{subject} << 32 | static_cast<std::uint32_t>(type));
}

int poll_cq(IbvCq* cq, int count, IbvWc* into) {
  auto& c = *static_cast<CqObject*>(cq);
  if (gone()) return -1;
  counters().polls.fetch_add(1, std::memory_order_relaxed);
  if (c.shared->overrun != 0) return -1;
  if (c.shared->head == c.shared->tail) return 0;
  const std::lock_guard consumer(c.consumer);
  Segment& segment = own_segment();
  std::uint64_t head = c.shared->head;
  const std::uint64_t tail = c.shared->tail;
  int taken = 0;
  for (; head < tail && taken < count; ++head) {
    const Completion& each = segment.completion(*c.shared, head);
    if (each.purged != 0) continue;
    into[taken++] = each.wc;
    QpObject* const qp = world().qps[each.wc.qp_num % kQps];
    if (qp != nullptr && qp->qp_num == each.wc.qp_num && qp->retired < each.retires)
      qp->retired = each.retires;
  }
  c.shared->head = head;
  counters().completions.fetch_add(static_cast<std::uint64_t>(taken), std::memory_order_relaxed);
  return taken;
}

int req_notify_cq(IbvCq* cq, int solicited_only) {
  auto& c = *static_cast<CqObject*>(cq);
  if (gone() || object(cq->context).lost()) return EIO;
  counters().arms.fetch_add(1, std::memory_order_relaxed);
  const std::uint32_t wish = solicited_only != 0 ? 1 : 2;
  std::uint32_t armed = c.shared->armed;
  while (armed < wish && !c.shared->armed.compare_exchange_weak(armed, wish)) {
  }
  return 0;
}

FAKE_VERBS_EXPORT IbvCompChannel* ibv_create_comp_channel(IbvContext* context) {
  errno = EIO;
  if (gone() || object(context).lost()) return nullptr;
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return nullptr;
  fcntl(fds[1], F_SETFL, O_NONBLOCK);
  auto* const made = new ChannelObject;
  made->context = context;
  made->fd = fds[0];
  made->write_fd = fds[1];
  made->refcnt = 0;
  return made;
}

FAKE_VERBS_EXPORT int ibv_destroy_comp_channel(IbvCompChannel* channel) {
  auto* const c = static_cast<ChannelObject*>(channel);
  if (c->users != 0) return EBUSY;
  close(c->fd);
  close(c->write_fd);
  delete c;
  return 0;
}

FAKE_VERBS_EXPORT IbvCq* ibv_create_cq(IbvContext* context, int cqe, void* cq_context,
                                       IbvCompChannel* channel, int comp_vector) {
  const ContextObject& c = object(context);
  errno = EIO;
  if (gone() || c.lost()) return nullptr;
  errno = EINVAL;
  if (cqe <= 0 || cqe > settings().max_cqe || comp_vector < 0 ||
      comp_vector >= context->num_comp_vectors)
    return nullptr;
  const auto slots = static_cast<std::uint64_t>(cqe);
  const std::uint64_t ring = allocate(slots * sizeof(Completion));
  errno = ENOMEM;
  if (ring == ~std::uint64_t{0}) return nullptr;
  World& w = world();
  const std::lock_guard lock(w.mutex);
  std::uint32_t index = 0;
  while (index < kCqs && w.cqs[index] != nullptr) ++index;
  if (index == kCqs) {
    w.arena.free(ring, slots * sizeof(Completion));
    return nullptr;
  }
  auto* const made = new CqObject;
  made->context = context;
  made->channel = channel;
  made->cq_context = cq_context;
  made->handle = index;
  made->cqe = cqe;
  pthread_mutex_init(&made->mutex, nullptr);
  pthread_cond_init(&made->cond, nullptr);
  made->comp_events_completed = made->async_events_completed = 0;
  made->index = index;
  made->serial = ++w.last_serial;
  made->shared = &own_segment().cqs[index];
  CqShared& shared = *made->shared;
  shared.armed = 0;
  shared.overrun = 0;
  shared.context = c.index;
  shared.ring = ring;
  shared.slots = slots;
  shared.head = shared.tail = 0;
  shared.channel = channel != nullptr ? static_cast<ChannelObject*>(channel)->write_fd + 1 : 0;
  shared.serial = made->serial;
  if (channel != nullptr) static_cast<ChannelObject*>(channel)->users.fetch_add(1);
  w.cqs[index] = made;
  return made;
}

FAKE_VERBS_EXPORT int ibv_destroy_cq(IbvCq* cq) {
  auto* const c = static_cast<CqObject*>(cq);
  if (world().forked) return EIO;
  if (c->users != 0) return EBUSY;
  {
    const SharedHold lock(c->shared->lock, 10s);
    if (!lock) return EBUSY;
    c->shared->serial = 0;
  }
  World& w = world();
  {
    // Events that are not taken yet are of no queue from here on.
    const std::lock_guard lock(w.mutex);
    w.arena.free(c->shared->ring, c->shared->slots * sizeof(Completion));
    w.cqs[c->index] = nullptr;
  }
  if (const int error = await_acknowledged(*c, &CqObject::events_taken, c->comp_events_completed);
      error != 0)
    return error;
  if (cq->channel != nullptr) static_cast<ChannelObject*>(cq->channel)->users.fetch_sub(1);
  pthread_mutex_destroy(&cq->mutex);
  pthread_cond_destroy(&cq->cond);
  delete c;
  return 0;
}

FAKE_VERBS_EXPORT int ibv_get_cq_event(IbvCompChannel* channel, IbvCq** cq, void** cq_context) {
  World& w = world();
  std::uint64_t event = 0;
  while (read_event(channel->fd, event)) {
    const std::lock_guard lock(w.mutex);
    CqObject* const c = w.cqs[static_cast<std::uint32_t>(event) % kCqs];
    if (c == nullptr || c->serial != static_cast<std::uint32_t>(event >> 32)) continue;
    counters().events.fetch_add(1);
    pthread_mutex_lock(&c->mutex);
    ++c->events_taken;
    pthread_mutex_unlock(&c->mutex);
    *cq = c;
    *cq_context = c->cq_context;
    return 0;
  }
  return -1;
}

FAKE_VERBS_EXPORT void ibv_ack_cq_events(IbvCq* cq, unsigned count) {
  pthread_mutex_lock(&cq->mutex);
  cq->comp_events_completed += count;
  pthread_cond_signal(&cq->cond);
  pthread_mutex_unlock(&cq->mutex);
}

FAKE_VERBS_EXPORT int ibv_get_async_event(IbvContext* context, IbvAsyncEvent* event) {
  World& w = world();
  std::uint64_t read = 0;
  while (read_event(context->async_fd, read)) {
    *event = {};
    event->event_type = static_cast<IbvEventType>(static_cast<std::uint32_t>(read));
    const auto subject = static_cast<std::uint32_t>(read >> 32);
    const std::lock_guard lock(w.mutex);
    switch (event->event_type) {
      case kEventCqErr: {
        CqObject* const cq = w.cqs[subject % kCqs];
        if (cq == nullptr) continue;
        event->element.cq = cq;
        return 0;
      }
      case kEventQpFatal:
      case kEventQpReqErr:
      case kEventQpAccessErr:
      case kEventCommEst: {
        QpObject* const qp = w.qps[subject % kQps];
        if (qp == nullptr || qp->qp_num != subject) continue;
        pthread_mutex_lock(&qp->mutex);
        ++qp->events_taken;
        pthread_mutex_unlock(&qp->mutex);
        event->element.qp = qp;
        return 0;
      }
      default:
        event->element.port_num = static_cast<int>(subject);
        return 0;
    }
  }
  return -1;
}

FAKE_VERBS_EXPORT void ibv_ack_async_event(IbvAsyncEvent* event) {
  switch (event->event_type) {
    case kEventQpFatal:
    case kEventQpReqErr:
    case kEventQpAccessErr:
    case kEventCommEst:
      pthread_mutex_lock(&event->element.qp->mutex);
      ++event->element.qp->events_completed;
      pthread_cond_signal(&event->element.qp->cond);
      pthread_mutex_unlock(&event->element.qp->mutex);
      break;
    default:
      break;  // a CQ's are not waited for here
  }
}

int await_events(QpObject& qp) {
  return await_acknowledged(qp, &QpObject::events_taken, qp.events_completed);
}

}  // namespace linkspan::transport::verbs::fake
