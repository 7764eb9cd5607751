#include "control/socket_address.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

namespace linkspan::control {

Result<std::string> socket_path(std::string_view address, const std::string& folder) {
  const auto bad = [&](const char* why) {
    return Status(Code::invalid_argument, Scope::request,
                  "address \"" + std::string(address) + "\": " + why);
  };
  constexpr std::string_view kUnix = "unix:";
  if (address.starts_with(kUnix))
    address.remove_prefix(kUnix.size());
  else if (address.find(':') != std::string_view::npos)
    return bad("only unix:/path is supported by this release");
  if (address.empty()) return bad("empty; give unix:/path or a name");
  if (address.find('\0') != std::string_view::npos) return bad("has a zero byte");
  std::string path(address);
  if (path.front() != '/') {
    if (path.find('/') != std::string::npos)
      return bad("a name has no slash, a path begins with one");
    path = folder + "/" + path;
  }
  if (path.size() >= sizeof(sockaddr_un::sun_path))
    return bad("longer than the 107 bytes that a Unix socket may have");
  return path;
}

Status secure_folder(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return base::Fd::from(("mkdir " + folder).c_str(), -1).status();
  struct stat facts {};
  if (::lstat(folder.c_str(), &facts) != 0)
    return base::Fd::from(("lstat " + folder).c_str(), -1).status();
  const auto unsafe = [&](const std::string& what, const std::string& remedy) {
    return Status(Code::permission_denied, Scope::process,
                  folder + " " + what + ": " + remedy +
                      ", or set LINKSPAN_SOCKET_DIR to a folder of uid " +
                      std::to_string(::geteuid()) + " that nobody else can write to");
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

Result<base::Fd> listen_at(const std::string& path) {
  auto address = unix_address(path);
  if (!address.ok()) return address.status();
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
    return base::Fd::from(("bind " + path).c_str(), -1).status();
  if (::listen(socket->get(), 128) != 0) return base::Fd::from("listen", -1).status();
  return socket;
}

Result<base::Fd> connect_to(const std::string& path) {
  auto address = unix_address(path);
  if (!address.ok()) return address.status();
  auto socket =
      base::Fd::from("socket", ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.ok()) return socket;
  if (::connect(socket->get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) == 0)
    return socket;
  switch (errno) {
    case ENOENT:
      return Status(Code::not_found, Scope::request, "no socket at " + path);
    case ECONNREFUSED:
      return Status(Code::unreachable, Scope::request, "nobody accepts at " + path);
    case EAGAIN:
      return Status(Code::no_resource, Scope::request,
                    "more connect to " + path + " than its Engine has accepted so far");
    case EACCES:
      return Status(Code::permission_denied, Scope::request, "no permission for " + path);
    default:
      return base::Fd::from(("connect " + path).c_str(), -1).status();
  }
}

}  // namespace linkspan::control
