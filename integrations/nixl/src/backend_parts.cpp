#include <algorithm>
#include <array>
#include <cstdio>

#include "base/options.hpp"
#include "base/process.hpp"
#include "integrations/nixl/src/backend.hpp"

namespace linkspan::nixl {
namespace {

constexpr std::size_t kMaxShownName = 200;  // of the Engine's 256 bytes; agents have longer ones
constexpr std::size_t kSecretBytes = 32;

std::string hex_of(std::span<const std::byte> bytes) {
  std::string out;
  for (std::byte each : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned>(each));
    out += digits;
  }
  return out;
}

/// Agents may share a name, in one process or after a restart; Engines do not.
Result<std::string> random_text(std::size_t bytes) {
  std::array<std::byte, kSecretBytes> random{};
  if (Status filled = base::random_bytes(std::span(random).first(bytes)); !filled.ok())
    return filled;
  return hex_of(std::span(random).first(bytes));
}

/// Keeps what every Engine shows as it is: one compares a peer's name as it shows it.
std::string shown_name(const std::string& agent) {
  std::string out = agent.substr(0, kMaxShownName);
  std::ranges::replace_if(
      out, [](char each) { return each < ' ' || each > '~'; }, '?');
  return out;
}

Status listen(Engine& engine, const BackendOptions& options, const base::Log& log) {
  Status local = options.unix_socket ? engine.listen() : Status();
  Status remote = options.listen.empty() ? Status() : engine.listen(options.listen);
  const bool has_local = options.unix_socket && local.ok();
  const bool has_remote = !options.listen.empty() && remote.ok();
  if (!has_local && !has_remote) return remote.ok() ? local : remote;  // nothing could connect
  for (const Status* each : {&local, &remote})
    if (!each->ok())
      log.write(base::Level::warning,
                std::string(each == &local ? "no Unix socket, so peers of this host use the network"
                                           : "no TCP, so peers of other hosts cannot connect") +
                    ": " + each->to_string());
  return {};
}

}  // namespace

Result<std::unique_ptr<BackendParts>> BackendParts::open(const std::string& agent,
                                                         BackendOptions options, base::Log log) {
  auto environment = base::Options::from_environment();
  if (!environment.ok()) return environment.status();
  auto unique = random_text(8);
  auto secret = random_text(kSecretBytes);
  if (!unique.ok()) return unique.status();
  if (!secret.ok()) return secret.status();
  options.engine.name = shown_name(agent) + "/" + *unique;
  options.engine.secret = *secret;
  options.engine.security =
      environment->security == Security::encrypted ? Security::encrypted : Security::authenticated;
  options.engine.transfer_deadline = options.deadline;
  if (environment->security == Security::loopback_only && options.listen == BackendOptions().listen)
    options.listen = "tcp:127.0.0.1:0";
  for (const std::string& name : options.unknown)
    log.write(base::Level::warning,
              "parameter " + name +
                  " is unknown and has no effect (integrations/nixl/README.md lists them)");

  auto engine = Engine::open(options.engine);
  if (!engine.ok()) return engine.status();
  if (Status listens = listen(*engine, options, log); !listens.ok()) return listens;
  auto tasks = BackgroundTasks::start();
  if (!tasks.ok()) return tasks.status();
  auto out = std::make_unique<BackendParts>(std::move(log), *std::move(engine), *std::move(tasks),
                                            options);
  const auto boot_id = base::this_process().boot_id;
  out->address = {.addresses = out->engine.addresses(),
                  .engine = options.engine.name,
                  .secret = *secret,
                  .host = {reinterpret_cast<const char*>(boot_id.data()), boot_id.size()}};
  return out;
}

BackendParts::~BackendParts() {
  tasks.reset();
  if (Status closed = engine.close(std::chrono::seconds(1)); !closed.ok())
    log.write(base::Level::warning,
              "memory is still used, keep it until the process ends: " + closed.to_string());
}

}  // namespace linkspan::nixl
