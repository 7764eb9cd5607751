#include "engine/diagnostics/profiler_range.hpp"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define LINKSPAN_HAS_NVTX
#endif

namespace linkspan::engine {

#ifdef LINKSPAN_HAS_NVTX
namespace {

nvtxDomainHandle_t domain() noexcept {
  static const nvtxDomainHandle_t handle = nvtxDomainCreateA("linkspan");
  return handle;
}

}  // namespace

bool ProfilerRange::available() noexcept { return true; }

void ProfilerRange::begin(const char* name, std::uint64_t bytes) noexcept {
  nvtxEventAttributes_t range{};
  range.version = NVTX_VERSION;
  range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  range.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
  range.payload.ullValue = bytes;
  range.messageType = NVTX_MESSAGE_TYPE_ASCII;
  range.message.ascii = name;
  id_ = nvtxDomainRangeStartEx(domain(), &range);
}

void ProfilerRange::end_at_profiler() noexcept {
  nvtxDomainRangeEnd(domain(), id_);
  id_ = 0;
}
#else
bool ProfilerRange::available() noexcept { return false; }
void ProfilerRange::begin(const char* /*name*/, std::uint64_t /*bytes*/) noexcept {}
void ProfilerRange::end_at_profiler() noexcept {}
#endif

}  // namespace linkspan::engine
