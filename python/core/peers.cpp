// Peers: lookups, submissions, messages.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "python/core/core.hpp"

namespace linkspan::python {
namespace {

using namespace nb::literals;

#define LINKSPAN_OPTIONS "**options: Unpack[TransferOptions]"

/// Calls `call` with the limit, without the GIL. Raises what it answers.
template <class Call>
auto look_up(const Peer& peer, double timeout, const Call& call) {
  const Duration limit = seconds(timeout, "timeout");
  return take(waiting([&] { return call(limit); }), peer.id());
}

/// Memory that needs no registration: (address, bytes, device, what holds it).
struct Loose {
  std::uintptr_t address = 0;
  std::uint64_t bytes = 0;
  PyRegion stands_for;  // its device, and what holds it
};

Loose loose(nb::handle memory, bool is_written) {
  const nb::object whole =
      nb::module_::import_("linkspan._memory").attr("whole")(memory, is_written);
  return {nb::cast<std::uintptr_t>(whole[0]),
          nb::cast<std::uint64_t>(whole[1]),
          {.region = {}, .memory = whole[4], .device = nb::cast<int>(whole[2])}};
}

template <bool kSends>
nb::object exchange(const Peer& peer, std::uint64_t tag, nb::handle memory,
                    const nb::kwargs& options) {
  const Loose of = loose(memory, !kSends);
  const TransferOptions hints = transfer_options(options, &of.stands_for);
  auto* data = reinterpret_cast<void*>(of.address);  // NOLINT(performance-no-int-to-ptr)
  auto transfer = [&] {
    const Released released;
    return kSends ? peer.send(tag, data, of.bytes, hints) : peer.recv(tag, data, of.bytes, hints);
  }();
  return keep(take(std::move(transfer), peer.id()), peer.id(), of.stands_for.memory);
}

std::string words_of(const Explanation& why) {
  std::string text = (why.path.empty() ? "no path" : why.path) + ", executed " +
                     (why.executor == "both" ? "by both sides" : why.executor) + ", ";
  if (why.expected_gbps > 0) {
    std::string gbps = std::to_string(why.expected_gbps);
    text += gbps.substr(0, gbps.find('.') + 2) + " GB/s expected";
  } else {
    text += "of unknown rate";
  }
  text += "\n  because " + why.reason;
  for (const PathRefusal& each : why.refused) text += "\n  not " + each.path + ": " + each.reason;
  return text;
}

}  // namespace

void bind_peers(nb::module_& module) {
  nb::class_<PathRefusal>(module, "PathRefusal")
      .def_ro("path", &PathRefusal::path)
      .def_ro("reason", &PathRefusal::reason)
      .def("__repr__",
           [](const PathRefusal& self) { return "not " + self.path + ": " + self.reason; });
  nb::class_<Explanation>(module, "Explanation",
                          "What a transfer takes, and why nothing better; print it.")
      .def_ro("path", &Explanation::path, "\"cuda_ipc+copy_engine\": mapping, then copier.")
      .def_ro("executor", &Explanation::executor, "\"here\", \"peer\" or \"both\"")
      .def_ro("reason", &Explanation::reason)
      .def_ro("expected_gbps", &Explanation::expected_gbps, "1e9 bytes a second; 0: unknown.")
      .def_ro("refused", &Explanation::refused, "Better ways first.")
      .def("__str__", &words_of)
      .def("__repr__", [](const Explanation& self) { return "<Explanation " + self.path + ">"; });

  nb::class_<Peer> peer(
      module, "Peer",
      "A connected remote Engine. Any thread; it may outlive the Engine, and calls "
      "then raise.");
  bind_submissions(peer);
  peer.def_prop_ro("id", &Peer::id, "Unique in this Engine, from 1.")
      .def_prop_ro("name", &Peer::name)
      .def_prop_ro(
          "state",
          [](const Peer& self) {
            constexpr const char* kNames[] = {"up", "lost", "gone"};
            return kNames[static_cast<std::size_t>(self.state())];
          },
          "\"up\"; \"lost\": its connection has ended, its process may live; \"gone\": "
          "nothing of it touches memory any more.")
      .def(
          "close",
          [](const Peer& self, double timeout) {
            const Duration limit = seconds(timeout, "timeout");
            check(waiting([&] { return self.close(limit); }), self.id());
          },
          "timeout"_a = 5.0,
          "Ends what goes on with this peer, and nothing else: its transfers end as canceled, it "
          "hears a goodbye, and nothing of it touches memory of this Engine any more. The same "
          "Engines may meet again by connect(). PendingError: a peer of this host that is stopped, "
          "or still copies; call again. As often as one likes.")
      .def(
          "lookup",
          [](const Peer& self, const std::string& name, double timeout) {
            return look_up(self, timeout, [&](Duration limit) { return self.lookup(name, limit); });
          },
          "name"_a, "timeout"_a = 10.0,
          "Imports the region that the peer published under that name: 5 to 10 ms for memory of "
          "another GPU. NotFoundError, TimedOutError, DisconnectedError.")
      .def(
          "lookup_all",
          [](const Peer& self, const std::vector<std::string>& names, double timeout) {
            return look_up(self, timeout,
                           [&](Duration limit) { return self.lookup_all(names, limit); });
          },
          "names"_a, "timeout"_a = 10.0,
          "Imports the regions of all names, in about the time of one answer and all mappings. An "
          "error is that of the first name that has one.")
      .def(
          "lookup_set",
          [](const Peer& self, const std::string& name, double timeout, const RegionSet* known) {
            const RegionSet before = known == nullptr ? RegionSet() : *known;
            return look_up(self, timeout,
                           [&](Duration limit) { return self.lookup_set(name, limit, before); });
          },
          "name"_a, "timeout"_a = 10.0, "known"_a = nb::none(),
          "Imports all regions of a published set, of one version. known: an earlier version, "
          "whose regions are not imported again.")
      .def(
          "lookup_async",
          [](const Peer& self, const std::string& name, double timeout) {
            const Duration limit = seconds(timeout, "timeout");
            return PyFuture{without_gil([&] { return self.lookup_async(name, limit); }), self.id()};
          },
          "name"_a, "timeout"_a = 10.0,
          "lookup() that returns at once; `await` or wait() returns the RemoteRegion.")
      .def(
          "lookup_set_async",
          [](const Peer& self, const std::string& name, double timeout, const RegionSet* known) {
            const Duration limit = seconds(timeout, "timeout");
            const RegionSet before = known == nullptr ? RegionSet() : *known;
            return PyFuture{without_gil([&] { return self.lookup_set_async(name, limit, before); }),
                            self.id()};
          },
          "name"_a, "timeout"_a = 10.0, "known"_a = nb::none(),
          "lookup_set() that returns at once; `await` or wait() returns the RegionSet.")
      .def(
          "await_version",
          [](const Peer& self, const std::string& name, std::uint64_t above, double timeout) {
            return look_up(self, timeout,
                           [&](Duration limit) { return self.await_version(name, above, limit); });
          },
          "name"_a, "above"_a = 0, "timeout"_a = 10.0,
          "The version of that set as soon as there is one above this.")
      .def("send", &exchange<true>, "tag"_a, "memory"_a, "options"_a,
           nb::sig("def send(self, tag: int, memory: Memory, " LINKSPAN_OPTIONS ") -> Transfer"),
           "Two-sided: the peer's recv() of the same tag takes these bytes, the oldest the oldest; "
           "the memory need not be registered.")
      .def("recv", &exchange<false>, "tag"_a, "memory"_a, "options"_a,
           nb::sig("def recv(self, tag: int, memory: Memory, " LINKSPAN_OPTIONS ") -> Transfer"),
           "TruncatedError, on both sides, nothing written: more bytes came than it has room for.")
      .def(
          "notify",
          [](const Peer& self, const nb::bytes& message) {
            check(self.notify({static_cast<const std::byte*>(message.data()), message.size()}),
                  self.id());
          },
          "message"_a, "A small message by itself, in order with those of transfers that are done.")
      .def(
          "explain",
          [](const Peer& self, const std::string& op, const PyRegion& local,
             const RemoteRegion& remote, std::uint64_t blocks, std::optional<std::uint64_t> bytes,
             const nb::kwargs& options) {
            return take(self.explain(op_of(op), local.region, remote, blocks,
                                     bytes.value_or(std::min(local.region.bytes(), remote.bytes())),
                                     transfer_options(options, nullptr)),
                        self.id());
          },
          "op"_a, "local"_a, "remote"_a, "blocks"_a = 1, "bytes"_a = nb::none(), "options"_a,
          nb::sig("def explain(self, op: typing.Literal['write', 'read'], local: Region, remote: "
                  "RemoteRegion, blocks: int = 1, bytes: int | None = None, " LINKSPAN_OPTIONS
                  ") -> Explanation"),
          "Returns the path that this many blocks of together `bytes` bytes take, and why better "
          "paths are refused. bytes None: all of the smaller region.")
      .def("__repr__", [](const Peer& self) {
        return "<Peer " + std::to_string(self.id()) + " \"" + self.name() + "\">";
      });
}

}  // namespace linkspan::python
