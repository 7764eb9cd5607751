// tests/support/fake_cuda/capture.cpp - graphs: records the entries of a capturing stream and does
// not run them.
//
// A graph is the list of the entries in the order of their submission. Dependencies are not kept,
// because a launch runs the entries one after the other. The calls that end another thread's
// capture, and those that make a stream join one, are as tests/driver_facts found on real GPUs.
#include "tests/support/fake_cuda/fake_cuda.hpp"

namespace linkspan::cuda::fake {
namespace {

struct Graph {
  std::vector<Entry> entries;
};

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
  call.stream->capture = std::make_shared<Capture>(Capture{
      .origin = call.stream, .mode = mode, .thread = std::this_thread::get_id(), .entries = {}});
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
  if (!capture->valid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (unjoined) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  auto made = std::make_shared<Graph>(Graph{std::move(capture->entries)});
  *graph = reinterpret_cast<CUgraph>(made.get());
  graphs()[*graph] = std::move(made);
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
  for (const Entry& entry : entries)
    if (const CUresult r = submit(call, entry); r != CUDA_SUCCESS) return r;
  return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec executable) { return forget_graph(executable); }
CUresult cuGraphDestroy(CUgraph graph) { return forget_graph(graph); }

}  // namespace linkspan::cuda::fake
