#include "tests/driver_facts/far_process.hpp"

#include <bit>
#include <cstring>
#include <map>
#include <stdexcept>

#include "cuda/kernels.hpp"
#include "tests/support/memory_entries.hpp"

namespace linkspan::test {
namespace {

constexpr CUmemAccessDesc kFirstGpu{.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

using HandleBytes = std::array<unsigned char, sizeof(CUipcMemHandle)>;

void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS)
    throw std::runtime_error(std::string(what) + " answers " +
                             std::to_string(static_cast<unsigned>(result)));
}

/// The child's half. It frees nothing: its end does.
class Server {
 public:
  Answer handle(const Json& call, const std::vector<base::Fd>& fds) {
    const auto what = call.at("do").get<std::string>();
    if (what == "lend") return {lend(call), {}};
    if (what == "open") return {open(call), {}};
    if (what == "count") return {count(call), {}};
    if (what == "lose") return {lose(), {}};
    if (what == "map") return {map(call, fds), {}};
    if (what == "pool") return {import_pool(call, fds), {}};
    if (what == "look") return {look(call), {}};
    if (what == "free pool") return {free_pool(), {}};
    CUuuid uuid{};
    check(cu_.cuDeviceGetUuid(&uuid, call.value("gpu", 0)), "cuDeviceGetUuid");
    return {std::bit_cast<std::array<unsigned char, 16>>(uuid), {}};
  }
  /// Keeps the stream of count() busy.
  bool go_on() {
    for (int i = 0; counted_ != 0 && i < 64; ++i)
      check(cu_.cuStreamWriteValue64(stream_, counted_, ++written_, 0), "cuStreamWriteValue64");
    return counted_ != 0;
  }

