#include "tools/linkspan/pair/two_processes.hpp"

#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "base/options.hpp"
#include "tools/linkspan/pair/child_process.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr Duration kChildStarts = 20s;
constexpr Duration kChildAllocates = 60s;

/// A folder for one socket. Both can be removed once the two processes are connected.
class SocketFolder {
 public:
  static Result<SocketFolder> create() {
    std::string path = "/tmp/linkspan-tool-XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) return base::Fd::from("mkdtemp(/tmp)", -1).status();
    return SocketFolder(std::move(path));
  }
  SocketFolder(SocketFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  SocketFolder& operator=(SocketFolder&&) = delete;
  SocketFolder(const SocketFolder&) = delete;
  SocketFolder& operator=(const SocketFolder&) = delete;
  ~SocketFolder() {
    if (path_.empty()) return;
    ::unlink(socket().c_str());
    ::rmdir(path_.c_str());
  }
  std::string socket() const { return path_ + "/far-end.sock"; }

 private:
  explicit SocketFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;  // empty: moved from
};

}  // namespace

Result<std::unique_ptr<TwoProcesses>> TwoProcesses::start(const Gpus& gpus,
                                                          std::optional<unsigned> relay_gpus) {
  std::unique_ptr<TwoProcesses> both(new TwoProcesses(gpus));
  if (Status s = both->connect(relay_gpus); !s.ok()) return s;
  return both;
}

std::unique_ptr<TwoProcesses> TwoProcesses::with(const Gpus& gpus, Engine engine, Peer peer,
                                                 std::unique_ptr<RemoteTarget> remote_target) {
  std::unique_ptr<TwoProcesses> both(new TwoProcesses(gpus));
  both->remote_target_ = std::move(remote_target);
  both->engine_.emplace(std::move(engine));
  both->peer_ = std::move(peer);
  return both;
}

Status TwoProcesses::connect(std::optional<unsigned> relay_gpus) {
  auto options = base::Options::from_environment();
  if (!options.ok()) return options.status();
  auto child = ChildProcess::spawn(kHelperVerb, kChildStarts);
  if (!child.ok()) return child.status();
  const pid_t pid = (*child)->pid();
  remote_target_ = *std::move(child);
  auto folder = SocketFolder::create();
  if (!folder.ok()) return folder.status();
  const std::string address = "unix:" + folder->socket();
  if (auto open = remote_target_->call("open " + address, kChildStarts); !open.ok())
    return open.status();

  auto engine = Engine::open({.name = "near end", .relay_gpus = relay_gpus});
  if (!engine.ok()) return engine.status();
  engine_.emplace(*std::move(engine));
  auto peer = engine_->connect(address, kChildStarts);
  if (!peer.ok()) return peer.status();
  peer_ = *std::move(peer);
  reference_copies_.emplace(gpus_, local_, pid, options->cpu_threads);
  return {};
}

/// Memory that is not quiet may still be written to, so it stays allocated until the process ends.
TwoProcesses::~TwoProcesses() {
  reference_copies_.reset();
  remote_.clear();
  if (!engine_ || engine_->close(3s).ok()) return;
  for (auto& [name, memory] : local_) (void)memory.release();
}

Status TwoProcesses::add_local(Place place, std::uint64_t bytes) {
  auto memory = Memory::create(*engine_, gpus_, place, bytes);
  if (!memory.ok()) return memory.status();
  // Unwritten pages all read as one page of zeros, faster than memory.
  if (place.kind == MemoryKind::host || place.kind == MemoryKind::shared)
    if (Status s = (*memory)->fill(0, bytes, 0, 0); !s.ok()) return s;
  local_[place.name()] = *std::move(memory);
  return {};
}

Status TwoProcesses::add_remote(Place place, std::uint64_t bytes) {
  const std::string name = place.name();
  auto answer =
      remote_target_->call("memory " + name + ' ' + std::to_string(bytes), kChildAllocates);
  if (!answer.ok()) return answer.status();
  auto memory = ExportedMemory::decode(*answer);
  if (!memory.ok()) return memory.status();
  auto region = peer_.lookup(name);
  if (!region.ok()) return region.status();
  remote_[name] = {.place = place, .memory = *memory, .region = *std::move(region)};
  return {};
}

Pair TwoProcesses::pair(Op op, Place from, Place to) {
  const bool write = op == Op::write;
  return {.op = op,
          .local = *local_.at((write ? from : to).name()),
          .remote = remote_.at((write ? to : from).name())};
}

}  // namespace linkspan::tool
