// control/socket_address.hpp - where Engines of one host find each other: Unix sockets in a folder
// that only their user can enter.
//
// Threads: any thread.
#pragma once

#include <sys/un.h>

#include <string>
#include <string_view>

#include "base/fd.hpp"

namespace linkspan::control {

/// "unix:/path" or "/path" as a path; a bare name is a socket in `folder`. invalid_argument: empty,
/// too long for a socket, or of a scheme that this release does not have.
Result<std::string> socket_path(std::string_view address, const std::string& folder);

/// Makes the folder (mode 0700) if there is none. permission_denied: it is no folder (a link
/// to one either), another user's, or others may write to it.
Status secure_folder(const std::string& folder);

Result<sockaddr_un> unix_address(const std::string& path);

/// A listening socket. busy: somebody listens there already. invalid_argument: a file is there that
/// is no socket.
Result<base::Fd> listen_at(const std::string& path);

/// not_found; unreachable when nobody listens; no_resource when too many wait there to be accepted.
/// Each may change.
Result<base::Fd> connect_to(const std::string& path);

}  // namespace linkspan::control
