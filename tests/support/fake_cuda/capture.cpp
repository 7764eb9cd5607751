// tests/support/fake_cuda/capture.cpp - graphs: records the entries of a capturing stream and does
// not run them.
//
// A graph is the list of the entries in the order of their submission. Dependencies are not kept,
// because a launch runs the entries one after the other. The calls that end another thread's
// capture, and those that make a stream join one, are as tests/driver_facts found on real GPUs.
#include "tests/support/fake_cuda/fake_cuda.hpp"

namespace linkspan::cuda::fake {
namespace {

/// Calls the destructors of user objects on a thread of its own, as the driver does, without the
/// World's mutex.
/// Threads: any thread, also under that mutex.
class Destructors {
 public:
  void add(CUhostFn destroy, void* data) {
    const Lock lock(mutex_);
    if (ended_) return;
    calls_.emplace_back(destroy, data);
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    changed_.notify_all();
  }
  void end() {
    {
      const Lock lock(mutex_);
      ended_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }

 private:
  void run() {
    Lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ended_ || !calls_.empty(); });
      if (ended_) return;
      const auto [destroy, data] = calls_.front();
      calls_.pop_front();
      lock.unlock();
      destroy(data);
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<CUhostFn, void*>> calls_;
  bool ended_ = false;
  std::thread thread_;
};

/// Never destroyed, like the World.
Destructors& destructors() {
  static auto& all = *new Destructors;
  return all;
}

struct UserObject {
  UserObject(void* d, CUhostFn f) : data(d), destroy(f) {}
  UserObject(const UserObject&) = delete;
  UserObject& operator=(const UserObject&) = delete;
  ~UserObject() { destructors().add(destroy, data); }

