// engine/engine_context.hpp - what all services of an Engine share: options, log, identity, GPUs,
// registry, transports and ProgressThread.
//
// Off the path of a byte.
// Threads: immutable after construction; its objects say which threads may call them.
// Invariants: transports end before the registry and the GPUs that they use.
#pragma once

#include <memory>

#include "base/log.hpp"
#include "base/log_queue.hpp"
#include "base/options.hpp"
#include "control/control_plane.hpp"
#include "cuda/topology.hpp"
#include "engine/progress/progress_thread.hpp"
#include "engine/registration/keys.hpp"
#include "linkspan/engine.hpp"
#include "memory/registry.hpp"

namespace linkspan::engine {

class EngineContext {
 public:
  static Result<std::unique_ptr<EngineContext>> create(const EngineOptions& options);
  EngineContext(const EngineContext&) = delete;
  EngineContext& operator=(const EngineContext&) = delete;
  ~EngineContext() = default;

  const base::Options options;
  const base::Log log;
  const std::shared_ptr<base::LogQueue> log_queue;  // also log's; null: lines go to stderr
  control::Identity identity;
  // Null: no_gpu says why. Also that of captured posts whose graphs outlive the Engine.
  std::shared_ptr<cuda::Topology> topology;
  Status no_gpu;
  std::unique_ptr<memory::Registry> registry;
  Transports transports;
  std::unique_ptr<ProgressThread> progress;

 private:
  EngineContext(base::Options settings, std::shared_ptr<base::LogQueue> lines);
  Status set_up(const EngineOptions& asked);
  Status set_up_identity(const EngineOptions& asked);
  Status set_up_gpus(bool use_gpu);
};

}  // namespace linkspan::engine
