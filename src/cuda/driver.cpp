#include "cuda/driver.hpp"

#include <string>

#include "base/environment.hpp"
#include "cuda/library.hpp"

namespace linkspan::cuda {
namespace {

/// Returns the entry, or null. For a version above the driver's, cuGetProcAddress returns null and
/// two successes; for one that is too low, only a status. So all three are checked.
void* find_entry(GetProcAddress look_up, const char* name, int version) {
  void* entry = nullptr;
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  const CUresult r = look_up(name, &entry, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found);
  return r == CUDA_SUCCESS && found == CU_GET_PROC_ADDRESS_SUCCESS ? entry : nullptr;
}

template <class Function>
void fill(Function*& member, void* entry) noexcept {
  member = reinterpret_cast<Function*>(entry);
}

Status unsupported(std::string why) {
  return Status(Code::unsupported, Scope::transport, std::move(why));
}

}  // namespace

Result<Driver> Driver::load(const char* file, CUresult* init) {
  if (file == nullptr || *file == '\0') file = driver_library_name();
  Result<void*> library = open_library(file);
  if (!library.ok()) return library.status();
  const auto look_up =
      reinterpret_cast<GetProcAddress>(find_symbol(*library, "cuGetProcAddress_v2"));
  if (look_up == nullptr)
    return unsupported(std::string(file) + " is no CUDA driver, or one older than 12.0");

  Driver driver;
  std::string missing;
#define LINKSPAN_FILL(name, version, parameters) \
  fill(driver.name, find_entry(look_up, #name, version));
#define LINKSPAN_REQUIRE(name, version, parameters) \
  LINKSPAN_FILL(name, version, parameters)          \
  if (driver.name == nullptr) missing += " " #name;
  LINKSPAN_DRIVER_REQUIRED(LINKSPAN_REQUIRE)
  LINKSPAN_DRIVER_OPTIONAL(LINKSPAN_FILL)
#undef LINKSPAN_REQUIRE
#undef LINKSPAN_FILL
  if (!missing.empty()) return unsupported(std::string(file) + " lacks" + missing);

  const CUresult r = driver.cuInit(0);
  if (init != nullptr) *init = r;
  if (r != CUDA_SUCCESS) return unsupported(to_status(driver, r, "cuInit").what());
  return driver;
}

Result<const Driver*> Driver::get() {
  static const Result<Driver> loaded = load(base::environment("LINKSPAN_CUDA_LIBRARY"));
  if (!loaded.ok()) return loaded.status();
  return &*loaded;
}

}  // namespace linkspan::cuda
