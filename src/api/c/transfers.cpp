// linkspan.h: transfers and their paths.
#include <algorithm>

#include "api/c/options.hpp"

using namespace linkspan;  // NOLINT(google-build-using-namespace): the functions of C are in none

namespace {

const char* text_at(const linkspan_explanation* explanation, std::size_t index,
                    std::string PathRefusal::*part) {
  if (explanation == nullptr || index >= explanation->is.refused.size()) return "";
  return (explanation->is.refused[index].*part).c_str();
}

/// Makes a transfer by `call` with the caller's options.
template <class Call>
int begin(std::initializer_list<c::PointerArgument> needed,
          const linkspan_transfer_options* options, linkspan_transfer** transfer,
          const Call& call) {
  return c::make(transfer, needed, [&]() -> Result<Transfer> {
    const auto known = c::transfer_options(options);
    if (!known.ok()) return known.status();
    return call(*known);
  });
}

/// Calls Peer::write() or read() with these arguments.
template <class... What>
Result<Transfer> submit(const Peer& peer, int op, const What&... what) {
  const auto way = c::op_of(op);
  if (!way.ok()) return way.status();
  return *way == Op::write ? peer.write(what...) : peer.read(what...);
}

Status of_pair(std::size_t index, const Status& status) {
  return {status.code(), status.scope(), "pair " + std::to_string(index) + ": " + status.what()};
}

/// Calls `call` with the parts, and returns its result or what is wrong with a part.
template <class Call>
auto with_parts(const linkspan_transfer_part* parts, std::size_t count, const Call& call)
    -> decltype(call(std::span<const TransferPart>())) {
  if (Status status = c::check_pairs(count); !status.ok()) return status;
  std::vector<c::OwnedShape> shapes;  // what `all` refers to
  std::vector<TransferPart> all;
  shapes.reserve(count);
  all.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto& [local, remote, shape] = parts[i];
    const Status status = c::given({{local, "local"}, {remote, "remote"}, {shape, "shape"}});
    if (!status.ok()) return of_pair(i, status);
    auto what = c::shape_of(*shape);
    if (!what.ok()) return of_pair(i, what.status());
    shapes.push_back(*std::move(what));
    all.push_back({local->is, remote->is, shapes.back().shape});
  }
  return call(std::span<const TransferPart>(all));
}

/// Does the same with regions and the shape that each pair of them has.
template <class Call>
auto with_regions(const linkspan_region* const* local, const linkspan_remote_region* const* remote,
                  std::size_t count, const linkspan_shape& shape, const Call& call)
    -> decltype(call(std::span<const Region>(), std::span<const RemoteRegion>(), Shape())) {
  if (Status status = c::check_pairs(count); !status.ok()) return status;
  const auto what = c::shape_of(shape);
  if (!what.ok()) return what.status();
  std::vector<Region> here;
  std::vector<RemoteRegion> there;
  here.reserve(count);
  there.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Status status = c::given({{local[i], "local"}, {remote[i], "remote"}});
    if (!status.ok()) return of_pair(i, status);
    here.push_back(local[i]->is);
    there.push_back(remote[i]->is);
  }
  return call(std::span<const Region>(here), std::span<const RemoteRegion>(there), what->shape);
}

/// Calls Prepared's function that takes a list.
template <class Call>
int begin_some(const linkspan_prepared* prepared, const char* what, const std::uint32_t* list,
               std::size_t count, const linkspan_transfer_options* options,
               linkspan_transfer** transfer, const Call& call) {
  return begin({{prepared, "prepared"}}, options, transfer,
               [&](const TransferOptions& known) -> Result<Transfer> {
                 if (list == nullptr && count != 0)
                   return c::bad(std::to_string(count) + " " + what + " at null");
                 return call(prepared->is, std::span(list, count), known);
               });
}

}  // namespace

void linkspan_prepared_free(linkspan_prepared* prepared) { delete prepared; }
void linkspan_transfer_free(linkspan_transfer* transfer) { delete transfer; }
void linkspan_completion_queue_free(linkspan_completion_queue* queue) { delete queue; }
void linkspan_explanation_free(linkspan_explanation* explanation) { delete explanation; }

int linkspan_peer_submit(const linkspan_peer* peer, int op, const linkspan_region* local,
                         const linkspan_remote_region* remote, const linkspan_shape* shape,
                         const linkspan_transfer_options* options, linkspan_transfer** transfer) {
  return begin({{peer, "peer"}, {local, "local"}, {remote, "remote"}, {shape, "shape"}}, options,
               transfer, [&](const TransferOptions& known) -> Result<Transfer> {
                 const auto what = c::shape_of(*shape);
                 if (!what.ok()) return what.status();
                 return submit(peer->is, op, local->is, remote->is, what->shape, known);
               });
}

int linkspan_peer_submit_parts(const linkspan_peer* peer, int op,
                               const linkspan_transfer_part* parts, size_t count,
                               const linkspan_transfer_options* options,
                               linkspan_transfer** transfer) {
  return begin(
      {{peer, "peer"}, {parts, "parts"}}, options, transfer, [&](const TransferOptions& known) {
        return with_parts(parts, count,
                          [&](const auto& all) { return submit(peer->is, op, all, known); });
      });
}

