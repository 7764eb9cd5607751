#include "engine/engine_context.hpp"

#include <unistd.h>

#include <utility>

#include "base/untrusted_input.hpp"
#include "transport/registry.hpp"

namespace linkspan::engine {
namespace {

/// The user's callback, which may wait and may call linkspan.
class Callback final : public base::LogQueue::Outlet {
 public:
  explicit Callback(std::function<void(LogLevel, std::string_view)> log) : log_(std::move(log)) {}
  void deliver(base::Level level, std::string_view line) override {
    log_(static_cast<LogLevel>(level), line);
  }

 private:
  const std::function<void(LogLevel, std::string_view)> log_;
};

base::LogSink sink_to(const std::shared_ptr<base::LogQueue>& queue) {
  if (queue == nullptr) return base::stderr_sink();
  return [queue](base::Level level, std::string_view text) { queue->push(level, text); };
}

/// 0 leaves the environment's number or the default.
Status set_cpu_threads(unsigned wanted, base::Options& settings) {
  if (wanted == 0) return {};
  std::uint64_t number = 0;
  Status status = base::Setting{"EngineOptions::cpu_threads", std::to_string(wanted)}.read_number(
      1, base::kMaxCpuThreads, number);
  if (status.ok()) settings.cpu_threads = static_cast<unsigned>(number);
  return status;
}

/// Lets the security and the secret of the options win over those of the environment.
Status set_security(const EngineOptions& options, base::Options& settings) {
  if (options.security) {
    settings.security = options.security;
    settings.security_from = "EngineOptions::security";
  }
  if (!options.secret.empty() && !options.secret_file.empty())
    return {Code::invalid_argument, Scope::process,
            "EngineOptions::secret and EngineOptions::secret_file are both set: set one of them"};
  if (!options.secret.empty() || !options.secret_file.empty()) {
    settings.secret = options.secret;
    settings.secret_file = options.secret_file;
    settings.secret_from =
        options.secret.empty() ? "EngineOptions::secret_file" : "EngineOptions::secret";
  }
  return settings.resolve_security();
}

}  // namespace

EngineContext::EngineContext(base::Options settings, std::shared_ptr<base::LogQueue> lines)
    : options(std::move(settings)),
      log(options.log_level, sink_to(lines)),
      log_queue(std::move(lines)) {}

Result<std::unique_ptr<EngineContext>> EngineContext::create(const EngineOptions& options) {
  auto settings = base::Options::from_environment();
  if (!settings.ok()) return settings.status();
  if (!options.socket_dir.empty()) settings->socket_dir = options.socket_dir;
  if (Status s = set_cpu_threads(options.cpu_threads, *settings); !s.ok()) return s;
  if (options.copy_ctas) settings->copy_ctas = options.copy_ctas;
  if (options.relay_gpus) settings->relay_gpus = *options.relay_gpus;
  if (options.calibrate) settings->calibrate = *options.calibrate;
  if (Status s = set_security(options, *settings); !s.ok()) return s;
  settings->transport = options.transport;
  if (Status s = transport::check_options(*settings); !s.ok()) return s;
  if (options.transfer_deadline > Duration::zero())
    settings->transfer_deadline = options.transfer_deadline;
  const auto lines =
      options.log == nullptr
          ? nullptr
          : std::make_shared<base::LogQueue>(std::make_unique<Callback>(options.log));
  std::unique_ptr<EngineContext> context(new EngineContext(*std::move(settings), lines));
  static std::atomic<bool> warned{false};  // once, because every Engine reads the same environment
  if (const std::string& warning = context->options.warning;
      !warning.empty() && !warned.exchange(true))
    context->log.write(base::Level::warning, warning);
  if (Status status = context->set_up(options); !status.ok()) return status;
  return context;
}

Status EngineContext::set_up_identity(const EngineOptions& asked) {
  if (asked.name.size() > control::kMaxEngineName)
    return {Code::invalid_argument, Scope::process,
            "EngineOptions::name has " + std::to_string(asked.name.size()) + " bytes, \"" +
                base::printable(std::string_view(asked.name).substr(0, 32)) + "...\": " +
                std::to_string(control::kMaxEngineName) + " at most, give a shorter one"};
  auto secret = base::read_secret(options);
  if (!secret.ok()) return secret.status();
  auto interfaces = transport::interfaces(options);
  if (!interfaces.ok()) return interfaces.status();
  const auto peer_timeout = transport::peer_timeout(options);
  if (!peer_timeout.ok()) return peer_timeout.status();
  identity = {.engine = asked.name.empty() ? "pid " + std::to_string(::getpid()) : asked.name,
              .incarnation = base::random_u64(),
              .socket_dir = options.socket_dir,
              .any_uid = asked.any_uid,
              .security = options.security.value_or(Security::loopback_only),
              .secret = *std::move(secret),
              .interfaces = *std::move(interfaces),
              .limits = {.silence = *peer_timeout}};
  if (identity.security == Security::encrypted) {
    auto tls = base::TlsContext::create(identity.secret);
    if (!tls.ok()) return tls.status();
    identity.tls = *std::move(tls);
  }
  return {};
}

Status EngineContext::set_up_gpus(bool use_gpu) {
  if (use_gpu) {
    auto found = cuda::Topology::create();
    // A driver that fails does not mean a machine without a GPU: the user's memory may be on one,
    // and a CPU would copy it.
    if (!found.ok() && found.status().code() != Code::unsupported) return found.status();
    if (found.ok())
      topology = *std::move(found);
    else
      no_gpu = found.status();
  } else {
    no_gpu = Status(Code::unsupported, Scope::process, "EngineOptions::use_gpu is false");
  }
  if (topology == nullptr && log.enabled(base::Level::info))
    log.write(base::Level::info, "no GPU: " + no_gpu.what());
  return {};
}

Status EngineContext::set_up(const EngineOptions& asked) {
  if (Status status = set_up_identity(asked); !status.ok()) return status;
  if (Status status = set_up_gpus(asked.use_gpu); !status.ok()) return status;
  registry = std::make_unique<memory::Registry>(identity.incarnation, topology.get());
  auto made = transport::create_all({.topology = topology.get(),
                                     .registry = registry.get(),
                                     .incarnation = identity.incarnation,
                                     .options = &options,
                                     .log = &log});
  if (!made.ok()) return made.status();
  transports = *std::move(made);
  auto thread = ProgressThread::create();
  if (!thread.ok()) return thread.status();
  progress = *std::move(thread);
  return {};
}

}  // namespace linkspan::engine
