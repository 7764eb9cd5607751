// base/socket_dir.hpp - names the setting that chose the socket folder, for errors.
//
// Threads: any thread, as far as getenv(3) goes: no thread calls setenv meanwhile.
#pragma once

#include <string>

namespace linkspan::base {

/// Returns the variable that names `folder`, and its value: LINKSPAN_SOCKET_DIR="/run/x". Empty: it
/// is the fallback, or came by EngineOptions.
std::string setting_of_socket_dir(const std::string& folder);

}  // namespace linkspan::base