 private:
  void enter(int gpu) {
    CUcontext context = nullptr;
    check(cu_.cuDevicePrimaryCtxRetain(&context, gpu), "cuDevicePrimaryCtxRetain");
    check(cu_.cuCtxPushCurrent(context), "cuCtxPushCurrent");
    check(cu_.cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0), "cuStreamCreate");
  }
  CUdeviceptr import(const Json& call) {
    enter(0);
    CUdeviceptr base = 0;
    check(cu_.cuIpcOpenMemHandle(
              &base, std::bit_cast<CUipcMemHandle>(call.at("handle").get<HandleBytes>()),
              CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
          "cuIpcOpenMemHandle");
    return base;
  }

  Json lend(const Json& call) {
    enter(call.at("gpu"));
    const auto bytes = call.at("bytes").get<std::uint64_t>();
    CUdeviceptr memory = 0;
    check(cu_.cuMemAlloc(&memory, bytes), "cuMemAlloc");
    check(cu_.cuMemsetD8Async(memory, FarProcess::kFill, bytes, stream_), "cuMemsetD8Async");
    check(cu_.cuStreamSynchronize(stream_), "cuStreamSynchronize");
    CUipcMemHandle handle{};
    check(cu_.cuIpcGetMemHandle(&handle, memory + call.at("at").get<std::uint64_t>()),
          "cuIpcGetMemHandle");
    return std::bit_cast<HandleBytes>(handle);
  }
  Json open(const Json& call) {
    const CUdeviceptr base = import(call);
    int ordinal = -1;
    check(cu_.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, base),
          "cuPointerGetAttribute");
    std::size_t bytes = 0;
    check(cu_.cuMemGetAddressRange(nullptr, &bytes, base), "cuMemGetAddressRange");
    unsigned long long first = 0;
    check(cu_.cuMemcpyAsync(address_of(&first), base, sizeof first, stream_), "cuMemcpyAsync");
    check(cu_.cuStreamSynchronize(stream_), "cuStreamSynchronize");
    check(cu_.cuIpcCloseMemHandle(base), "cuIpcCloseMemHandle");
    return {ordinal, bytes, first};
  }
  Json count(const Json& call) {
    counted_ = import(call);
    return {};
  }
  static void* as_handle(const base::Fd& fd) {
    return reinterpret_cast<void*>(static_cast<std::intptr_t>(fd.get()));
  }
  Json map(const Json& call, const std::vector<base::Fd>& fds) {
    enter(0);
    const auto each = call.at("each").get<std::uint64_t>();
    check(cu_.cuMemAddressReserve(&shared_, fds.size() * each, 0, 0, 0), "cuMemAddressReserve");
    for (std::size_t i = 0; i < fds.size(); ++i) {
      CUmemGenericAllocationHandle handle = 0;
      check(cu_.cuMemImportFromShareableHandle(&handle, as_handle(fds[i]), kPosixFd), "import");
      check(cu_.cuMemMap(shared_ + i * each, each, 0, handle, 0), "cuMemMap");
      check(cu_.cuMemRelease(handle), "cuMemRelease");
    }
    check(cu_.cuMemSetAccess(shared_, fds.size() * each, &kFirstGpu, 1), "cuMemSetAccess");
    return {};
  }
  Json import_pool(const Json& call, const std::vector<base::Fd>& fds) {
    enter(0);
    auto data = std::bit_cast<CUmemPoolPtrExportData>(call.at("data").get<HandleBytes>());
    std::vector<unsigned> answers;
    for (unsigned i = 0; i < call.at("times").get<unsigned>(); ++i) {
      CUmemoryPool pool = nullptr;
      CUdeviceptr memory = 0;
      check(cu_.cuMemPoolImportFromShareableHandle(&pool, as_handle(fds[0]), kPosixFd, 0), "pool");
      answers.push_back(cu_.cuMemPoolImportPointer(&memory, pool, &data));
      if (answers.back() != CUDA_SUCCESS) continue;
      check(cu_.cuMemPoolSetAccess(pool, &kFirstGpu, 1), "cuMemPoolSetAccess");
      std::size_t bytes = 0;
      check(cu_.cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, memory), "size");
      answers.push_back(static_cast<unsigned>(bytes));
      shared_ = memory;
      pools_.emplace_back(pool, memory);
    }
    return answers;
  }
  Json look(const Json& call) {
    std::vector<unsigned> bytes;
    for (const auto place : call.at("places").get<std::vector<std::uint64_t>>()) {
      unsigned char byte = 0;
      check(cu_.cuMemcpyAsync(address_of(&byte), shared_ + place, 1, stream_), "cuMemcpyAsync");
      check(cu_.cuStreamSynchronize(stream_), "cuStreamSynchronize");
      bytes.push_back(byte);
    }
    return bytes;
  }
  Json free_pool() {
    std::vector<unsigned> answers;
    for (const auto& [pool, memory] : pools_) {
      answers.push_back(memory == shared_);
      answers.push_back(cu_.cuMemFree(memory));
      answers.push_back(cu_.cuMemPoolDestroy(pool));
      std::size_t bytes = 0;
      answers.push_back(
          cu_.cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, shared_));
    }
    return answers;
  }
  Json lose() {
    enter(0);
    CUevent event = nullptr;
    CUdeviceptr memory = 0;
    void* pinned = nullptr;
    check(cu_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    check(cu_.cuEventRecord(event, stream_), "cuEventRecord");
    check(cu_.cuMemAlloc(&memory, 4096), "cuMemAlloc");
    check(cu_.cuMemHostAlloc(&pinned, 4096, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
          "cuMemHostAlloc");
    std::memset(pinned, 0, 4096);
    run_astray(memory, pinned);
    std::vector<std::pair<std::string, unsigned>> answers;
    const auto note = [&](const char* name, CUresult result) {
      answers.emplace_back(name, result);
    };
    note("cuStreamSynchronize", cu_.cuStreamSynchronize(stream_));
    note("cuStreamQuery", cu_.cuStreamQuery(stream_));
    note("cuEventQuery", cu_.cuEventQuery(event));
    note("cuMemcpyAsync", cu_.cuMemcpyAsync(memory, address_of(pinned), 64, stream_));
    note("cuStreamWriteValue64", cu_.cuStreamWriteValue64(stream_, address_of(pinned), 1, 0));
    note("cuMemAlloc", cu_.cuMemAlloc(&memory, 4096));
    note("cuCtxSynchronize", cu_.cuCtxSynchronize());
    return answers;
  }
  /// Runs the library's kernel with a list of one piece whose destination is not mapped.
  void run_astray(CUdeviceptr memory, void* pinned) {
    struct Piece {
      std::uint64_t to, from, bytes;
    };
    int major = 0, minor = 0;
    check(cu_.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0), "sm");
    check(cu_.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0), "sm");
    const linkspan_image* image = choose_image(embedded_images(), 10 * major + minor);
    if (image == nullptr) throw std::runtime_error("no kernels");
    const std::string text(image->begin, image->end);
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    check(cu_.cuModuleLoadData(&module, text.c_str()), "cuModuleLoadData");
    check(cu_.cuModuleGetFunction(&function, module, "linkspan_copy_blocks"), "function");
    const Piece astray{.to = 64, .from = memory, .bytes = 64};
    std::memcpy(pinned, &astray, sizeof astray);
    CUdeviceptr list = address_of(pinned), stop = list + 1024, stopped = list + 1028;
    unsigned count = 1;
    std::array<void*, 4> parameters{&list, &count, &stop, &stopped};
    check(cu_.cuLaunchKernel(function, 1, 1, 1, 512, 1, 1, 0, stream_, parameters.data(), nullptr),
          "cuLaunchKernel");
  }

  const Driver& cu_ = *take(Driver::get());
  CUstream stream_ = nullptr;
  CUdeviceptr counted_ = 0, shared_ = 0;
  std::vector<std::pair<CUmemoryPool, CUdeviceptr>> pools_;
  std::uint64_t written_ = 0;
};

