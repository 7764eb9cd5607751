// base/socket_dir.hpp - the setting by which the socket folder came, for errors.
//
// Threads: any thread, as far as getenv(3) goes: nobody calls setenv meanwhile.
#pragma once

#include <string>

namespace linkspan::base {

/// Returns the variable that names `folder`, and its value: LINKSPAN_SOCKET_DIR="/run/x". Empty: it
/// is the fallback, or came by EngineOptions.
std::string setting_of_socket_dir(const std::string& folder);

}  // namespace linkspan::base
