#include "memory/page_access.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <optional>
#include <string>

#include "base/fd.hpp"
#include "memory/validate_allocation.hpp"

namespace linkspan::memory {
namespace {

/// The kernel's struct procmap_query (linux/fs.h of 6.11).
struct MapQuery {
  std::uint64_t size, flags, address;
  std::uint64_t begin, end, rights, page_size, offset, inode;
  std::uint32_t device_major, device_minor, name_bytes, build_id_bytes;
  std::uint64_t name, build_id;
};
static_assert(sizeof(MapQuery) == 104);
constexpr unsigned long kMapQuery = _IOWR('f', 17, MapQuery);
constexpr int kPopulateRead = 22;  // MADV_POPULATE_READ of Linux 5.14
constexpr std::uint64_t kNextMapping = 0x10, kReadable = 0x01, kWritable = 0x02;

/// Calls `each` with the mappings from the one that contains `address` or follows it, until it
/// returns false. Returns false if the kernel has no such query.
template <class Each>
bool ask_kernel(const base::Fd& maps, std::uint64_t address, Each each) {
  for (bool more = true; more;) {
    MapQuery query{};
    query.size = sizeof query;
    query.flags = kNextMapping;
    query.address = address;
    if (::ioctl(maps.get(), kMapQuery, &query) != 0) return errno == ENOENT;
    more = each(PageRange{query.begin,
                          query.end,
                          {(query.rights & kReadable) != 0, (query.rights & kWritable) != 0}});
    address = query.end;
  }
  return true;
}

/// Does the same from the text of /proc/self/maps. Returns false if it cannot be read.
template <class Each>
bool read_text(std::uint64_t address, Each each) {
  std::ifstream maps("/proc/self/maps");
  if (!maps) return false;
  for (std::string line; std::getline(maps, line);) {
    const auto range = parse_range(line);
    if (!range) return false;
    if (range->end > address && !each(*range)) break;
  }
  return true;
}

}  // namespace

std::optional<PageRange> parse_range(std::string_view line) {  // begin-end rwxp offset device inode
  PageRange range;
  const char* const end = line.data() + line.size();
  auto at = std::from_chars(line.data(), end, range.begin, 16);
  if (at.ec != std::errc() || at.ptr == end || *at.ptr != '-') return std::nullopt;
  at = std::from_chars(at.ptr + 1, end, range.end, 16);
  if (at.ec != std::errc() || end - at.ptr < 3) return std::nullopt;
  range.access = {at.ptr[1] == 'r', at.ptr[2] == 'w'};
  std::string_view device(at.ptr, end);
  for (int fields = 0; fields < 3; ++fields)
    device.remove_prefix(std::min(device.find(' '), device.size() - 1) + 1);
  range.of_file = device != "00:00 0" && !device.starts_with("00:00 0 ") &&
                  !line.ends_with(" /dev/zero (deleted)");
  return range;
}

PageAccess page_access(std::uint64_t address, std::uint64_t bytes) {
  const std::uint64_t end = address + bytes;
  std::uint64_t seen = address;  // the pages before it are mapped
  PageAccess access;
  const auto each = [&](const PageRange& range) {
    if (range.begin > seen) return false;
    seen = range.end;
    access.read &= range.access.read;
    access.write &= range.access.write;
    return seen < end;
  };
  const base::Fd maps(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
  if (!maps.valid()) return {};
  if (!ask_kernel(maps, address, each)) {
    seen = address;
    access = {};
    if (!read_text(address, each)) return {};
  }
  return seen < end ? PageAccess{false, false} : access;
}

bool pages_are_readable(std::uint64_t address, std::uint64_t bytes) noexcept {
  const std::uint64_t before = address % static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  void* first = reinterpret_cast<void*>(address - before);  // NOLINT(performance-no-int-to-ptr)
  if (::madvise(first, before + bytes, kPopulateRead) == 0) return true;
  if (errno == EINVAL) return is_mapped(address, bytes);
  return errno != EFAULT && errno != ENOMEM && errno != EHWPOISON;
}

}  // namespace linkspan::memory
