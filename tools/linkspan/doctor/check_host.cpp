// Checks the host for the doctor: the kernel's calls that every path needs, limits, namespaces, and
// the folder of sockets. Tries each by use where that is possible.
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "base/options.hpp"
#include "base/process.hpp"
#include "base/socket_dir.hpp"
#include "bench/bare/machine.hpp"
#include "control/socket_address.hpp"
#include "memory/host_backing.hpp"
#include "tools/linkspan/command_line/table.hpp"
#include "tools/linkspan/doctor/diagnosis.hpp"
#include "tools/linkspan/pair/child_process.hpp"
#include "tools/linkspan/pair/helper_process.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr const char* kArea = "host";
constexpr Duration kChildAnswers = 20s;
constexpr rlim_t kFewDescriptors = 1024;
constexpr std::uint64_t kProbeBytes = 4096;

std::string limit_text(rlim_t limit, bool bytes) {
  if (limit == RLIM_INFINITY) return "unlimited";
  return bytes ? size_name(limit) : std::to_string(limit);
}

void check_machine(Diagnosis& out) {
  const bare::Machine machine = bare::describe_machine(nullptr);
  struct sysinfo memory {};
  const auto mib =
      ::sysinfo(&memory) == 0 ? (std::uint64_t{memory.totalram} * memory.mem_unit) >> 20 : 0;
  out.ok(kArea, "machine",
         "Linux " + machine.kernel + ", " + std::to_string(machine.cpus) + " CPUs, " +
             std::to_string(mib) + " MiB of memory");
}

void check_calls(Diagnosis& out) {
  const auto shared = memory::HostBacking::make_shared_memory(kProbeBytes);
  if (shared.ok())
    out.ok(kArea, "memfd_create", "shared memory that cannot shrink works");
  else
    out.add(
        Level::fail, kArea, "memfd_create", shared.status().what(),
        "allow memfd_create and F_ADD_SEALS (a seccomp profile?); Linux 3.17 or newer has them");
  const auto pidfd = base::open_pidfd(::getpid());
  if (pidfd.ok())
    out.ok(kArea, "pidfd_open", "the end of a peer is seen at once");
  else
    out.add(Level::fail, kArea, "pidfd_open", pidfd.status().what(),
            "allow pidfd_open (a seccomp profile?); Linux 5.3 or newer has it");
}

