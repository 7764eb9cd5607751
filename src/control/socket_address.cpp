#include "control/socket_address.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <utility>

namespace linkspan::control {
namespace {

constexpr std::size_t kMaxHost = 253;  // of a name in DNS
constexpr int kTryPorts = 16;
constexpr std::size_t kIncarnationDigits = 16;

/// Removes "#" and the digits of an incarnation from the end of `address`. Returns 0 if it has
/// none.
std::uint64_t cut_incarnation(std::string_view& address) {
  const std::size_t mark = address.rfind('#');
  if (mark == std::string_view::npos || address.size() - mark - 1 != kIncarnationDigits) return 0;
  std::uint64_t incarnation = 0;
  const char* const end = address.data() + address.size();
  const auto [read, error] = std::from_chars(address.data() + mark + 1, end, incarnation, 16);
  if (error != std::errc() || read != end) return 0;
  address = address.substr(0, mark);
  return incarnation;
}

/// "host:port" or "[host]:port". Null, or what is wrong with it.
const char* parse_tcp(std::string_view rest, SocketAddress& into) {
  const auto colon = rest.rfind(':');
  if (colon == std::string_view::npos) return "has no port; give tcp:host:port";
  std::string_view host = rest.substr(0, colon);
  const std::string_view port = rest.substr(colon + 1);
  const bool brackets = host.starts_with('[') && host.ends_with(']');
  if (brackets) host = host.substr(1, host.size() - 2);
  if (host.empty()) return "has no host; give tcp:host:port";
  if (host.size() > kMaxHost) return "a host's name has at most 253 bytes";
  if (host.find_first_of("[]/ ") != std::string_view::npos) return "no host has such a name";
  if (brackets != (host.find(':') != std::string_view::npos))
    return "brackets are for IPv6 alone, which needs them: tcp:[::1]:4711";
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), into.port);
  if (error != std::errc() || end != port.data() + port.size())
    return "a port is a number from 0 to 65535";
  into.host = host;
  return nullptr;
}

Status refused_address(const std::string& what) {
  constexpr auto kRemedy =
      ", beyond loopback: give both sides a secret by LINKSPAN_SECRET_FILE, "
      "EngineOptions::secret_file or secret, or connect with ConnectOptions::secret; without one "
      "nobody shows who he is, and EngineOptions::security or LINKSPAN_SECURITY=insecure says that "
      "this is meant";
  return {Code::permission_denied, Scope::request, what + kRemedy};
}

/// Returns true if a listener at one address is also reached at the other.
bool includes(const base::Fd& socket, const net::TcpAddress& at, const net::TcpAddress& address) {
  if (at.host() == address.host()) return true;
  if (at.raw.ss_family == AF_INET)
    return at.host() == "0.0.0.0" && address.raw.ss_family == AF_INET;
  int six_alone = 0;
  socklen_t bytes = sizeof six_alone;
  (void)::getsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &six_alone, &bytes);
  return at.host() == "::" && (address.raw.ss_family == AF_INET6 || six_alone == 0);
}

Result<Listening> listen_once(const net::TcpAddress& first,
                              std::span<const net::TcpAddress> beside) {
  auto socket = listen_at(first);
  if (!socket.ok()) return socket.status();
  const auto at = net::address_of(*socket);
  if (!at.ok()) return at.status();
  Listening out{.socket = *std::move(socket),
                .at = {.host = at->host(), .port = at->port()},
                .beyond_loopback = !at->is_loopback()};
  for (const net::TcpAddress& each : beside) {
    // A peer on loopback is on this host, where interfaces make no difference.
    if (at->is_loopback() && !each.is_loopback()) continue;
    if (includes(out.socket, *at, each)) continue;
    auto more = listen_at(each.with_port(at->port()));
    if (!more.ok())
      return Status(more.status().code(), more.status().scope(),
                    "named interfaces: " + more.status().what());
    out.beside.push_back(*std::move(more));
  }
  return out;
}

Status not_bound(const std::string& path, int error) {
  const std::string folder = path.substr(0, std::max<std::size_t>(path.rfind('/'), 1));
  const std::string what = "listen at unix:" + path + ": " + std::generic_category().message(error);
  if (error == ENOENT)
    return {Code::not_found, Scope::request,
            what + ": make its folder " + folder + ", or listen at another path"};
  if (error == EACCES || error == EROFS || error == EPERM)
    return {Code::permission_denied, Scope::request,
            what + ": let this user write to " + folder +
                ", or set LINKSPAN_SOCKET_DIR or the address to a folder where it may"};
  return {Code::system, Scope::process, what};
}

}  // namespace

std::string SocketAddress::to_string() const {
  const bool six = host.find(':') != std::string::npos;
  std::string text = is_tcp()
                         ? "tcp:" + (six ? "[" + host + "]" : host) + ":" + std::to_string(port)
                         : "unix:" + path;
  if (incarnation == 0) return text;
  std::array<char, kIncarnationDigits + 2> digits{};
  (void)std::snprintf(digits.data(), digits.size(), "#%016" PRIx64, incarnation);
  return text + digits.data();
}

