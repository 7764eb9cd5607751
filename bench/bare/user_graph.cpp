#include "bench/bare/user_graph.hpp"

#include <dlfcn.h>

#include "cuda/library.hpp"

namespace linkspan::bare {
namespace {

/// Returns another entry of the driver whose table this is; null if it has none of this name.
void* entry(const cuda::Driver& driver, const char* name, int version) {
  Dl_info loaded{};
  if (::dladdr(reinterpret_cast<void*>(driver.cuInit), &loaded) == 0) return nullptr;
  const auto library = cuda::open_library(loaded.dli_fname);
  if (!library.ok()) return nullptr;
  const auto look_up =
      reinterpret_cast<cuda::GetProcAddress>(cuda::find_symbol(*library, "cuGetProcAddress_v2"));
  void* found = nullptr;
  cuda::CUdriverProcAddressQueryResult status{};
  if (look_up == nullptr || look_up(name, &found, version, cuda::CU_GET_PROC_ADDRESS_LEGACY_STREAM,
                                    &status) != cuda::CUDA_SUCCESS)
    return nullptr;
  return found;
}

}  // namespace

Result<std::unique_ptr<UserGraph>> UserGraph::create(const cuda::Device& device) {
  const auto entries = cuda::GraphEntries::find(
      [&](const char* name, int version) { return entry(device.driver(), name, version); });
  if (!entries)
    return Status(Code::unsupported, Scope::request, "the driver captures no CUDA graphs");
  auto scope = device.enter();
  if (!scope.ok()) return scope.status();
  auto stream = cuda::Stream::create(*scope);
  if (!stream.ok()) return stream.status();
  auto word = EndWord::create(*scope);
  if (!word.ok()) return word.status();
  return std::unique_ptr<UserGraph>(
      new UserGraph(device, entries, *std::move(stream), *std::move(word)));
}

UserGraph::~UserGraph() {
  if (executable_ == nullptr) return;
  if (const auto scope = device_.enter(); scope.ok())
    (void)entries_.cuGraphExecDestroy(executable_);
}

Status UserGraph::capture(const std::function<Status(const cuda::DeviceScope&)>& act) {
  const auto scope = device_.enter();
  if (!scope.ok()) return scope.status();
  const cuda::Driver& driver = scope->driver();
  cuda::CUresult r =
      entries_.cuStreamBeginCapture(stream_.get(), cuda::CU_STREAM_CAPTURE_MODE_RELAXED);
  if (r != cuda::CUDA_SUCCESS) return cuda::to_status(driver, r, "cuStreamBeginCapture");
  Status status = act(*scope);
  cuda::CUgraph graph = nullptr;
  r = entries_.cuStreamEndCapture(stream_.get(), &graph);
  if (!status.ok()) return status;
  if (r != cuda::CUDA_SUCCESS) return cuda::to_status(driver, r, "cuStreamEndCapture");
  r = entries_.cuGraphInstantiateWithFlags(&executable_, graph, 0);
  (void)entries_.cuGraphDestroy(graph);
  return cuda::to_status(driver, r, "cuGraphInstantiateWithFlags");
}

Status UserGraph::launch(unsigned times) {
  const auto scope = device_.enter();
  if (!scope.ok()) return scope.status();
  for (unsigned i = 0; i < times; ++i)
    if (const cuda::CUresult r = entries_.cuGraphLaunch(executable_, stream_.get());
        r != cuda::CUDA_SUCCESS)
      return cuda::to_status(scope->driver(), r, "cuGraphLaunch");
  return {};
}

Result<Duration> UserGraph::run(unsigned times, Duration limit) {
  const auto scope = device_.enter();
  if (!scope.ok()) return scope.status();
  const auto begin = Clock::now();
  if (Status s = launch(times); !s.ok()) return s;
  if (Status s = word_.write(*scope, stream_, ++runs_); !s.ok()) return s;
  if (Status s = word_.wait(*scope, stream_, runs_, begin + limit); !s.ok()) return s;
  return Duration(Clock::now() - begin);
}

}  // namespace linkspan::bare
