// The Engine; linkspan/_engine.py adds what reads better in Python.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>
#include <string>

#include "linkspan/compat/ipc.hpp"
#include "python/core/core.hpp"

namespace linkspan::python {
namespace {

using namespace nb::literals;

/// Its end may wait for what is in flight.
class PyEngine {
 public:
  explicit PyEngine(Engine engine) : engine_(std::move(engine)) {}
  PyEngine(const PyEngine&) = delete;
  PyEngine& operator=(const PyEngine&) = delete;
  ~PyEngine() {
    const Released released;
    // Transfers that close() did not wait for are not waited for here.
    std::optional<InterruptCheck> at_once;
    if (interrupted_) at_once.emplace([] { return true; });
    engine_.reset();
  }
  void close(Duration timeout) {
    interrupted_ = true;
    const Status status = waiting([&] { return engine_->close(timeout); });
    interrupted_ = false;
    check(status);
  }
  Engine& operator*() { return *engine_; }
  Engine* operator->() { return &*engine_; }

 private:
  std::optional<Engine> engine_;
  bool interrupted_ = false;  // close() was, by a signal
};

std::string secret_of(nb::handle secret) {
  if (secret.is_none()) return {};
  if (!nb::isinstance<nb::bytes>(secret)) throw nb::type_error("secret: give bytes");
  const auto bytes = nb::borrow<nb::bytes>(secret);
  if (bytes.size() == 0) throw nb::value_error("secret: give 16 to 4096 bytes, or None");
  return {static_cast<const char*>(bytes.data()), bytes.size()};
}

ConnectOptions connect_options(double timeout, const std::string& expect, nb::handle secret) {
  return {.timeout = seconds(timeout, "timeout"), .expect = expect, .secret = secret_of(secret)};
}

Peer connect(PyEngine& engine, nb::handle where, double timeout, const std::string& expect,
             nb::handle secret) {
  const std::string address = path_of(where);
  const ConnectOptions options = connect_options(timeout, expect, secret);
  return take(waiting([&] { return engine->connect(address, options); }));
}

PyFuture connect_async(PyEngine& engine, nb::handle where, double timeout,
                       const std::string& expect, nb::handle secret) {
  const std::string address = path_of(where);
  const ConnectOptions options = connect_options(timeout, expect, secret);
  return {without_gil([&] { return engine->connect_async(address, options); })};
}

/// Returns the time-out of a wait; None: it has no end.
Duration limit_of(std::optional<double> timeout) {
  return timeout ? seconds(*timeout, "timeout") : Duration::max();
}

void* at(std::uintptr_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

/// kAct: compat::send_ipc_async or recv_ipc_async.
template <auto kAct>
nb::object exchange_ipc(PyEngine& engine, std::uint64_t conn_id, std::uintptr_t address,
                        std::uint64_t bytes, std::optional<double> deadline,
                        const nb::object& memory) {
  const Duration limit = deadline ? seconds(*deadline, "deadline") : Duration();
  auto transfer = without_gil([&] { return kAct(*engine, conn_id, at(address), bytes, limit); });
  return keep(take(std::move(transfer), conn_id), conn_id, memory);
}

std::optional<Security> security_of(const std::optional<std::string>& name) {
  if (!name || name->empty()) return std::nullopt;
  const auto security = parse_security(*name);
  if (!security)
    throw nb::value_error(
        ("security=\"" + *name + "\": give loopback_only, insecure, authenticated or encrypted")
            .c_str());
  return security;
}

RegionOptions region_options(bool peers_read, bool peers_write, bool exclusive, bool pin) {
  return {.peers = {.read = peers_read, .write = peers_write, .exclusive = exclusive}, .pin = pin};
}

nb::object outcomes_of(std::vector<Result<Transfer>> results,
                       const std::vector<RemoteRegion>& targets, const nb::object& memory) {
  nb::list outcomes;
  for (std::size_t i = 0; i < results.size(); ++i)
    outcomes.append(results[i].ok() ? keep(*std::move(results[i]), targets[i].peer(), memory)
                                    : exception_of(results[i].status(), targets[i].peer()));
  return outcomes;
}

nb::object write_to_all(PyEngine& engine, const PyRegion& local,
                        const std::vector<RemoteRegion>& targets, nb::handle shape,
                        const nb::kwargs& options) {
  const TransferOptions hints = transfer_options(options, &local);
  std::uint64_t there = local.region.bytes();
  for (const RemoteRegion& target : targets)
    if (target.bytes() != there) there = target.bytes();
  const ParsedShape parsed = shape_of(shape, local.region.bytes(), there);
  auto results = submitting(
      hints, [&] { return engine->write_to_all(local.region, targets, view_of(parsed), hints); });
  return outcomes_of(std::move(results), targets, keepalive_of(parsed));
}

nb::tuple lookup(PyEngine& engine, const Descriptor& descriptor, double timeout) {
  const Duration limit = seconds(timeout, "timeout");
  LookupResult found = take(waiting([&] { return engine->lookup(descriptor, limit); }));
  if (descriptor.version != 0) return nb::make_tuple(found.peer, std::move(found.regions));
  return nb::make_tuple(found.peer, found.regions.regions.front());
}

std::vector<Region> regions_of(const std::vector<PyRegion>& owned) {
  std::vector<Region> regions;
  regions.reserve(owned.size());
  for (const PyRegion& each : owned) regions.push_back(each.region);
  return regions;
}

}  // namespace

void bind_engine(nb::module_& module) {
  nb::class_<PyEngine>(module, "Engine", nb::is_weak_referenceable())
      .def(
          "__init__",
          [](PyEngine* self, const std::string& name, nb::handle socket_dir, bool any_uid,
             bool use_gpu, unsigned cpu_threads, std::optional<unsigned> copy_ctas,
             std::optional<unsigned> relay_gpus, std::optional<bool> calibrate,
             nb::handle secret_file, nb::handle secret, const std::optional<std::string>& security,
             const std::map<std::string, std::string>& transport,
             std::optional<double> transfer_deadline) {
            EngineOptions options{.name = name,
                                  .socket_dir = path_of(socket_dir),
                                  .any_uid = any_uid,
                                  .use_gpu = use_gpu,
                                  .cpu_threads = cpu_threads,
                                  .copy_ctas = copy_ctas,
                                  .relay_gpus = relay_gpus,
                                  .calibrate = calibrate,
                                  .security = security_of(security),
                                  .secret_file = path_of(secret_file),
                                  .secret = secret_of(secret),
                                  .transport = transport,
                                  .transfer_deadline = {},
                                  .log = {}};
            if (transfer_deadline)
              options.transfer_deadline = seconds(*transfer_deadline, "transfer_deadline");
            new (self) PyEngine(take(without_gil([&] { return Engine::open(options); })));
          },
          // _engine.py has the defaults.
          "name"_a, nb::kw_only(), "socket_dir"_a, "any_uid"_a, "use_gpu"_a, "cpu_threads"_a,
          "copy_ctas"_a.none(), "relay_gpus"_a.none(), "calibrate"_a.none(), "secret_file"_a,
          "secret"_a.none(), "security"_a.none(), "transport"_a, "transfer_deadline"_a.none())
      .def("_register_memory",
           [](PyEngine& self, std::uintptr_t address, std::uint64_t bytes, bool peers_read,
              bool peers_write, bool exclusive, bool pin, int device, bool read_only,
              nb::object memory) {
             const RegionOptions options = region_options(peers_read, peers_write, exclusive, pin);
             auto region =
                 without_gil([&] { return self->register_memory(at(address), bytes, options); });
             return PyRegion{take(std::move(region)), std::move(memory), device, read_only};
           })
      .def("_allocate_shared",
           [](PyEngine& self, std::uint64_t bytes, bool peers_read, bool peers_write,
              bool exclusive, bool pin) {
             const RegionOptions options = region_options(peers_read, peers_write, exclusive, pin);
             auto region = without_gil([&] { return self->allocate_shared(bytes, options); });
             return PyRegion{.region = take(std::move(region)), .memory = {}};
           })
      .def("_deregister",
           [](PyEngine& self, const PyRegion& region, double timeout) {
             const Duration limit = seconds(timeout, "timeout");
             check(waiting([&] { return self->deregister(region.region, limit); }));
           })
      .def("_invalidate",
           [](PyEngine& self, const PyRegion& region, double timeout) {
             const Duration limit = seconds(timeout, "timeout");
             check(waiting([&] { return self->invalidate(region.region, limit); }));
           })
      .def("_deregister_async",
           [](PyEngine& self, const PyRegion& region, double timeout, nb::object when_ok) {
             const Duration limit = seconds(timeout, "timeout");
             return PyFuture{
                 without_gil([&] { return self->deregister_async(region.region, limit); }), 0,
                 std::move(when_ok)};
           })
      .def("_invalidate_async",
           [](PyEngine& self, const PyRegion& region, double timeout, nb::object when_ok) {
             const Duration limit = seconds(timeout, "timeout");
             return PyFuture{
                 without_gil([&] { return self->invalidate_async(region.region, limit); }), 0,
                 std::move(when_ok)};
           })
      .def("_publish", [](PyEngine& self, const std::string& name,
                          const PyRegion& region) { check(self->publish(name, region.region)); })
      .def("_publish_set",
           [](PyEngine& self, const std::string& name, const std::vector<PyRegion>& regions) {
             return take(self->publish(name, regions_of(regions)));
           })
      .def(
          "describe",
          [](PyEngine& self, const std::string& name) { return take(self->describe(name)); },
          "name"_a,
          "Describes what publish() gave this name, for lookup() in another process. Changes "
          "nothing. NotFoundError: nothing has the name. InvalidArgumentError: the Engine does not "
          "listen.")
      .def("lookup", &lookup, "descriptor"_a, "timeout"_a = 10.0,
           nb::sig("def lookup(self, descriptor: Descriptor, timeout: float = 10.0) -> "
                   "tuple[Peer, RemoteRegion | RegionSet]"),
           "Connects to the Engine of the descriptor and imports its region, or all of its set as "
           "the set is now. A peer of an earlier lookup() that is still up is used again.")
      .def(
          "listen",
          [](PyEngine& self, nb::handle where) {
            const std::string address = path_of(where);
            check(without_gil([&] { return self->listen(address); }));
            return text_of(self->address());
          },
          "address"_a = "",
          nb::sig("def listen(self, address: str | bytes | os.PathLike = '') -> str"),
          "\"unix:/path\", or a name below socket_dir; empty: a name is made up. "
          "\"tcp:host:port\": port 0 is any that is free; beyond loopback PermissionDeniedError, "
          "unless `insecure`. A Unix socket and a port may be listened at together. The address, "
          "for "
          "connect().")
      .def_prop_ro(
          "address", [](PyEngine& self) { return text_of(self->address()); },
          nb::sig("def address(self) -> str"), "For connect(). \"\": not listening.")
      .def_prop_ro(
          "addresses", [](PyEngine& self) { return text_of(self->addresses()); },
          nb::sig("def addresses(self) -> str"),
          "All addresses with commas between them, for connect() in any process of any host. Each "
          "ends with '#' and digits that stand for this Engine.")
      .def(
          "peers", [](PyEngine& self) { return self->peers(); },
          "Returns all connected peers, those that connected to this Engine too.")
      .def(
          "find_peer",
          [](PyEngine& self, const std::string& name) { return take(self->find_peer(name)); },
          "name"_a,
          "Returns the connected peer whose Engine has this name, the latest of several. "
          "NotFoundError.")
      .def(
          "connect", &connect, "address"_a, "timeout"_a = 10.0, "expect"_a = "",
          "secret"_a.none() = nb::none(),
          nb::sig("def connect(self, address: str | bytes | os.PathLike, timeout: float = 10.0, "
                  "expect: str = '', secret: bytes | None = None) -> Peer"),
          "Until both sides are ready; where nobody listens yet, until somebody does. Of several "
          "addresses of one Engine (`addresses`) it takes the Unix socket on the same host, else "
          "TCP. "
          "A peer over TCP is a remote one, also on this host: only transports that leave the host "
          "reach it. expect: the name that its Engine has to have. secret: that Engine's, of 16 to "
          "4096 bytes, for this connection by TCP in the place of our own; it goes beyond loopback "
          "and is \"authenticated\", or \"encrypted\" if our Engine is. UnreachableError, "
          "TimedOutError, PermissionDeniedError: another user's, another name or secret, or beyond "
          "loopback without a secret. InvalidArgumentError: a secret of another length, or of an "
          "`insecure` Engine.")
      .def("connect_async", &connect_async, "address"_a, "timeout"_a = 10.0, "expect"_a = "",
           "secret"_a.none() = nb::none(),
           nb::sig("def connect_async(self, address: str | bytes | os.PathLike, timeout: float = "
                   "10.0, expect: str = '', secret: bytes | None = None) -> Future"),
           "connect() that returns at once; `await` or wait() returns the Peer. NoResourceError: "
           "1024 such calls are outstanding.")
      .def(
          "accept",
          [](PyEngine& self, std::optional<double> timeout) {
            const Duration limit = limit_of(timeout);
            return take(waiting([&] { return self->accept(limit); }));
          },
          "timeout"_a = 10.0, nb::sig("def accept(self, timeout: float | None = 10.0) -> Peer"),
          "The next peer that has connected to us. TimedOutError: none came.")
      .def("_notifications",
           [](PyEngine& self, std::optional<double> timeout) {
             const Duration limit = limit_of(timeout);
             const auto came = waiting([&] { return self->notifications(limit); });
             nb::list list;
             for (const Notification& each : came)
               list.append(
                   nb::make_tuple(each.peer, nb::bytes(each.bytes.data(), each.bytes.size())));
             return list;
           })
      .def("write_to_all", &write_to_all, "local"_a, "targets"_a, "shape"_a = nb::none(),
           "options"_a,
           nb::sig("def write_to_all(self, local: Region, targets: typing.Sequence[RemoteRegion], "
                   "shape: Shape | None = None, **options: Unpack[TransferOptions]) -> "
                   "list[Transfer | Error]"),
           "One source to several targets: Peer.write() of the same shape to each. In its place "
           "each "
           "target has its Transfer, or the exception with which it was refused.")
      .def("_send_ipc", &exchange_ipc<&compat::send_ipc_async>,
           nb::sig("def _send_ipc(self, conn_id: int, address: int, bytes: int, deadline: float | "
                   "None, memory: object, /) -> Transfer"))
      .def("_recv_ipc", &exchange_ipc<&compat::recv_ipc_async>,
           nb::sig("def _recv_ipc(self, conn_id: int, address: int, bytes: int, deadline: float | "
                   "None, memory: object, /) -> Transfer"))
      .def(
          "progress", [](PyEngine& self) { return without_gil([&] { return self->progress(); }); },
          "Does what is to be done now; how many transfers became quiet. Nobody has to call it.")
      .def(
          "dump", [](PyEngine& self) { return text_of(without_gil([&] { return self->dump(); })); },
          nb::sig("def dump(self) -> str"), "What is outstanding, for people.")
      .def(
          "metrics",
          [](PyEngine& self) { return text_of(without_gil([&] { return self->metrics(); })); },
          nb::sig("def metrics(self) -> str"),
          "What was counted since it was opened, in the text format of Prometheus.")
      .def("_close", [](PyEngine& self, double timeout) {
        const Duration limit = seconds(timeout, "timeout");
        self.close(limit);
      });
}

}  // namespace linkspan::python
