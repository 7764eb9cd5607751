// tests/support/fake_verbs/queue_pair.cpp - the life of a queue pair.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "tests/support/fake_verbs/fake_verbs.hpp"

namespace linkspan::transport::verbs::fake {
namespace {

using namespace std::chrono_literals;
constexpr auto kFenceWithin = 30s;
constexpr unsigned kPsnBits = 0xffffff;

/// Returns memory whose pages are touched only when they are used.
template <class T>
Zeros<T> zeros(std::size_t count) {
  return Zeros<T>(static_cast<T*>(std::calloc(std::max<std::size_t>(count, 1), sizeof(T))));
}

QpObject& qp_of(IbvQp* qp) { return *static_cast<QpObject*>(qp); }

/// What a move between two states needs beside IBV_QP_STATE, and what it may have.
struct Move {
  IbvQpState from, to;
  int needs, may;
};
constexpr Move kMoves[] = {
    {kQpsReset, kQpsInit, kQpPkeyIndex | kQpPort | kQpAccessFlags, 0},
    {kQpsInit, kQpsInit, 0, kQpPkeyIndex | kQpPort | kQpAccessFlags},
    {kQpsInit, kQpsRtr,
     kQpAv | kQpPathMtu | kQpDestQpn | kQpRqPsn | kQpMaxDestRdAtomic | kQpMinRnrTimer,
     kQpAccessFlags | kQpPkeyIndex},
    {kQpsRtr, kQpsRts, kQpTimeout | kQpRetryCnt | kQpRnrRetry | kQpSqPsn | kQpMaxQpRdAtomic,
     kQpCurState | kQpAccessFlags | kQpMinRnrTimer},
    {kQpsRts, kQpsRts, 0, kQpCurState | kQpAccessFlags | kQpMinRnrTimer},
};

bool may_move(IbvQpState from, IbvQpState to, int mask) {
  if (to == kQpsReset || to == kQpsErr) return mask == kQpState || mask == (kQpState | kQpCurState);
  for (const Move& each : kMoves)
    if (each.from == from && each.to == to)
      return (mask & each.needs) == each.needs && (mask & ~(each.needs | each.may | kQpState)) == 0;
  return false;
}

/// Checks the attributes against the device. Returns 0 or an errno.
int check(ContextObject& context, const IbvQpAttr& attr, int mask) {
  const Settings& s = settings();
  if ((mask & kQpPort) != 0 && attr.port_num != kPorts) return EINVAL;
  if ((mask & kQpPkeyIndex) != 0 && attr.pkey_index != 0) return EINVAL;
  if ((mask & kQpMaxQpRdAtomic) != 0 && attr.max_rd_atomic > s.max_rd_atomic) return EINVAL;
  if ((mask & kQpMaxDestRdAtomic) != 0 && attr.max_dest_rd_atomic > s.max_rd_atomic) return EINVAL;
  if ((mask & kQpTimeout) != 0 && attr.timeout > 31) return EINVAL;
  if ((mask & kQpRetryCnt) != 0 && attr.retry_cnt > 7) return EINVAL;
  if ((mask & kQpRnrRetry) != 0 && attr.rnr_retry > 7) return EINVAL;
  if ((mask & kQpMinRnrTimer) != 0 && attr.min_rnr_timer > 31) return EINVAL;
  if ((mask & kQpRqPsn) != 0 && attr.rq_psn > kPsnBits) return EINVAL;
  if ((mask & kQpSqPsn) != 0 && attr.sq_psn > kPsnBits) return EINVAL;
  if ((mask & kQpDestQpn) != 0 && attr.dest_qp_num > kPsnBits) return EINVAL;
  if ((mask & kQpPathMtu) != 0) {
    IbvPortAttr port{};
    if (context.query_port(&context.context, kPorts, &port, sizeof port) != 0) return EIO;
    if (attr.path_mtu < kMtu256 || attr.path_mtu > port.active_mtu) return EINVAL;
  }
  return 0;
}

/// Finds the way to the peer. Returns 0 or an errno.
int connect(ContextObject& context, const IbvQpAttr& attr, Connection& connection, Route& route) {
  const IbvAhAttr& ah = attr.ah_attr;
  if (ah.port_num != kPorts) return EINVAL;
  if (!gid_entry(context, ah.is_global != 0 ? ah.grh.sgid_index : 0, route.from, route.gid_type))
    return EINVAL;
  if (ah.is_global != 0) {
    if (!parse_gid(ah.grh.dgid, route.to)) return ETIMEDOUT;
    if (settings().infiniband == 0 && route.to.ipv4 != route.from.ipv4) return EINVAL;
  } else {
    if (settings().infiniband == 0 || ah.dlid == 0) return EINVAL;
    const std::uint32_t lid = ah.dlid - 1U;
    route.to = {.host = lid / 16, .device = lid % 16, .generation = 0, .ipv4 = false};
  }
  route.qp_num = attr.dest_qp_num;
  connection.host = find_host(route.to.host);
  // Nobody answers the question for this address.
  return connection.host != nullptr && connection.host->alive() ? 0 : ETIMEDOUT;
}

/// Ends all that the queue pair does here. Its state is RESET after it. False: not in time.
bool fence(QpObject& qp) {
  ContextObject& context = object_of(qp);
  const Turns::Call call(context.turns);
  const SharedHold landing(qp.shared->landing, kFenceWithin, peers_pad(qp));
  if (!landing) return false;
  const std::lock_guard post(qp.post);
  qp.shared->state = kQpsReset;
  qp.head = qp.retired = qp.tail.load();
  qp.shared->head = qp.shared->tail.load();
  qp.connection = {};
  return true;
}

void drop_completions(QpObject& qp) {
  purge(*static_cast<CqObject*>(qp.send_cq), qp.qp_num);
  if (qp.recv_cq != qp.send_cq) purge(*static_cast<CqObject*>(qp.recv_cq), qp.qp_num);
}

int to_error(QpObject& qp) {
  ContextObject& context = object_of(qp);
  const Time deadline = now() + kFenceWithin;
  while (now() < deadline) {
    const Turns::Call call(context.turns);
    const SharedHold landing(qp.shared->landing, kFenceWithin, peers_pad(qp));
    if (landing && move_to_error(*world().host, *qp.shared)) {
      world().host->wake(context.index);
      return 0;
    }
  }
  return ETIMEDOUT;
}

void keep(IbvQpAttr& kept, const IbvQpAttr& attr, int mask) {
  const auto set = [mask](int bit, auto& to, const auto& from) {
    if ((mask & bit) != 0) to = from;
  };
  set(kQpState, kept.qp_state, attr.qp_state);
  set(kQpAccessFlags, kept.qp_access_flags, attr.qp_access_flags);
  set(kQpPkeyIndex, kept.pkey_index, attr.pkey_index);
  set(kQpPort, kept.port_num, attr.port_num);
  set(kQpAv, kept.ah_attr, attr.ah_attr);
  set(kQpPathMtu, kept.path_mtu, attr.path_mtu);
  set(kQpTimeout, kept.timeout, attr.timeout);
  set(kQpRetryCnt, kept.retry_cnt, attr.retry_cnt);
  set(kQpRnrRetry, kept.rnr_retry, attr.rnr_retry);
  set(kQpRqPsn, kept.rq_psn, attr.rq_psn);
  set(kQpMaxQpRdAtomic, kept.max_rd_atomic, attr.max_rd_atomic);
  set(kQpMinRnrTimer, kept.min_rnr_timer, attr.min_rnr_timer);
  set(kQpSqPsn, kept.sq_psn, attr.sq_psn);
  set(kQpMaxDestRdAtomic, kept.max_dest_rd_atomic, attr.max_dest_rd_atomic);
  set(kQpDestQpn, kept.dest_qp_num, attr.dest_qp_num);
}

/// Takes a number and a place in the segment. Null: there is none.
QpShared* take_place(QpObject& qp, std::uint64_t ring_bytes) {
  World& w = world();
  Segment& segment = own_segment();
  const std::lock_guard lock(w.mutex);
  std::uint32_t tried = 0;
  do {
    w.last_qp = (w.last_qp + 1) % (4 * kQps);  // so that no number is used again soon
  } while ((w.last_qp % kQps == 0 || w.qps[w.last_qp % kQps] != nullptr) && ++tried < kQps);
  if (tried >= kQps) return nullptr;
  QpShared& shared = segment.qps[w.last_qp % kQps];
  shared.ring = w.arena.allocate(ring_bytes);
  if (shared.ring == ~std::uint64_t{0}) return nullptr;
  qp.qp_num = segment.number << 14 | w.last_qp;
  qp.handle = w.last_qp;
  w.qps[w.last_qp % kQps] = &qp;
  return &shared;
}

}  // namespace

Pad* peers_pad(const QpObject& qp) {
  const Host* const host = qp.connection.host.get();
  if (host == nullptr) return nullptr;
  const QpShared& peer = host->segment().qp(qp.shared->route.qp_num);
  return &host->segment().contexts[peer.context % kContexts].pad;
}

bool move_to_error(Host& host, QpShared& qp) {
  Segment& segment = host.segment();
  qp.state = kQpsErr;
  for (std::uint64_t i = qp.head; i < qp.tail; ++i) {
    Completion flushed{};
    std::memset(&flushed.wc, 0x5a, sizeof flushed.wc);
    flushed.wc.wr_id = segment.receive(qp, i).wr_id;
    flushed.wc.status = kWcWrFlushErr;
    flushed.wc.qp_num = qp.number;
    const bool silent =
        segment.devices[qp.device].lost != 0 && host.own() && settings().lost_silent != 0;
    if (!silent && !add_completion(host, qp.recv_cq, flushed, true)) return false;
    qp.head = i + 1;
  }
  return true;
}

void lose_device(std::uint32_t index) {
  World& w = world();
  const std::lock_guard lock(w.mutex);
  if (w.host == nullptr || index >= kDevices) return;
  if (own_segment().devices[index].lost.exchange(1) != 0) return;
  for (ContextObject* context : w.contexts) {
    if (context->device_index != index) continue;
    {
      const Turns::Call call(context->turns);
      for (QpObject* qp : context->qps) {
        const SharedHold landing(qp->shared->landing, kFenceWithin, peers_pad(*qp));
        if (landing && qp->shared->state != kQpsReset) move_to_error(*w.host, *qp->shared);
      }
    }
    add_event(*w.host, context->index, kEventDeviceFatal, 0);
    w.host->wake(context->index);
  }
}

FAKE_VERBS_EXPORT IbvQp* ibv_create_qp(IbvPd* pd, IbvQpInitAttr* init) {
  ContextObject& context = object(pd->context);
  const Settings& s = settings();
  errno = EIO;
  if (gone() || context.lost()) return nullptr;
  const IbvQpCap& cap = init->cap;
  errno = EINVAL;
  if (init->qp_type != kQptRc || init->send_cq == nullptr || init->recv_cq == nullptr ||
      init->srq != nullptr || cap.max_send_wr > s.max_qp_wr || cap.max_recv_wr > s.max_qp_wr ||
      cap.max_send_sge > s.max_sge || cap.max_recv_sge > s.max_sge ||
      cap.max_inline_data > s.max_inline)
    return nullptr;
  auto made = std::make_unique<QpObject>();
  const std::uint64_t slot_bytes = sizeof(RecvSlot) + cap.max_recv_sge * sizeof(IbvSge);
  const std::uint64_t slots = std::max(cap.max_recv_wr, 1U);
  errno = ENOMEM;
  QpShared* const shared = take_place(*made, slots * slot_bytes);
  if (shared == nullptr) return nullptr;
  made->context = pd->context;
  made->qp_context = init->qp_context;
  made->pd = pd;
  made->send_cq = init->send_cq;
  made->recv_cq = init->recv_cq;
  made->state = kQpsReset;
  made->qp_type = init->qp_type;
  pthread_mutex_init(&made->mutex, nullptr);
  pthread_cond_init(&made->cond, nullptr);
  made->shared = shared;
  made->init = *init;
  const std::size_t entries = std::max(cap.max_send_wr, 1U);
  made->entries = zeros<SendEntry>(entries);
  made->elements = zeros<IbvSge>(entries * cap.max_send_sge);
  made->inlines = zeros<std::byte>(entries * cap.max_inline_data);
  shared->state = kQpsReset;
  shared->context = context.index;
  shared->pd = pd->handle;
  shared->device = context.device_index;
  shared->send_cq = static_cast<CqObject*>(init->send_cq)->index;
  shared->recv_cq = static_cast<CqObject*>(init->recv_cq)->index;
  shared->slots = static_cast<std::uint32_t>(slots);
  shared->slot_bytes = static_cast<std::uint32_t>(slot_bytes);
  shared->head = shared->tail = 0;
  shared->number = made->qp_num;
  static_cast<PdObject*>(pd)->users.fetch_add(1);
  static_cast<CqObject*>(init->send_cq)->users.fetch_add(1);
  static_cast<CqObject*>(init->recv_cq)->users.fetch_add(1);
  const Turns::Call call(context.turns);
  context.qps.push_back(made.get());
  return made.release();
}

FAKE_VERBS_EXPORT int ibv_modify_qp(IbvQp* base, IbvQpAttr* attr, int mask) {
  QpObject& qp = qp_of(base);
  ContextObject& context = object_of(qp);
  if (gone() || context.lost()) return EIO;
  const auto before = static_cast<IbvQpState>(qp.shared->state.load());
  const IbvQpState to = (mask & kQpState) != 0 ? attr->qp_state : before;
  if (((mask & kQpCurState) != 0 && attr->cur_qp_state != before) || !may_move(before, to, mask))
    return EINVAL;
  if (const int error = check(context, *attr, mask); error != 0) return error;
  if (to == kQpsErr) {
    const int error = to_error(qp);
    if (error == 0) base->state = kQpsErr;
    return error;
  }
  if (to == kQpsReset) {
    if (!fence(qp)) return ETIMEDOUT;
    drop_completions(qp);
    base->state = kQpsReset;
    return 0;
  }
  Connection connected;
  Route route{};
  if ((mask & kQpAv) != 0)
    if (const int error = connect(context, *attr, connected, route); error != 0) return error;
  const Turns::Call call(context.turns);
  const SharedHold landing(qp.shared->landing, kFenceWithin, peers_pad(qp));
  if (!landing) return ETIMEDOUT;
  if (qp.shared->state != static_cast<std::uint32_t>(before)) return EINVAL;
  keep(qp.connection.attr, *attr, mask);
  QpShared& shared = *qp.shared;
  if ((mask & kQpAv) != 0) {
    qp.connection.host = std::move(connected.host);
    shared.route = route;
    shared.expects_first = 1;
  }
  shared.access = qp.connection.attr.qp_access_flags;
  shared.rq_psn = qp.connection.attr.rq_psn;
  shared.min_rnr_timer = qp.connection.attr.min_rnr_timer;
  shared.max_dest_rd_atomic = qp.connection.attr.max_dest_rd_atomic;
  shared.state = static_cast<std::uint32_t>(to);
  base->state = to;
  return 0;
}

FAKE_VERBS_EXPORT int ibv_query_qp(IbvQp* base, IbvQpAttr* attr, int, IbvQpInitAttr* init) {
  QpObject& qp = qp_of(base);
  ContextObject& context = object_of(qp);
  if (gone() || context.lost()) return EIO;
  const Turns::Call call(context.turns);
  *attr = qp.connection.attr;
  attr->qp_state = attr->cur_qp_state = static_cast<IbvQpState>(qp.shared->state.load());
  attr->cap = qp.init.cap;
  if (init != nullptr) *init = qp.init;
  return 0;
}

FAKE_VERBS_EXPORT int ibv_destroy_qp(IbvQp* base) {
  QpObject& qp = qp_of(base);
  ContextObject& context = object_of(qp);
  if (world().forked) return EIO;
  wait_to_destroy();
  if (!fence(qp)) return EBUSY;
  {
    const Turns::Call call(context.turns);
    std::erase(context.qps, &qp);
    qp.shared->number = 0;
  }
  World& w = world();
  {
    // Events that are not taken yet are of no queue pair from here on.
    const std::lock_guard lock(w.mutex);
    w.arena.free(qp.shared->ring, std::uint64_t{qp.shared->slots} * qp.shared->slot_bytes);
    w.qps[qp.qp_num % kQps] = nullptr;
  }
  drop_completions(qp);
  const int unacknowledged = await_events(qp);
  static_cast<PdObject*>(qp.pd)->users.fetch_sub(1);
  static_cast<CqObject*>(qp.send_cq)->users.fetch_sub(1);
  static_cast<CqObject*>(qp.recv_cq)->users.fetch_sub(1);
  pthread_mutex_destroy(&qp.mutex);
  pthread_cond_destroy(&qp.cond);
  delete &qp;
  return unacknowledged == 0 ? 0 : EBUSY;
}

}  // namespace linkspan::transport::verbs::fake
