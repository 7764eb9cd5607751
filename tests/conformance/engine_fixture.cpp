#include "tests/conformance/engine_fixture.hpp"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <thread>
#include <utility>

#include "linkspan/compat/ipc.hpp"
#include "tests/support/sanitizer_order.hpp"

namespace linkspan::test {
namespace {

/// Removed when the process that made it ends in order.
class Folder {
 public:
  Folder() {
    std::string pattern = "/tmp/linkspan-test-XXXXXX";
    if (::mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

std::string socket_folder() {
  constexpr const char* kVariable = "LINKSPAN_TEST_SOCKETS";  // a child uses its parent's
  if (const char* set = std::getenv(kVariable)) return set;
  static const Folder folder;
  ::setenv(kVariable, folder.path().c_str(), 1);
  return folder.path();
}

/// Simulates a container that lacks the capability.
void forbid_cross_process() {
  constexpr std::uint32_t kRefuse = SECCOMP_RET_ERRNO | EPERM;
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, kRefuse),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{.len = std::size(program), .filter = program};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
    throw std::runtime_error("no seccomp filter");
}

// ---- the child -------------------------------------------------------------------------------

/// Orders copies for the peer and accesses of this process for the sanitizer. The peer orders them
/// really, but no sanitizer sees that. So the Engine's lock is taken before and after.
class Ordered {
 public:
  explicit Ordered(Engine* engine) : engine_(engine) { take_turn(); }
  ~Ordered() { take_turn(); }
  Ordered(const Ordered&) = delete;
  Ordered& operator=(const Ordered&) = delete;

 private:
  void take_turn() {
    if (engine_ != nullptr) order_accesses(*engine_);
  }
  Engine* const engine_;
};

class EngineServer {
 public:
  Result<Answer> handle(const Json& call) {
    const auto what = call.at("do").get<std::string>();
    if (what == "open") {
      if (std::getenv("LINKSPAN_TEST_NO_CROSS_PROCESS") != nullptr) forbid_cross_process();
      if (std::getenv("LINKSPAN_TEST_NO_PROC") != nullptr &&
          ::mount("none", "/proc", "tmpfs", 0, nullptr) != 0)
        throw std::runtime_error("/proc stays");
      EngineOptions options = engine_options("far");
      if (const char* file = std::getenv("LINKSPAN_TEST_STDERR")) {
        const base::Fd log(::open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
        if (::dup2(log.get(), STDERR_FILENO) < 0) throw std::runtime_error("no stderr");
        options.log = {};
      }
      engine_ = std::make_unique<Engine>(take(Engine::open(options)));
      const char* at = std::getenv("LINKSPAN_TEST_ADDRESS");
      must(engine_->listen(at != nullptr ? at : ""));
      return Answer{engine_->address(), {}};
    }
    if (what == "add") {
      const Json& may = call.at("may");
      const auto name = call.at("name").get<std::string>();
      const MemoryOptions options{.kind = call.at("kind").get<std::string>(),
                                  .bytes = call.at("bytes").get<std::uint64_t>(),
                                  .peers = {may[0], may[1], may[2]},
                                  .guard = call.at("guard").get<std::uint64_t>()};
      const bool loose = call.at("loose").get<bool>();
      Held held = loose ? Held::loose(*engine_, options) : Held::make(*engine_, options);
      if (!loose) must(engine_->publish(name, held.region));
      held_[name] = std::move(held);
      return Answer{};
    }
    const Ordered ordered(engine_.get());
    if (what == "fill") return held(call).fill(call.at("seed").get<std::uint64_t>()), Answer{};
    if (what == "fill part") {
      held(call).fill(call.at("seed").get<std::uint64_t>(), {call.at("offset"), call.at("bytes")});
      return Answer{};
    }
    if (what == "difference") {
      std::vector<Expected> expected;
      for (const Json& e : call.at("expected")) expected.push_back({e[0], e[1], e[2], e[3]});
      return Answer{held(call).difference(call.at("seed").get<std::uint64_t>(), expected), {}};
    }
    if (what == "deregister" || what == "invalidate") {
      const Region& region = held(call).region;
      const Duration timeout(call.at("timeout").get<std::int64_t>());
      const Status status = what == "deregister" ? engine_->deregister(region, timeout)
                                                 : engine_->invalidate(region, timeout);
      if (!status.ok()) return status;
      return Answer{};
    }
    if (what == "ipc") {
      const void* data = held(call).region.data();
      const cuda::PointerFacts facts = take(topology()->query(data));
      const cuda::Device& device = *take(topology()->activate(facts.gpu));
      const std::uint64_t offset = reinterpret_cast<std::uintptr_t>(data) - facts.base;
      return Answer{{take(cuda::export_ipc(device, facts.base)), offset}, {}};
    }
    if (what == "notify") return notify(call.at("texts").get<std::vector<std::string>>());
    if (what == "notifications") return notifications(call.at("count").get<std::size_t>());
    if (what == "connect") {
      peer_ = take(engine_->connect(call.at("address").get<std::string>()));
      return Answer{};
    }
    if (what == "accept") {
      peer_ = take(engine_->accept(10s));
      return Answer{};
    }
    if (what == "close peer") {
      const Status status = peer_.close(Duration(call.at("timeout").get<std::int64_t>()));
      if (!status.ok()) return status;
      return Answer{};
    }
    if (what == "explain") {
      auto way = peer_.explain(Op::write, held(call).region, remote(call), 1,
                               call.at("bytes").get<std::uint64_t>());
      if (!way.ok()) return way.status();
      std::string reasons;
      for (const PathRefusal& each : way->refused) reasons += each.path + ": " + each.reason + "; ";
      return Answer{{way->path, reasons}, {}};
    }
    if (what == "start") {
      const auto count = call.at("count").get<std::uint64_t>();
      TransferOptions options;
      options.require = call.at("require").get<std::string>();
      for (std::uint64_t i = 0; i < count; ++i) {
        const Block part = part_of(held(call).region.bytes(), i, count);
        started_.push_back(
            take(peer_.write(held(call).region, remote(call), std::span(&part, 1), options)));
      }
      return Answer{};
    }
    if (what == "let go") {
      remotes_.clear();
      return Answer{};
    }
    if (what == "ends") {
      Json ends = Json::array();
      for (const Transfer& each : started_) ends.push_back(name_of(each.wait(10s).code()));
      started_.clear();
      return Answer{ends, {}};
    }
    if (what == "churn") {
      const Json& b = call.at("block");
      churned_.push_back({call.at("op"),
                          &held(call).region,
                          &remote(call),
                          {b[0], b[1], b[2]},
                          call.at("require"),
                          Transfer()});
      return Answer{};
    }
    if (what == "wrong") return Answer{wrong_, {}};
    if (what == "rest") {
      idle();  // each was submitted once at least
      for (const Churned& each : churned_)
        if (each.transfer.id() != 0) note(each.transfer.wait(10s));
      churned_.clear();
      return Answer{std::exchange(wrong_, {}), {}};
    }
    if (what == "post") return post(call);
    if (what == "end") {
      const Transfer& posted = posted_.at(call.at("number").get<std::size_t>());
      const Status end = posted.wait(20s);
      return Answer{{name_of(end.code()), end.what(), posted.bytes()}, {}};
    }
    if (what == "cancel") {
      const Status asked = posted_.at(call.at("number").get<std::size_t>()).cancel();
      return Answer{name_of(asked.code()), {}};
    }
    if (what == "dump") return Answer{engine_->dump(), {}};
    if (what == "fork") {
      const pid_t child = ::fork();
      if (child != 0) return Answer{child, {}};
      ::alarm(30);  // where the test does not end it
      for (;;) ::pause();
    }
    return Status(Code::unsupported, Scope::request, what);
  }

  /// Runs between calls. Returns true if there is more to do at once.
  bool idle() {
    for (Churned& each : churned_) {
      if (!each.transfer.done()) continue;
      if (each.transfer.id() != 0) note(each.transfer.status());
      const auto block = std::span(&each.block, 1);
      TransferOptions options;
      options.require = each.require;
      auto next = each.op == Op::write ? peer_.write(*each.local, *each.remote, block, options)
                                       : peer_.read(*each.local, *each.remote, block, options);
      note(next.status());
      each.transfer = next.ok() ? *next : Transfer();
    }
    return !churned_.empty();
  }

 private:
  struct Churned {
    Op op;
    const Region* local;
    const RemoteRegion* remote;
    Block block;
    std::string require;
    Transfer transfer;
  };
  void note(const Status& status) {
    if (!status.ok() && wrong_.empty()) wrong_ = status.to_string();
  }
  Held& held(const Json& call) { return held_.at(call.at("name").get<std::string>()); }
  const RemoteRegion& remote(const Json& call) {
    const auto name = call.at("remote").get<std::string>();
    if (!remotes_.contains(name)) remotes_[name] = take(peer_.lookup(name));
    return remotes_[name];
  }
  Result<Answer> post(const Json& call) {
    const bool sends = call.at("sends").get<bool>();
    const auto bytes = call.at("bytes").get<std::uint64_t>();
    void* const data = held(call).at(call.at("offset").get<std::uint64_t>());
    const Duration deadline(call.at("deadline").get<std::int64_t>());
    const TransferOptions options{.deadline = deadline};
    auto conn_id = call.at("conn_id").get<std::uint64_t>();
    if (conn_id == 0) conn_id = peer_.id();
    auto made = [&]() -> Result<Transfer> {
      if (call.at("tag").is_null())
        return sends ? compat::send_ipc_async(*engine_, conn_id, data, bytes, deadline)
                     : compat::recv_ipc_async(*engine_, conn_id, data, bytes, deadline);
      const auto tag = call.at("tag").get<std::uint64_t>();
      return sends ? peer_.send(tag, data, bytes, options) : peer_.recv(tag, data, bytes, options);
    }();
    if (!made.ok()) return made.status();
    posted_.push_back(*made);
    return Answer{posted_.size() - 1, {}};
  }
  Result<Answer> notify(const std::vector<std::string>& texts) {
    const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
    for (const std::string& each : texts) {
      Status sent = peer_.notify(std::as_bytes(std::span(each)));
      while (sent.code() == Code::no_resource && !limit.passed())
        sent = peer_.notify(std::as_bytes(std::span(each)));
      if (!sent.ok()) return sent;
    }
    return Answer{};
  }
  Answer notifications(std::size_t count) {
    Json texts = Json::array();
    const auto limit = base::Deadline::after(base::Clock::steady(), 10s);
    do {
      engine_->progress();
      for (const Notification& each : engine_->notifications()) {
        const auto* text = reinterpret_cast<const char*>(each.bytes.data());
        texts.push_back(std::string(text, each.bytes.size()));
      }
    } while (texts.size() < count && !limit.passed());
    return {texts, {}};
  }

  std::map<std::string, Held> held_;  // outlives the Engine
  std::unique_ptr<Engine> engine_;
  Peer peer_;
  std::map<std::string, RemoteRegion> remotes_;
  std::vector<Transfer> started_, posted_;
  std::vector<Churned> churned_;
  std::string wrong_;  // the first that was not ok of them
};

void engine_main(Line& line) {
  EngineServer server;
  line.serve([&](const Json& call, const std::vector<base::Fd>&) { return server.handle(call); },
             [&] { return server.idle(); });
}
const bool kEngineRegistered = add_helper(kEngineHelper, engine_main);

}  // namespace

const Kind& kind_of(const std::string& name) {
  for (const Kind& kind : kKinds)
    if (kind.name == name) return kind;
  for (const Kind& kind : kUnshared)
    if (kind.name == name) return kind;
  for (const Kind& kind : kMadeKinds)
    if (kind.name == name) return kind;
  throw std::invalid_argument(name);
}

Status kinds_here(std::initializer_list<Kind> kinds) {
  for (const Kind& kind : kinds) {
    if (kind.kind == MemoryKind::host || kind.kind == MemoryKind::shared) continue;
    if (Status status = need_gpus(kind.gpu + 1); !status.ok()) return status;
  }
  return {};
}

Held Held::make(Engine& engine, const MemoryOptions& options) {
  Held held = loose(engine, options);
  const RegionOptions registered{.peers = options.peers};
  held.region = take(engine.register_memory(held.buffer->data(), options.bytes, registered));
  return held;
}

Held Held::loose(Engine& engine, const MemoryOptions& options) {
  const Kind& kind = kind_of(options.kind);
  const RegionOptions registered{.peers = options.peers};
  Held held;
  if (kind.kind == MemoryKind::shared) {
    held.whole = take(engine.allocate_shared(options.bytes + 2 * options.guard, registered));
    held.buffer = Buffer::over(held.whole.data(), options.bytes, options.guard);
  } else {
    held.buffer =
        take(Buffer::create(kind.kind, options.bytes, kind.gpu, options.guard, kind.make));
  }
  return held;
}

EngineOptions engine_options(std::string name) {
  EngineOptions options;
  options.name = std::move(name);
  options.socket_dir = socket_folder();
  options.cpu_threads = 2;
  options.log = [](LogLevel, std::string_view) {};
  return options;
}

FarEngine::FarEngine(const std::vector<std::string>& environment, const std::string& helper) {
  socket_folder();
  child_ = take(Child::spawn(helper, environment));
  address_ = call({{"do", "open"}});
}

namespace {
Json adding(const std::string& name, const MemoryOptions& o, bool loose) {
  return {{"do", "add"},
          {"loose", loose},
          {"name", name},
          {"kind", o.kind},
          {"bytes", o.bytes},
          {"guard", o.guard},
          {"may", {o.peers.read, o.peers.write, o.peers.exclusive}}};
}
}  // namespace

void FarEngine::add(const std::string& name, const MemoryOptions& o) {
  call(adding(name, o, false));
}

void FarEngine::add_loose(const std::string& name, const MemoryOptions& o) {
  call(adding(name, o, true));
}

void FarEngine::accept() { call({{"do", "accept"}}); }

Status FarEngine::close_peer(Duration timeout) {
  return child_->line().call({{"do", "close peer"}, {"timeout", timeout.count()}}).status();
}

Result<std::size_t> FarEngine::post(const Message& m) {
  Json request = {{"do", "post"},        {"sends", m.sends}, {"name", m.name},
                  {"offset", m.offset},  {"bytes", m.bytes}, {"deadline", m.deadline.count()},
                  {"conn_id", m.conn_id}};
  request["tag"] = m.tag ? Json(*m.tag) : Json();
  auto answer = child_->line().call(request);
  if (!answer.ok()) return answer.status();
  return answer->value.get<std::size_t>();
}

FarEnd FarEngine::end(std::size_t number) {
  const Json end = call({{"do", "end"}, {"number", number}});
  return {end[0], end[1], end[2]};
}

std::string FarEngine::cancel(std::size_t number) {
  return call({{"do", "cancel"}, {"number", number}});
}

pid_t FarEngine::fork() { return call({{"do", "fork"}}); }

std::string FarEngine::dump() { return call({{"do", "dump"}}); }

void FarEngine::fill(const std::string& name, std::uint64_t seed) {
  call({{"do", "fill"}, {"name", name}, {"seed", seed}});
}

void FarEngine::fill(const std::string& name, std::uint64_t seed, const Extent& part) {
  call({{"do", "fill part"},
        {"name", name},
        {"seed", seed},
        {"offset", part.offset},
        {"bytes", part.bytes}});
}

std::string FarEngine::difference(const std::string& name, std::uint64_t seed,
                                  const std::vector<Expected>& expected) {
  Json list = Json::array();
  for (const Expected& e : expected) list.push_back({e.offset, e.seed, e.from, e.bytes});
  return call({{"do", "difference"}, {"name", name}, {"seed", seed}, {"expected", list}});
}

Status FarEngine::deregister(const std::string& name, Duration timeout) {
  const Json request = {{"do", "deregister"}, {"name", name}, {"timeout", timeout.count()}};
  return child_->line().call(request).status();
}

Status FarEngine::invalidate(const std::string& name, Duration timeout) {
  const Json request = {{"do", "invalidate"}, {"name", name}, {"timeout", timeout.count()}};
  return child_->line().call(request).status();
}

std::pair<cuda::IpcHandle, std::uint64_t> FarEngine::ipc(const std::string& name) {
  const Json answer = call({{"do", "ipc"}, {"name", name}});
  return {answer[0], answer[1]};
}

std::vector<std::string> FarEngine::notifications(std::size_t count) {
  return call({{"do", "notifications"}, {"count", count}});
}

void FarEngine::notify(const std::vector<std::string>& texts) {
  call({{"do", "notify"}, {"texts", texts}});
}

void FarEngine::connect(const std::string& address) {
  call({{"do", "connect"}, {"address", address}});
}

Result<std::string> FarEngine::explain(const std::string& local, const std::string& remote,
                                       std::uint64_t bytes) {
  auto answer = child_->line().call(
      {{"do", "explain"}, {"name", local}, {"remote", remote}, {"bytes", bytes}});
  if (!answer.ok()) return answer.status();
  return answer->value[0].get<std::string>();
}

std::string FarEngine::why_no_better(const std::string& local, const std::string& remote,
                                     std::uint64_t bytes) {
  return call({{"do", "explain"}, {"name", local}, {"remote", remote}, {"bytes", bytes}})[1];
}

void FarEngine::start(const std::string& local, const std::string& remote, std::uint64_t count,
                      const std::string& require) {
  call({{"do", "start"},
        {"name", local},
        {"remote", remote},
        {"count", count},
        {"require", require}});
}

void FarEngine::let_go() { call({{"do", "let go"}}); }

std::vector<std::string> FarEngine::ends() { return call({{"do", "ends"}}); }

void FarEngine::churn(Op op, const std::string& local, const std::string& remote, const Block& b,
                      const std::string& require) {
  call({{"do", "churn"},
        {"op", op},
        {"name", local},
        {"remote", remote},
        {"block", {b.local_offset, b.remote_offset, b.bytes}},
        {"require", require}});
}

std::string FarEngine::wrong() { return call({{"do", "wrong"}}); }

std::string FarEngine::rest() { return call({{"do", "rest"}}); }

Status finished(const Result<Transfer>& transfer) {
  return transfer.ok() ? transfer->wait(30s) : transfer.status();
}

Block part_of(std::uint64_t bytes, std::uint64_t index, std::uint64_t count) {
  const std::uint64_t each = bytes / count;
  return {index * each, index * each, index + 1 == count ? bytes - index * each : each};
}

bool is_down(const Peer& peer, base::Deadline deadline) {
  while (peer.state() == PeerState::up && !deadline.passed()) std::this_thread::yield();
  return peer.state() != PeerState::up;
}

}  // namespace linkspan::test