int linkspan_peer_submit_regions(const linkspan_peer* peer, int op,
                                 const linkspan_region* const* local,
                                 const linkspan_remote_region* const* remote, size_t count,
                                 const linkspan_shape* shape,
                                 const linkspan_transfer_options* options,
                                 linkspan_transfer** transfer) {
  return begin({{peer, "peer"}, {local, "local"}, {remote, "remote"}, {shape, "shape"}}, options,
               transfer, [&](const TransferOptions& known) {
                 return with_regions(local, remote, count, *shape, [&](const auto&... all) {
                   return submit(peer->is, op, all..., known);
                 });
               });
}

int linkspan_engine_write_to_all(linkspan_engine* engine, const linkspan_region* local,
                                 const linkspan_remote_region* const* targets, size_t count,
                                 const linkspan_shape* shape,
                                 const linkspan_transfer_options* options, int* codes,
                                 linkspan_transfer** transfers) {
  if (transfers != nullptr) std::fill_n(transfers, count, nullptr);
  return c::run({{engine, "engine"},
                 {local, "local"},
                 {targets, "targets"},
                 {shape, "shape"},
                 {codes, "codes"},
                 {transfers, "transfers"}},
                [&]() -> Status {
                  const auto known = c::transfer_options(options);
                  if (!known.ok()) return known.status();
                  const auto what = c::shape_of(*shape);
                  if (!what.ok()) return what.status();
                  std::vector<RemoteRegion> all;
                  all.reserve(count);
                  std::vector<std::unique_ptr<linkspan_transfer>> handles;
                  handles.reserve(count);
                  for (const linkspan_remote_region* each : std::span(targets, count)) {
                    if (Status status = c::given({{each, "a target"}}); !status.ok()) return status;
                    all.push_back(each->is);
                    handles.push_back(std::make_unique<linkspan_transfer>());
                  }
                  auto outcomes = engine->is.write_to_all(local->is, all, what->shape, *known);
                  Status first;
                  for (std::size_t i = 0; i < count; ++i) {
                    codes[i] = static_cast<int>(outcomes[i].status().code());
                    if (first.ok()) first = outcomes[i].status();
                    if (!outcomes[i].ok()) continue;
                    handles[i]->is = *std::move(outcomes[i]);
                    transfers[i] = handles[i].release();
                  }
                  return first;
                });
}

int linkspan_peer_prepare(const linkspan_peer* peer, int op, const linkspan_region* local,
                          const linkspan_remote_region* remote, const linkspan_shape* shape,
                          linkspan_prepared** prepared) {
  return c::make(prepared, {{peer, "peer"}, {local, "local"}, {remote, "remote"}, {shape, "shape"}},
                 [&]() -> Result<Prepared> {
                   const auto way = c::op_of(op);
                   if (!way.ok()) return way.status();
                   const auto what = c::shape_of(*shape);
                   if (!what.ok()) return what.status();
                   return peer->is.prepare(*way, local->is, remote->is, what->shape);
                 });
}

int linkspan_peer_prepare_parts(const linkspan_peer* peer, int op,
                                const linkspan_transfer_part* parts, size_t count,
                                linkspan_prepared** prepared) {
  return c::make(prepared, {{peer, "peer"}, {parts, "parts"}}, [&] {
    return with_parts(parts, count, [&](const auto& all) -> Result<Prepared> {
      const auto way = c::op_of(op);
      if (!way.ok()) return way.status();
      return peer->is.prepare(*way, all);
    });
  });
}

int linkspan_peer_prepare_regions(const linkspan_peer* peer, int op,
                                  const linkspan_region* const* local,
                                  const linkspan_remote_region* const* remote, size_t count,
                                  const linkspan_shape* shape, linkspan_prepared** prepared) {
  return c::make(prepared, {{peer, "peer"}, {local, "local"}, {remote, "remote"}, {shape, "shape"}},
                 [&] {
                   return with_regions(local, remote, count, *shape,
                                       [&](const auto&... all) -> Result<Prepared> {
                                         const auto way = c::op_of(op);
                                         if (!way.ok()) return way.status();
                                         return peer->is.prepare(*way, all...);
                                       });
                 });
}

uint64_t linkspan_prepared_bytes(const linkspan_prepared* prepared) {
  return prepared == nullptr ? 0 : prepared->is.bytes();
}

int linkspan_prepared_post(const linkspan_prepared* prepared,
                           const linkspan_transfer_options* options, linkspan_transfer** transfer) {
  return begin({{prepared, "prepared"}}, options, transfer,
               [&](const TransferOptions& known) { return prepared->is.post(known); });
}

int linkspan_prepared_post_some(const linkspan_prepared* prepared, const uint32_t* positions,
                                size_t count, const linkspan_transfer_options* options,
                                linkspan_transfer** transfer) {
  return begin_some(prepared, "positions", positions, count, options, transfer,
                    [](const Prepared& is, std::span<const std::uint32_t> some,
                       const TransferOptions& known) { return is.post(some, known); });
}