void serve(Line& line) {
  Server server;
  line.serve(
      [&](const Json& call, const std::vector<base::Fd>& fds) { return server.handle(call, fds); },
      [&] { return server.go_on(); });
}
const bool kHelper = add_helper("driver_facts", serve);

Json json_of(const CUipcMemHandle& handle) { return std::bit_cast<HandleBytes>(handle); }

}  // namespace

CUipcMemHandle FarProcess::lend(int gpu, std::uint64_t bytes, std::uint64_t at) {
  const Json answer = call({{"do", "lend"}, {"gpu", gpu}, {"bytes", bytes}, {"at", at}});
  return std::bit_cast<CUipcMemHandle>(answer.get<HandleBytes>());
}

FarProcess::Seen FarProcess::open(const CUipcMemHandle& handle) {
  const Json answer = call({{"do", "open"}, {"handle", json_of(handle)}});
  return {.ordinal = answer[0], .bytes = answer[1], .first = answer[2]};
}

void FarProcess::count_in(const CUipcMemHandle& handle) {
  call({{"do", "count"}, {"handle", json_of(handle)}});
}

void FarProcess::map(std::vector<base::Fd> chunks, std::uint64_t each) {
  call({{"do", "map"}, {"each", each}}, std::move(chunks));
}

std::vector<unsigned> FarProcess::import_pool(std::vector<base::Fd> pool,
                                              const CUmemPoolPtrExportData& data, unsigned times) {
  return call({{"do", "pool"}, {"data", std::bit_cast<HandleBytes>(data)}, {"times", times}},
              std::move(pool));
}

std::vector<unsigned> FarProcess::look(const std::vector<std::uint64_t>& places) {
  return call({{"do", "look"}, {"places", places}});
}

std::vector<unsigned> FarProcess::free_pool() { return call({{"do", "free pool"}}); }

std::string FarProcess::uuid(int gpu) {
  const auto bytes =
      call({{"do", "uuid"}, {"gpu", gpu}}).get<std::array<unsigned char, sizeof(CUuuid)>>();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<std::pair<std::string, unsigned>> FarProcess::lose() { return call({{"do", "lose"}}); }

}  // namespace linkspan::test
