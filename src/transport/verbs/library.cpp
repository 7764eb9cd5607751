#include "transport/verbs/library.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/environment.hpp"

namespace linkspan::transport::verbs {
namespace {

constexpr const char* kFile = "libibverbs.so.1";

Status unsupported(std::string why) {
  return Status(Code::unsupported, Scope::transport, std::move(why));
}

template <class Function>
void fill(Function*& member, void* library, const char* name) noexcept {
  member = reinterpret_cast<Function*>(::dlsym(library, name));
}

bool is_zero(const IbvGid& gid) noexcept {
  static constexpr IbvGid kZero{};
  return std::memcmp(gid.raw, kZero.raw, sizeof gid.raw) == 0;
}

/// Reads what the kernel says of the type of a GID. Sets errno after a failure, which is what the
/// kernel answers for an entry that is not in use.
bool read_gid_type(const IbvDevice& device, std::uint8_t port_num, int index, std::uint32_t& type) {
  const std::string file = std::string(device.ibdev_path) + "/ports/" + std::to_string(port_num) +
                           "/gid_attrs/types/" + std::to_string(index);
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char text[32] = {};
  const ssize_t bytes = ::read(fd, text, sizeof text - 1);
  const int error = errno;
  ::close(fd);
  errno = error;
  if (bytes < 0) return false;
  const std::string_view word(text, static_cast<std::size_t>(bytes));
  // The kernel writes the same words for InfiniBand and for version 1 of RoCE.
  type = word.starts_with("RoCE v2") ? kGidRoceV2 : kGidRoceV1;
  return true;
}

}  // namespace

Result<Library> Library::load(const char* file) {
  if (file == nullptr || *file == '\0') file = kFile;
  void* const opened = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) {
    const char* const why = ::dlerror();  // NOLINT(concurrency-mt-unsafe): as in cuda/library.cpp
    return unsupported(std::string("no libibverbs: ") + (why != nullptr ? why : file));
  }
  Library library;
  std::string missing;
#define LINKSPAN_FILL(name, result, parameters) fill(library.name, opened, "ibv_" #name);
#define LINKSPAN_REQUIRE(name, result, parameters) \
  LINKSPAN_FILL(name, result, parameters)          \
  if (library.name == nullptr) missing += " ibv_" #name;
  LINKSPAN_VERBS_REQUIRED(LINKSPAN_REQUIRE)
  LINKSPAN_VERBS_OPTIONAL(LINKSPAN_FILL)
#undef LINKSPAN_REQUIRE
#undef LINKSPAN_FILL
  fill(library.query_port_, opened, "ibv_query_port");
  if (library.query_port_ == nullptr) missing += " ibv_query_port";
  fill(library.query_gid_ex_, opened, "_ibv_query_gid_ex");
  if (!missing.empty()) return unsupported(std::string(file) + " lacks" + missing);
  return library;
}

Result<const Library*> Library::get() {
  static const Result<Library> loaded = load(base::environment("LINKSPAN_VERBS_LIBRARY"));
  if (!loaded.ok()) return loaded.status();
  return &*loaded;
}

int Library::query_port(IbvContext* context, std::uint8_t port_num,
                        IbvPortAttr& attr) const noexcept {
  attr = {};
  IbvExtendedContext* const whole = extended(context);
  if (whole != nullptr && whole->sz >= sizeof *whole && whole->query_port != nullptr)
    return whole->query_port(context, port_num, &attr, sizeof attr);
  return query_port_(context, port_num, &attr);
}

int Library::query_gid_entry(IbvContext* context, std::uint8_t port_num, int index,
                             IbvGidEntry& entry) const {
  entry = {};
  if (index < 0) return EINVAL;
  if (query_gid_ex_ != nullptr)
    return query_gid_ex_(context, port_num, static_cast<std::uint32_t>(index), &entry, 0,
                         sizeof entry);
  errno = 0;
  if (query_gid(context, port_num, index, &entry.gid) != 0) return errno != 0 ? errno : EINVAL;
  if (is_zero(entry.gid)) return ENODATA;
  entry.gid_index = static_cast<std::uint32_t>(index);
  entry.port_num = port_num;
  IbvPortAttr port{};
  if (const int error = query_port(context, port_num, port); error != 0) return error;
  if (port.link_layer != kLinkEthernet) {
    entry.gid_type = kGidIb;
    return 0;
  }
  if (!read_gid_type(*context->device, port_num, index, entry.gid_type))
    return errno == EINVAL ? ENODATA : errno;
  return 0;
}

std::string describe_error(const char* function, int error) {
  return std::string(function) + ": " + std::generic_category().message(error) + " (errno " +
         std::to_string(error) + ")";
}

}  // namespace linkspan::transport::verbs