void check_limits(Diagnosis& out) {
  rlimit files{}, locked{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  ::getrlimit(RLIMIT_MEMLOCK, &locked);
  const std::string found =
      limit_text(files.rlim_cur, false) + " of at most " + limit_text(files.rlim_max, false);
  if (files.rlim_cur < kFewDescriptors)
    out.add(Level::warn, kArea, "RLIMIT_NOFILE", found,
            "each peer and each shared region takes some: `ulimit -n " +
                limit_text(std::max(files.rlim_max, kFewDescriptors), false) + "`");
  else
    out.ok(kArea, "RLIMIT_NOFILE", found);
  out.ok(kArea, "RLIMIT_MEMLOCK",
         limit_text(locked.rlim_cur, true) + "; linkspan itself locks no memory");
  struct statvfs shm {};
  out.ok(kArea, "/dev/shm",
         ::statvfs("/dev/shm", &shm) == 0
             ? std::to_string((std::uint64_t{shm.f_frsize} * shm.f_blocks) >> 20) +
                   " MiB; not used: shared memory is a memfd"
             : "absent; not used: shared memory is a memfd");
}

std::string yama() {
  int scope = -1;
  std::ifstream("/proc/sys/kernel/yama/ptrace_scope") >> scope;
  return scope < 0 ? "no Yama" : "Yama ptrace_scope " + std::to_string(scope);
}

/// Tests both directions: Yama may let a process read its child, but not the reverse.
Status read_each_other() {
  auto child = ChildProcess::spawn(kHelperVerb, kChildAnswers);
  if (!child.ok()) return child.status();
  const auto theirs = (*child)->call("probe", kChildAnswers);
  if (!theirs.ok()) return theirs.status();
  std::uint64_t address = 0, value = 0;
  std::istringstream(*theirs) >> address >> value;
  const auto read = read_u64((*child)->pid(), address);
  if (!read.ok()) return read.status();
  const std::uint64_t ours = base::random_u64();
  const auto answer = (*child)->call("peek " + std::to_string(::getpid()) + ' ' +
                                         std::to_string(reinterpret_cast<std::uint64_t>(&ours)),
                                     kChildAnswers);
  if (!answer.ok()) return answer.status();
  if (*read != value || *answer != std::to_string(ours))
    return {Code::corrupt, Scope::process, "process_vm_readv read another process's memory"};
  return {};
}

void check_cross_process(Diagnosis& out) {
  const Status status = read_each_other();
  if (status.ok()) {
    out.ok(kArea, "process_vm_readv", "two processes read each other (" + yama() + ")");
    return;
  }
  out.add(Level::warn, kArea, "process_vm_readv", status.what() + " (" + yama() + ")",
          "private host memory of two processes has no path without it: allocate_shared() needs "
          "none; or set kernel.yama.ptrace_scope to 0, allow the call in the container's seccomp "
          "profile, share its pid namespace");
}

void check_namespaces(Diagnosis& out) {
  struct Namespace {
    const char* name;
    unsigned initial;  // inode of the initial namespace (include/linux/proc_ns.h)
  };
  constexpr std::array kNamespaces = {Namespace{"user", 0xEFFFFFFD}, Namespace{"pid", 0xEFFFFFFC},
                                      Namespace{"ipc", 0xEFFFFFFF}};
  std::string own, hosts;
  for (const auto& [name, initial] : kNamespaces) {
    struct stat facts {};
    if (::stat((std::string("/proc/self/ns/") + name).c_str(), &facts) != 0) continue;
    std::string& which = facts.st_ino == initial ? hosts : own;
    which += (which.empty() ? "" : ", ") + std::string(name);
  }
  std::string found = own.empty() && hosts.empty() ? "not known: no /proc/self/ns"
                      : own.empty()                ? "the host's own (" + hosts + ")"
                                                   : "apart from the host's: " + own;
  if (!own.empty())
    found +=
        "; peers outside need the same socket folder, and outside the pid or user namespace "
        "process_vm_readv does not reach them";
  out.ok(kArea, "namespaces", found);
}

void check_socket_folder(Diagnosis& out) {
  const auto options = base::Options::from_environment();
  if (!options.ok()) return;  // check_settings has reported it
  const std::string& folder = options->socket_dir;
  struct stat facts {};
  const bool there = ::lstat(folder.c_str(), &facts) == 0;
  Status status = control::secure_folder(folder, base::setting_of_socket_dir(folder));
  if (status.ok()) {
    const std::string path = folder + "/doctor-" + std::to_string(::getpid()) + ".sock";
    const auto socket = control::listen_at(path);
    status = socket.status();
    if (socket.ok()) ::unlink(path.c_str());
  }
  if (!there) ::rmdir(folder.c_str());
  if (!status.ok()) {
    out.add(Level::fail, kArea, "socket folder", status.what(),
            "set LINKSPAN_SOCKET_DIR to a folder of your own (mode 0700), its path below 90 bytes");
    return;
  }
  std::array<char, 16> mode{};
  std::snprintf(mode.data(), mode.size(), "%04o", facts.st_mode & 07777u);
  out.ok(
      kArea, "socket folder",
      folder +
          (there ? ", mode " + std::string(mode.data()) + ", of uid " + std::to_string(facts.st_uid)
                 : ", made at the first use") +
          "; a socket opens there");
}

}  // namespace

void check_host(Diagnosis& out) {
  check_machine(out);
  check_calls(out);
  check_limits(out);
  check_socket_folder(out);
  check_cross_process(out);
  check_namespaces(out);
}

}  // namespace linkspan::tool
