#include "cuda/library.hpp"

#include <string>

#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace linkspan::cuda {

#if defined(_WIN32)

const char* driver_library_name() noexcept { return "nvcuda.dll"; }

Result<void*> open_library(const char* file) {
  const bool path = std::string(file).find_first_of("/\\") != std::string::npos;
  HMODULE library = LoadLibraryExA(file, nullptr, path ? 0 : LOAD_LIBRARY_SEARCH_SYSTEM32);
  if (library != nullptr) return static_cast<void*>(library);
  return Status(
      Code::unsupported, Scope::transport,
      "no CUDA driver: " + std::string(file) + ", error " + std::to_string(GetLastError()));
}

void* find_symbol(void* library, const char* name) noexcept {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), name));
}

#else

const char* driver_library_name() noexcept { return "libcuda.so.1"; }

Result<void*> open_library(const char* file) {
  if (void* library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL); library != nullptr) return library;
  const char* why = ::dlerror();  // NOLINT(concurrency-mt-unsafe): glibc's text is per thread
  return Status(Code::unsupported, Scope::transport,
                std::string("no CUDA driver: ") + (why != nullptr ? why : file));
}

void* find_symbol(void* library, const char* name) noexcept { return ::dlsym(library, name); }

#endif

}  // namespace linkspan::cuda