int linkspan_prepared_post_pairs(const linkspan_prepared* prepared, const uint32_t* indices,
                                 size_t count, const linkspan_transfer_options* options,
                                 linkspan_transfer** transfer) {
  return begin_some(prepared, "indices", indices, count, options, transfer,
                    [](const Prepared& is, std::span<const std::uint32_t> some,
                       const TransferOptions& known) { return is.post_pairs(some, known); });
}

int linkspan_peer_send(const linkspan_peer* peer, uint64_t tag, const void* data, uint64_t bytes,
                       const linkspan_transfer_options* options, linkspan_transfer** transfer) {
  return begin({{peer, "peer"}}, options, transfer, [&](const TransferOptions& known) {
    return peer->is.send(tag, data, bytes, known);
  });
}

int linkspan_peer_recv(const linkspan_peer* peer, uint64_t tag, void* data, uint64_t bytes,
                       const linkspan_transfer_options* options, linkspan_transfer** transfer) {
  return begin({{peer, "peer"}}, options, transfer, [&](const TransferOptions& known) {
    return peer->is.recv(tag, data, bytes, known);
  });
}

int linkspan_transfer_wait(const linkspan_transfer* transfer, int64_t timeout) {
  return c::run({{transfer, "transfer"}}, {"timeout", timeout},
                [&](Duration limit) { return transfer->is.wait(limit); });
}

int linkspan_transfer_done(const linkspan_transfer* transfer) {
  return transfer != nullptr && transfer->is.done() ? 1 : 0;
}

int linkspan_transfer_status(const linkspan_transfer* transfer) {
  return c::run({{transfer, "transfer"}}, [&] { return transfer->is.status(); });
}

int linkspan_transfer_cancel(const linkspan_transfer* transfer) {
  return c::run({{transfer, "transfer"}}, [&] { return transfer->is.cancel(); });
}

uint64_t linkspan_transfer_bytes(const linkspan_transfer* transfer) {
  return transfer == nullptr ? 0 : transfer->is.bytes();
}
uint64_t linkspan_transfer_id(const linkspan_transfer* transfer) {
  return transfer == nullptr ? 0 : transfer->is.id();
}

int linkspan_completion_queue_create(linkspan_completion_queue** queue) {
  return c::make(queue, {}, [] { return CompletionQueue::create(); });
}

int linkspan_completion_queue_fd(const linkspan_completion_queue* queue) {
  return queue == nullptr ? -1 : queue->is.fd();
}

int linkspan_completion_queue_add(linkspan_completion_queue* queue,
                                  const linkspan_transfer* transfer, uint64_t cookie) {
  return c::run({{queue, "queue"}, {transfer, "transfer"}},
                [&] { return queue->is.add(transfer->is, cookie); });
}

int linkspan_completion_queue_take(linkspan_completion_queue* queue, uint64_t* cookies, size_t room,
                                   size_t* count) {
  std::vector<std::uint64_t> taken;
  const int code = c::run({{queue, "queue"}, {count, "count"}}, [&] {
    if (cookies == nullptr && room != 0)
      return c::bad("room for " + std::to_string(room) + " cookies at null");
    taken = queue->is.take(room);
    std::copy(taken.begin(), taken.end(), cookies);
    return Status();
  });
  if (count != nullptr) *count = taken.size();
  return code;
}

int linkspan_peer_explain(const linkspan_peer* peer, int op, const linkspan_region* local,
                          const linkspan_remote_region* remote, uint64_t blocks, uint64_t bytes,
                          const linkspan_transfer_options* options,
                          linkspan_explanation** explanation) {
  return c::make(explanation, {{peer, "peer"}, {local, "local"}, {remote, "remote"}},
                 [&]() -> Result<Explanation> {
                   const auto way = c::op_of(op);
                   if (!way.ok()) return way.status();
                   const auto known = c::transfer_options(options);
                   if (!known.ok()) return known.status();
                   return peer->is.explain(*way, local->is, remote->is, blocks, bytes, *known);
                 });
}

const char* linkspan_explanation_path(const linkspan_explanation* explanation) {
  return explanation == nullptr ? "" : explanation->is.path.c_str();
}
const char* linkspan_explanation_executor(const linkspan_explanation* explanation) {
  return explanation == nullptr ? "" : explanation->is.executor.c_str();
}
const char* linkspan_explanation_reason(const linkspan_explanation* explanation) {
  return explanation == nullptr ? "" : explanation->is.reason.c_str();
}
double linkspan_explanation_gbps(const linkspan_explanation* explanation) {
  return explanation == nullptr ? 0 : explanation->is.expected_gbps;
}
size_t linkspan_explanation_refused_count(const linkspan_explanation* explanation) {
  return explanation == nullptr ? 0 : explanation->is.refused.size();
}
const char* linkspan_explanation_refused_path(const linkspan_explanation* explanation,
                                              size_t index) {
  return text_at(explanation, index, &PathRefusal::path);
}
const char* linkspan_explanation_refused_reason(const linkspan_explanation* explanation,
                                                size_t index) {
  return text_at(explanation, index, &PathRefusal::reason);
}