  void* const data;
  const CUhostFn destroy;
};

/// Returns the references that callers have. Never destroyed, like the World. Called under the
/// lock.
std::map<const void*, std::pair<std::shared_ptr<UserObject>, unsigned>>& user_objects() {
  static auto& all = *new std::map<const void*, std::pair<std::shared_ptr<UserObject>, unsigned>>;
  return all;
}

CUresult release_user_object(const void* handle, unsigned references) {
  const auto found = user_objects().find(handle);
  if (found == user_objects().end() || references == 0 || references > found->second.second)
    return CUDA_ERROR_INVALID_VALUE;
  if ((found->second.second -= references) == 0) user_objects().erase(found);
  return CUDA_SUCCESS;
}

}  // namespace

struct Graph {
  std::vector<Entry> entries;
  std::vector<std::shared_ptr<UserObject>> objects;  // also of its executables and their launches
};

namespace {

/// Returns all graphs; a graph and its executable are one. Never destroyed, like the World. Called
/// under the lock.
std::map<const void*, std::shared_ptr<Graph>>& graphs() {
  static auto& all = *new std::map<const void*, std::shared_ptr<Graph>>;
  return all;
}

Graph* find_graph(const void* handle) {
  const auto found = graphs().find(handle);
  return found != graphs().end() ? found->second.get() : nullptr;
}

CUresult forget_graph(const void* handle) {
  const Lock lock(world().mutex);
  return graphs().erase(handle) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

CUresult refuse_beside_captures() {
  World& w = world();
  const Lock lock(w.mutex);
  const CUstreamCaptureMode mode = capture_mode();
  if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  bool refused = false;
  for (const auto& [handle, stream] : w.streams) {
    if (!stream->capture) continue;
    Capture& capture = *stream->capture;
    const bool mine = capture.thread == std::this_thread::get_id();
    if (capture.mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
    if (!mine &&
        (mode != CU_STREAM_CAPTURE_MODE_GLOBAL || capture.mode != CU_STREAM_CAPTURE_MODE_GLOBAL))
      continue;
    capture.valid = false;
    refused = true;
  }
  return refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
  Call call(handle);
  if (call.error != CUDA_SUCCESS) return call.error;
  if (mode > CU_STREAM_CAPTURE_MODE_RELAXED || call.stream->capture ||
      call.stream == call.device->default_stream)
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  call.stream->capture = std::make_shared<Capture>(Capture{.origin = call.stream,
                                                           .mode = mode,
                                                           .thread = std::this_thread::get_id(),
                                                           .entries = {},
                                                           .graph = std::make_shared<Graph>()});
  graphs()[call.stream->capture->graph.get()] = call.stream->capture->graph;
  return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  Call call(handle);
  if (call.error != CUDA_SUCCESS) return call.error;
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = call.stream->capture;
  if (!capture || capture->origin != call.stream) return CUDA_ERROR_INVALID_VALUE;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
      capture->thread != std::this_thread::get_id())
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  bool unjoined = false;  // a stream was pulled in and the first has not waited for it again
  for (const auto& [at, stream] : world().streams) {
    if (stream->capture != capture) continue;
    unjoined = unjoined || stream->pulled_in;
    stream->capture = nullptr;
    stream->pulled_in = false;
  }
  if (!capture->valid || unjoined) graphs().erase(capture->graph.get());
  if (!capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (unjoined) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  capture->graph->entries = std::move(capture->entries);
  *graph = reinterpret_cast<CUgraph>(capture->graph.get());
  return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long) {
  const Lock lock(world().mutex);
  const Graph* found = find_graph(graph);
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_shared<Graph>(*found);
  *executable = reinterpret_cast<CUgraphExec>(made.get());
  graphs()[*executable] = std::move(made);
  return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec executable, CUstream handle) {
  Call call(handle);
  if (call.error != CUDA_SUCCESS) return call.error;
  const Graph* found = find_graph(executable);
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::vector<Entry> entries = found->entries;  // the lock is free while a stream is full
  const auto objects = found->objects;
  for (Entry entry : entries) {
    if (entry.work && !objects.empty())
      entry.work = [objects, work = std::move(entry.work)] { return work(); };
    if (const CUresult r = submit(call, std::move(entry)); r != CUDA_SUCCESS) return r;
  }
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus* status, std::uint64_t* id,
                                CUgraph* graph, const CUgraphNode** dependencies,
                                std::size_t* count) {
  if (const CUresult r = cuStreamIsCapturing(handle, status); r != CUDA_SUCCESS) return r;
  const Call call(handle);
  if (call.error != CUDA_SUCCESS || !call.stream->capture) return call.error;
  if (id != nullptr) *id = reinterpret_cast<std::uintptr_t>(call.stream->capture.get());
  if (graph != nullptr) *graph = reinterpret_cast<CUgraph>(call.stream->capture->graph.get());
  if (dependencies != nullptr) *dependencies = nullptr;
  if (count != nullptr) *count = 0;
  return CUDA_SUCCESS;
}

CUresult cuUserObjectCreate(CUuserObject* object, void* data, CUhostFn destroy, unsigned references,
                            unsigned flags) {
  if (flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC || references == 0)
    return CUDA_ERROR_INVALID_VALUE;
  const Lock lock(world().mutex);
  auto made = std::make_shared<UserObject>(data, destroy);
  *object = reinterpret_cast<CUuserObject>(made.get());
  user_objects()[*object] = {std::move(made), references};
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned references) {
  const Lock lock(world().mutex);
  return release_user_object(object, references);
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned references,
                                 unsigned flags) {
  const Lock lock(world().mutex);
  Graph* found = find_graph(graph);
  const auto known = user_objects().find(object);
  if (found == nullptr || known == user_objects().end()) return CUDA_ERROR_INVALID_VALUE;
  found->objects.push_back(known->second.first);
  return flags == CU_GRAPH_USER_OBJECT_MOVE ? release_user_object(object, references)
                                            : CUDA_SUCCESS;
}

void end_user_objects() { destructors().end(); }

CUresult cuGraphExecDestroy(CUgraphExec executable) { return forget_graph(executable); }
CUresult cuGraphDestroy(CUgraph graph) { return forget_graph(graph); }

}  // namespace linkspan::cuda::fake