Result<SocketAddress> parse_address(std::string_view address, const std::string& folder) {
  const auto bad = [&](const char* why) {
    return Status(Code::invalid_argument, Scope::request,
                  "address \"" + std::string(address) + "\": " + why);
  };
  constexpr std::string_view kUnix = "unix:", kTcp = "tcp:";
  std::string_view rest = address;
  const std::uint64_t incarnation = cut_incarnation(rest);
  if (rest.find('\0') != std::string_view::npos) return bad("has a zero byte");
  if (rest.starts_with(kTcp)) {
    SocketAddress at;
    const char* const wrong = parse_tcp(rest.substr(kTcp.size()), at);
    if (wrong != nullptr) return bad(wrong);
    at.incarnation = incarnation;
    return at;
  }
  if (rest.starts_with(kUnix))
    rest.remove_prefix(kUnix.size());
  else if (rest.find(':') != std::string_view::npos)
    return bad("only unix:/path and tcp:host:port are supported by this release");
  if (rest.empty()) return bad("empty; give unix:/path, tcp:host:port or a name");
  std::string path(rest);
  if (path.front() != '/') {
    if (path.find('/') != std::string::npos)
      return bad("a name has no slash, a path begins with one");
    path = folder + "/" + path;
  }
  if (path.size() >= sizeof(sockaddr_un::sun_path) && path != rest)
    return bad(("longer than the 107 bytes that a Unix socket may have, with the socket folder " +
                folder +
                " before it: set LINKSPAN_SOCKET_DIR or EngineOptions::socket_dir to a "
                "shorter path")
                   .c_str());
  if (path.size() >= sizeof(sockaddr_un::sun_path))
    return bad("longer than the 107 bytes that a Unix socket may have");
  return SocketAddress{.path = std::move(path), .incarnation = incarnation};
}

Result<std::vector<SocketAddress>> parse_addresses(std::string_view list,
                                                   const std::string& folder) {
  std::vector<SocketAddress> all;
  for (;;) {
    const std::size_t end = std::min({list.find(",unix:"), list.find(",tcp:"), list.size()});
    auto at = parse_address(list.substr(0, end), folder);
    if (!at.ok()) return at.status();
    all.push_back(*std::move(at));
    if (end == list.size()) return all;
    if (all.size() == kMaxAddresses)
      return Status(Code::invalid_argument, Scope::request,
                    "more than 64 addresses: give those by which the Engine is reached best");
    list.remove_prefix(end + 1);
  }
}

Result<std::vector<net::TcpAddress>> resolve(const SocketAddress& address, bool leaves_host) {
  auto found = net::resolve(address.host, address.port);
  if (!found.ok() || leaves_host) return found;
  for (const net::TcpAddress& each : *found)
    if (!each.is_loopback())
      return refused_address(address.to_string() + " is " + each.to_string());
  return found;
}

Status secure_folder(const std::string& folder, const std::string& setting) {
  const auto refused = [&](Code code, const std::string& what, const std::string& remedy) {
    return Status(code, Scope::process,
                  (setting.empty() ? "" : setting + ": ") + "the socket folder " + folder + " " +
                      what + ": " + remedy + ", or set LINKSPAN_SOCKET_DIR to a folder of uid " +
                      std::to_string(::geteuid()) + " that nobody else can write to");
  };
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    const int error = errno;
    const std::string what = "cannot be made (" + std::generic_category().message(error) + ")";
    const std::string parent = folder.substr(0, std::max<std::size_t>(folder.rfind('/'), 1));
    if (error == ENOENT) return refused(Code::not_found, what, "make " + parent);
    return refused(error == EACCES || error == EROFS || error == EPERM ? Code::permission_denied
                                                                       : Code::system,
                   what, "let this user write to " + parent);
  }
  struct stat facts {};
  if (::lstat(folder.c_str(), &facts) != 0)
    return base::Fd::from(("lstat " + folder).c_str(), -1).status();
  const auto unsafe = [&](const std::string& what, const std::string& remedy) {
    return refused(Code::permission_denied, what, remedy);
  };
  if (S_ISLNK(facts.st_mode)) return unsafe("is a symbolic link", "name the folder itself");
  if (!S_ISDIR(facts.st_mode)) return unsafe("is no folder", "remove it");
  if (facts.st_uid != ::geteuid())
    return unsafe("belongs to uid " + std::to_string(facts.st_uid), "let its owner remove it");
  if ((facts.st_mode & 022) != 0)
    return unsafe("can be written to by others", "chmod 700 " + folder);
  return {};
}

Result<sockaddr_un> unix_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return Status(Code::invalid_argument, Scope::request, "socket path too long: " + path);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

