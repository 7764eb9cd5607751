#include "cuda/graph.hpp"

namespace linkspan::cuda {

Result<CUgraph> captured_graph(const DeviceScope& scope, CUstream stream) {
  const Driver& driver = scope.driver();
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUgraph graph = nullptr;
  const CUresult r =
      driver.cuStreamGetCaptureInfo(stream, &status, nullptr, &graph, nullptr, nullptr);
  if (r != CUDA_SUCCESS) return to_status(driver, r, "cuStreamGetCaptureInfo");
  return status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? graph : nullptr;
}

Status give_to_graph(const DeviceScope& scope, CUgraph graph, void* data, CUhostFn destroy) {
  const Driver& driver = scope.driver();
  CUuserObject object = nullptr;
  CUresult r =
      driver.cuUserObjectCreate(&object, data, destroy, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
  if (r != CUDA_SUCCESS) {
    destroy(data);
    return to_status(driver, r, "cuUserObjectCreate");
  }
  r = driver.cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
  if (r == CUDA_SUCCESS) return {};
  driver.cuUserObjectRelease(object, 1);
  return to_status(driver, r, "cuGraphRetainUserObject");
}

Status launch_in(const DeviceScope& scope, CUstream stream, CUfunction function, unsigned ctas,
                 unsigned threads, void** parameters) {
  const Driver& driver = scope.driver();
  return to_status(
      driver,
      driver.cuLaunchKernel(function, ctas, 1, 1, threads, 1, 1, 0, stream, parameters, nullptr),
      "cuLaunchKernel");
}

}  // namespace linkspan::cuda
