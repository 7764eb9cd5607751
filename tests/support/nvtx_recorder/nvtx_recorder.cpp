// Records NVTX ranges in the place of a profiler: NVTX loads the library that NVTX_INJECTION64_PATH
// names. Each begin and each end is a line of the file LINKSPAN_TEST_NVTX_OUT: "begin ID DOMAIN
// NAME BYTES" or "end ID DOMAIN".
#include <fcntl.h>
#include <nvtx3/nvToolsExt.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

std::atomic<nvtxRangeId_t> last{0};

void say(const std::string& line) {
  static const int file = ::open(std::getenv("LINKSPAN_TEST_NVTX_OUT"),
                                 O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (::write(file, line.data(), line.size()) < 0) std::perror("nvtx_recorder");
}

nvtxDomainHandle_t create_domain(const char* name) {
  return reinterpret_cast<nvtxDomainHandle_t>(::strdup(name));  // for the whole process
}

const char* name_of(nvtxDomainHandle_t domain) { return reinterpret_cast<const char*>(domain); }

std::string id_text(nvtxRangeId_t id) {
  return std::to_string(::getpid()) + "." + std::to_string(id);
}

nvtxRangeId_t begin(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* range) {
  const nvtxRangeId_t id = ++last;
  say("begin " + id_text(id) + " " + name_of(domain) + " " + range->message.ascii + " " +
      std::to_string(range->payload.ullValue) + "\n");
  return id;
}

void end(nvtxDomainHandle_t domain, nvtxRangeId_t id) {
  say("end " + id_text(id) + " " + name_of(domain) + "\n");
}

template <class Function>
void set(NvtxFunctionTable table, unsigned size, NvtxCallbackIdCore2 id, Function function) {
  if (static_cast<unsigned>(id) < size)
    *table[id] = reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

/// NVTX calls this at its first use.
extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t export_table) {
  const auto* callbacks =
      static_cast<const NvtxExportTableCallbacks*>(export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr || std::getenv("LINKSPAN_TEST_NVTX_OUT") == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0)
    return 0;
  set(table, size, NVTX_CBID_CORE2_DomainCreateA, &create_domain);
  set(table, size, NVTX_CBID_CORE2_DomainRangeStartEx, &begin);
  set(table, size, NVTX_CBID_CORE2_DomainRangeEnd, &end);
  return 1;
}