Result<Listening> listen_at(const SocketAddress& address, bool leaves_host,
                            std::span<const net::TcpAddress> beside) {
  if (!address.is_tcp()) {
    auto socket = listen_at(address.path);
    if (!socket.ok()) return socket.status();
    return Listening{.socket = *std::move(socket), .at = address};
  }
  auto found = resolve(address, leaves_host);
  if (!found.ok()) return found.status();
  // "localhost" may resolve to ::1 first on a host without IPv6.
  const auto ours = std::find_if(found->begin(), found->end(),
                                 [](const net::TcpAddress& each) { return is_local(each).ok(); });
  if (ours == found->end()) return is_local(found->front());
  for (int left = kTryPorts;; --left) {
    auto listening = listen_once(*ours, beside);
    // A port that is free at the first address may be in use at the other one.
    if (listening.status().code() != Code::busy || address.port != 0 || left == 0) return listening;
  }
}

namespace {

/// The lock file of a path, owned while a process begins to listen there, so that no other one
/// checks meanwhile whether the socket is stale. The file is removed with it; a file that a killed
/// process left is not locked.
class PathLock {
 public:
  static Result<PathLock> acquire(const std::string& path) {
    const std::string name = path + ".lock";
    for (int tries = 0; tries < kTryLocks; ++tries) {
      base::Fd file(
          ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
      if (!file.valid()) return not_bound(path, errno);
      if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) break;
      struct stat ours {
      }, there{};
      const bool same = ::fstat(file.get(), &ours) == 0 && ::lstat(name.c_str(), &there) == 0 &&
                        ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
      if (same) return PathLock(std::move(file), name);  // else its last holder has removed it
    }
    return Status(Code::busy, Scope::request,
                  "another Engine begins to listen at " + path + ": it has locked " + name);
  }
  PathLock(PathLock&& other) noexcept = default;
  PathLock& operator=(PathLock&&) = delete;
  PathLock(const PathLock&) = delete;
  PathLock& operator=(const PathLock&) = delete;
  ~PathLock() {
    if (file_.valid()) ::unlink(name_.c_str());
  }

 private:
  static constexpr int kTryLocks = 16;
  PathLock(base::Fd file, std::string name) : file_(std::move(file)), name_(std::move(name)) {}

  base::Fd file_;
  std::string name_;
};

}  // namespace

Result<base::Fd> listen_at(const std::string& path) {
  auto address = unix_address(path);
  if (!address.ok()) return address.status();
  const auto lock = PathLock::acquire(path);
  if (!lock.ok()) return lock.status();
  auto live = connect_to(path);
  if (live.ok() || live.status().code() == Code::no_resource)
    return Status(Code::busy, Scope::request, "another Engine listens at " + path);
  struct stat facts {};
  if (::lstat(path.c_str(), &facts) == 0) {
    if (!S_ISSOCK(facts.st_mode))
      return Status(Code::invalid_argument, Scope::request,
                    path + " is a file that is no socket, and stays");
    if (live.status().code() == Code::unreachable) ::unlink(path.c_str());  // left by a dead one
  }
  auto socket =
      base::Fd::from("socket", ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.ok()) return socket;
  if (::bind(socket->get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0)
    return not_bound(path, errno);
  if (::listen(socket->get(), 128) != 0) return base::Fd::from("listen", -1).status();
  return socket;
}

Result<base::Fd> connect_to(const std::string& path, Duration patience) {
  auto address = unix_address(path);
  if (!address.ok()) return address.status();
  const bool waits = patience > Duration::zero();
  auto socket = base::Fd::from(
      "socket", ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | (waits ? 0 : SOCK_NONBLOCK), 0));
  if (!socket.ok()) return socket;
  if (waits) {
    const auto time = std::chrono::ceil<std::chrono::microseconds>(patience).count();
    const timeval limit{.tv_sec = time / 1'000'000, .tv_usec = time % 1'000'000};
    if (::setsockopt(socket->get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0)
      return base::Fd::from("setsockopt SO_SNDTIMEO", -1).status();
  }
  if (::connect(socket->get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) ==
      0) {
    if (waits && ::fcntl(socket->get(), F_SETFL, O_NONBLOCK) != 0)
      return base::Fd::from("fcntl F_SETFL", -1).status();
    return socket;
  }
  switch (errno) {
    case ENOENT:
      return Status(Code::not_found, Scope::request, "no socket at " + path);
    case ECONNREFUSED:
      return Status(Code::unreachable, Scope::request, "nobody accepts at " + path);
    case EAGAIN:
    case EINTR:
      return Status(Code::no_resource, Scope::request,
                    "more connect to " + path + " than its Engine has accepted so far");
    case EACCES:
      return Status(Code::permission_denied, Scope::request, "no permission for " + path);
    default:
      return base::Fd::from(("connect " + path).c_str(), -1).status();
  }
}

}  // namespace linkspan::control
