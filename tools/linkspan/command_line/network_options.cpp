#include "tools/linkspan/command_line/network_options.hpp"

namespace linkspan::tool {

void NetworkOptions::define(Arguments& arguments) {
  arguments.text("--secret-file", secret_file, "FILE",
                 "That the other side has as well; needed beyond loopback (LINKSPAN_SECRET_FILE)");
  arguments.choice("--security", security,
                   {"loopback_only", "insecure", "authenticated", "encrypted"},
                   "How TCP is protected; insecure leaves loopback without a secret "
                   "(LINKSPAN_SECURITY)");
  arguments.number("--timeout", timeout_s, 1, 86400, "SECONDS",
                   "Of each step of the other side's (30)");
}

EngineOptions NetworkOptions::engine(const char* name) const {
  EngineOptions out{.name = name};
  out.secret_file = secret_file;
  out.security = parse_security(security);
  return out;
}

std::string tcp_address(const std::string& host_and_port) {
  return host_and_port.starts_with("tcp:") ? host_and_port : "tcp:" + host_and_port;
}

Status connect_failed(const std::string& host_and_port, const Status& why) {
  if (why.code() != Code::timed_out && why.code() != Code::unreachable) return why;
  return {why.code(), Scope::request,
          "not reached: " + why.what() + "; is `linkspan serve --listen " + host_and_port +
              "` running there, and no firewall before it?"};
}

}  // namespace linkspan::tool
