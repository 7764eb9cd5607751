#include "tests/driver_facts/fact.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

namespace linkspan::test {
namespace {

/// The whole list of what the simulated driver does not show, and why not.
constexpr struct {
  std::string_view id, why;  // a test, or all of a topic
} kNotSimulated[] = {
    {"Loading.AFunctionOfAModuleStartsBesideTheSpinner", "it runs no kernels of others"},
    {"Loading.AModuleWaitsForAHeldStream", "it loads nothing"},
    {"Loading.ALoadedFunctionStartsBesideTheSpinner", "it runs no kernels of others"},
    {"Loading.SetUpCallsDoNotWaitForTheSpinner", "it runs no kernels of others"},
    {"Binaries.ACubinOfAnotherArchitectureIsRefused", "it takes any image"},
};

using Row = nlohmann::ordered_json;

/// Records the answers of this run and writes them at its end.
class Rows : public ::testing::Environment {
 public:
  static Rows& all() {
    static Rows& only = *new Rows;  // gtest deletes it
    return only;
  }
  void TearDown() override {
    const char* file = std::getenv("LINKSPAN_FACTS_OUT");
    if (file == nullptr) return;
    const Row value = {{"what", "how the driver behaves where we lean on it"},
                       {"command", "linkspan_driver_facts"},
                       {"rows", rows}};
    std::ofstream(file) << value.dump(2) << '\n';
  }

  std::vector<Row> rows;
};
const auto* const kRows = ::testing::AddGlobalTestEnvironment(&Rows::all());

std::string id_of_test() {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  return std::string(info->test_suite_name()) + "." + info->name();
}

}  // namespace

bool eventually(const std::function<bool()>& condition, std::chrono::nanoseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

void Recorded::record(bool simulated) {
  if (IsSkipped()) return;
  if (HasFailure()) found_ = "NOT as claimed (" + found_ + ")";
  RecordProperty("outcome", found_);
  Rows::all().rows.push_back({{"id", id_of_test()}, {"outcome", found_}, {"simulated", simulated}});
}

void Fact::SetUp() {
  const Result<const Driver*> got = Driver::get();
  if (!got.ok())
    GTEST_SKIP() << "needs a GPU or the simulated driver: " << got.status().to_string();
  cu = *got;
  int count = 0;
  ASSERT_EQ(cu->cuDeviceGetCount(&count), CUDA_SUCCESS);
  std::array<char, 128> name{};
  ASSERT_EQ(cu->cuDeviceGetName(name.data(), static_cast<int>(name.size()) - 1, 0), CUDA_SUCCESS);
  simulated = std::string_view(name.data()).starts_with("Simulated");
  for (const auto& [id, why] : kNotSimulated)
    if (simulated && (id_of_test() == id || id_of_test().starts_with(std::string(id) + ".")))
      GTEST_SKIP() << "not simulated: " << why;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CUcontext context = nullptr;
    ASSERT_EQ(cu->cuDevicePrimaryCtxRetain(&context, ordinal), CUDA_SUCCESS);
    contexts.push_back(context);
  }
  ASSERT_EQ(cu->cuCtxPushCurrent(contexts[0]), CUDA_SUCCESS);
  words_ = reinterpret_cast<std::uint64_t*>(new_pinned(kWords * 64));
}

void Fact::TearDown() {
  if (words_ == nullptr) return;
  for (std::size_t i = 0; i < kWords; ++i) word(i) = ~std::uint64_t{0} >> 1;
  for (const CUcontext context : contexts) {
    const Current current(*cu, context);
    EXPECT_EQ(cu->cuCtxSynchronize(), CUDA_SUCCESS);
  }
  for (CUstream stream : streams_) EXPECT_EQ(cu->cuStreamDestroy(stream), CUDA_SUCCESS);
  for (CUevent event : events_) EXPECT_EQ(cu->cuEventDestroy(event), CUDA_SUCCESS);
  for (const CUdeviceptr each : memory_) EXPECT_EQ(cu->cuMemFree(each), CUDA_SUCCESS);
  for (void* each : pinned_) EXPECT_EQ(cu->cuMemFreeHost(each), CUDA_SUCCESS);
  CUcontext popped = nullptr;
  EXPECT_EQ(cu->cuCtxPopCurrent(&popped), CUDA_SUCCESS);
  for (std::size_t i = 0; i < contexts.size(); ++i)
    EXPECT_EQ(cu->cuDevicePrimaryCtxRelease(static_cast<int>(i)), CUDA_SUCCESS);
  record(simulated);
}

bool Fact::with_gpus(std::size_t count) {
  if (contexts.size() >= count) return true;
  [count] { GTEST_SKIP() << "needs a GPU or the simulated driver: " << count << " of them"; }();
  return false;
}

CUstream Fact::new_stream(std::size_t gpu) {
  const Current current(*cu, contexts[gpu]);
  CUstream stream = nullptr;
  EXPECT_EQ(cu->cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
  return streams_.emplace_back(stream);
}

CUevent Fact::new_event(std::size_t gpu) {
  const Current current(*cu, contexts[gpu]);
  CUevent event = nullptr;
  EXPECT_EQ(cu->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  return events_.emplace_back(event);
}

CUdeviceptr Fact::new_memory(std::size_t gpu, std::size_t bytes) {
  const Current current(*cu, contexts[gpu]);
  CUdeviceptr address = 0;
  EXPECT_EQ(cu->cuMemAlloc(&address, bytes), CUDA_SUCCESS);
  return memory_.emplace_back(address);
}

std::byte* Fact::new_pinned(std::size_t bytes) {
  void* memory = nullptr;
  EXPECT_EQ(
      cu->cuMemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
      CUDA_SUCCESS);
  std::memset(memory, 0, bytes);
  return static_cast<std::byte*>(pinned_.emplace_back(memory));
}

}  // namespace linkspan::test
