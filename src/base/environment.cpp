#include "base/environment.hpp"

#include <cstdlib>

namespace linkspan::base {

const char* environment(const char* name) noexcept {
#if defined(__GLIBC__)
  return ::secure_getenv(name);
#else
  return std::getenv(name);  // NOLINT(concurrency-mt-unsafe): as the header says
#endif
}

}  // namespace linkspan::base
