// Peers: what write(), read() and prepare() take.
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "python/core/core.hpp"

namespace linkspan::python {
namespace {

using namespace nb::literals;

#define LINKSPAN_OPTIONS "**options: Unpack[TransferOptions]"
#define LINKSPAN_REGIONS_SIG(name)                                                               \
  nb::sig(                                                                                       \
      "def " name                                                                                \
      "(self, local: typing.Sequence[Region], remote: "                                          \
      "typing.Sequence[RemoteRegion] | RegionSet, shape: Shape | None = None, " LINKSPAN_OPTIONS \
      ") -> Transfer")
#define LINKSPAN_PARTS_SIG(name)                                               \
  nb::sig("def " name                                                          \
          "(self, parts: typing.Sequence[tuple[Region, RemoteRegion, Shape | " \
          "None]], " LINKSPAN_OPTIONS ") -> Transfer")

/// ValueError: a read would write to a region that is read-only.
void check_local(Op op, const PyRegion& local, const std::string& pair = {}) {
  if (op == Op::read && local.read_only)
    throw nb::value_error((pair + "a region of " + local.region.describe() +
                           " is read-only and cannot be read into: register memory that may be "
                           "written")
                              .c_str());
}
std::string pair_text(std::size_t index) { return "pair " + std::to_string(index) + ": "; }

/// Submits by Peer::write() or read().
template <Op kOp>
struct Submit {
  const Peer& peer;
  const nb::kwargs& options;

  static Op its_op() { return kOp; }

  /// `all` stands for the local regions. Keeps `memory` alive until the transfer is quiet.
  template <class... Regions>
  nb::object operator()(const PyRegion& all, const nb::object& memory,
                        const Regions&... regions) const {
    const TransferOptions hints = transfer_options(options, &all);
    auto transfer = submitting(hints, [&] {
      return kOp == Op::write ? peer.write(regions..., hints) : peer.read(regions..., hints);
    });
    return keep(take(std::move(transfer), peer.id()), peer.id(), memory);
  }
};

/// Prepares by Peer::prepare().
struct Prepare {
  const Peer& peer;
  Op op;

  Op its_op() const { return op; }
  template <class... Regions>
  PyPrepared operator()(const PyRegion& all, const nb::object& /*memory*/,
                        const Regions&... regions) const {
    auto prepared = without_gil([&] { return peer.prepare(op, regions...); });
    return {take(std::move(prepared), peer.id()), peer.id(), all};
  }
};

template <class Act>
auto with_one(const Act& act, const PyRegion& local, const RemoteRegion& remote, nb::handle shape) {
  check_local(act.its_op(), local);
  const ParsedShape parsed = shape_of(shape, local.region.bytes(), remote.bytes());
  return act(local, keepalive_of(parsed), local.region, remote, view_of(parsed));
}

template <Op kOp>
nb::object submit(const Peer& peer, const PyRegion& local, const RemoteRegion& remote,
                  nb::handle shape, const nb::kwargs& options) {
  return with_one(Submit<kOp>{peer, options}, local, remote, shape);
}
PyPrepared prepare(const Peer& peer, const std::string& op, const PyRegion& local,
                   const RemoteRegion& remote, nb::handle shape) {
  return with_one(Prepare{peer, op_of(op)}, local, remote, shape);
}

/// Adds a region to those that `all` stands for: it is the first of them on a known GPU.
void add_local(PyRegion& all, const PyRegion& next) {
  if (next.device == kNoDevice || next.device == all.device) return;
  if (all.device == kNoDevice)
    all = next;
  else
    all.device = kSeveralDevices;
}

/// Parses the shape of one of several pairs. An error begins with the index of the pair.
ParsedShape shape_of_pair(std::size_t index, nb::handle shape, std::uint64_t here,
                          std::uint64_t there) {
  try {
    return shape_of(shape, here, there);
  } catch (const nb::builtin_exception& error) {
    throw nb::builtin_exception(error.type(), (pair_text(index) + error.what()).c_str());
  }
}

/// The pairs of regions of a transfer, each with a shape of its own.
class Parts {
 public:
  Parts(Op op, std::size_t most) : op_(op) {
    given_.reserve(most);
    shapes_.reserve(most);
    parts_.reserve(most);
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;
  ~Parts() = default;

  void add(const PyRegion& local, const RemoteRegion& remote, nb::handle shape) {
    if (local.read_only) check_local(op_, local, pair_text(shapes_.size()));
    add_local(all_, local);
    given_.push_back(nb::borrow(shape));
    shapes_.push_back(shape_of_pair(shapes_.size(), shape, local.region.bytes(), remote.bytes()));
    parts_.push_back({local.region, remote, view_of(shapes_.back())});
    if (const nb::object kept = keepalive_of(shapes_.back()); kept.is_valid()) memory_.append(kept);
  }
  template <class Act>
  auto pass_to(const Act& act) const {
    const nb::object memory = memory_.size() == 0 ? nb::object() : nb::object(memory_);
    return act(all_, memory, std::span<const TransferPart>(parts_));
  }

 private:
  const Op op_;
  PyRegion all_;
  std::vector<nb::object> given_;    // what shapes_ refers to
  std::vector<ParsedShape> shapes_;  // what parts_ refers to
  std::vector<TransferPart> parts_;
  nb::list memory_;
};

/// Returns the T that the object is, or null.
template <class T>
const T* instance_of(nb::handle object) {
  return nb::isinstance<T>(object) && nb::inst_ready(object) ? nb::inst_ptr<T>(object) : nullptr;
}

/// Calls act(local, remote, shape) with what each part has, in its place: nothing is copied.
template <class Act>
void for_each_part(const nb::sequence& parts, Act act) {
  std::size_t index = 0;
  for (const nb::handle each : parts) {
    const bool three = nb::isinstance<nb::sequence>(each) && nb::len(each) == 3;
    const nb::object here = three ? each[0] : nb::none(), there = three ? each[1] : nb::none();
    const auto* const local = instance_of<PyRegion>(here);
    const auto* const remote = instance_of<RemoteRegion>(there);
    if (local == nullptr || remote == nullptr)
      throw nb::type_error(
          (pair_text(index) + "give a tuple of a Region, a RemoteRegion, and a Shape or None")
              .c_str());
    ++index;
    act(*local, *remote, each[2]);
  }
}

template <class Act>
auto with_parts(const Act& act, const nb::sequence& given) {
  Parts parts(act.its_op(), nb::len(given));
  for_each_part(given, [&](const auto&... part) { parts.add(part...); });
  return parts.pass_to(act);
}

template <Op kOp>
nb::object submit_parts(const Peer& peer, const nb::sequence& given, const nb::kwargs& options) {
  return with_parts(Submit<kOp>{peer, options}, given);
}
PyPrepared prepare_parts(const Peer& peer, const std::string& op, const nb::sequence& given) {
  nb::list memory;  // before another thread may change `given`
  for_each_part(given, [&](const PyRegion& local, const auto&...) {
    if (local.memory.is_valid()) memory.append(local.memory);
  });
  PyPrepared prepared = with_parts(Prepare{peer, op_of(op)}, given);
  prepared.local.memory = memory;
  return prepared;
}

/// Calls `act` with each object of a sequence, in its place: nothing is copied. TypeError: it is no
/// T.
template <class T, class Act>
void for_each(nb::handle sequence, const char* no_such, Act act) {
  for (const nb::handle each : nb::borrow<nb::sequence>(sequence)) {
    const T* const instance = instance_of<T>(each);
    if (instance == nullptr) throw nb::type_error(no_such);
    act(*instance);
  }
}

/// The regions of a peer that were given: those of a RegionSet, or copies out of a sequence.
class RemoteRegions {
 public:
  explicit RemoteRegions(nb::handle given) {
    if (const auto* const set = instance_of<RegionSet>(given)) {
      all_ = set->regions;
      return;
    }
    constexpr const char* kNoRegions =
        "remote: give as many RemoteRegions as local regions, or a RegionSet";
    if (!nb::isinstance<nb::sequence>(given)) throw nb::type_error(kNoRegions);
    copies_.reserve(nb::len(given));
    for_each<RemoteRegion>(given, kNoRegions,
                           [&](const RemoteRegion& each) { copies_.push_back(each); });
    all_ = copies_;
  }
  RemoteRegions(const RemoteRegions&) = delete;
  RemoteRegions& operator=(const RemoteRegions&) = delete;
  ~RemoteRegions() = default;
  std::span<const RemoteRegion> all() const noexcept { return all_; }

 private:
  std::vector<RemoteRegion> copies_;
  std::span<const RemoteRegion> all_;
};

constexpr const char* kNoLocal = "local: give a Region, or a sequence of Regions";

/// Pages with a list for each pair of regions.
template <class Act>
auto with_rows(const Act& act, const PyRegion& all, std::span<const Region> here,
               std::span<const RemoteRegion> there, const PyPages& pages) {
  if (here.size() != pages.rows || there.size() != pages.rows)
    throw nb::value_error(("Pages has lists for " + std::to_string(pages.rows) +
                           " regions; there are " + std::to_string(here.size()) + " local and " +
                           std::to_string(there.size()) + " remote ones")
                              .c_str());
  std::vector<Shape> shapes;
  shapes.reserve(pages.rows);
  for (std::size_t i = 0; i < pages.rows; ++i) shapes.emplace_back(pages.row(i));
  return act(all, nb::object(), here, there, std::span<const Shape>(shapes));
}

template <class Act>
auto with_regions(const Act& act, const nb::sequence& local, nb::handle remote, nb::handle shape) {
  const RemoteRegions there(remote);
  PyRegion all;
  std::vector<Region> here;
  here.reserve(nb::len(local));
  for_each<PyRegion>(local, kNoLocal, [&](const PyRegion& each) {
    if (each.read_only) check_local(act.its_op(), each, pair_text(here.size()));
    add_local(all, each);
    here.push_back(each.region);
  });
  if (shape.is_none() && here.size() == there.all().size()) {
    Parts parts(act.its_op(), here.size());
    std::size_t i = 0;
    for_each<PyRegion>(local, kNoLocal, [&](const PyRegion& each) {
      if (i == there.all().size()) throw nb::type_error(kNoLocal);  // it has become longer
      parts.add(each, there.all()[i++], nb::none());
    });
    return parts.pass_to(act);
  }
  if (const auto* const pages = instance_of<PyPages>(shape); pages != nullptr && pages->rows != 0)
    return with_rows(act, all, here, there.all(), *pages);
  const ParsedShape parsed = shape_of(shape, 0, 0);
  return act(all, keepalive_of(parsed), std::span<const Region>(here), there.all(),
             view_of(parsed));
}

template <Op kOp>
nb::object submit_regions(const Peer& peer, const nb::sequence& local, nb::handle remote,
                          nb::handle shape, const nb::kwargs& options) {
  return with_regions(Submit<kOp>{peer, options}, local, remote, shape);
}
PyPrepared prepare_regions(const Peer& peer, const std::string& op, const nb::sequence& local,
                           nb::handle remote, nb::handle shape) {
  nb::list memory;  // before another thread may change `local`
  for_each<PyRegion>(local, kNoLocal, [&](const PyRegion& each) {
    if (each.memory.is_valid()) memory.append(each.memory);
  });
  PyPrepared prepared = with_regions(Prepare{peer, op_of(op)}, local, remote, shape);
  prepared.local.memory = memory;
  return prepared;
}

}  // namespace

Op op_of(const std::string& name) {
  if (name == "write") return Op::write;
  if (name == "read") return Op::read;
  throw nb::value_error(("op=\"" + name + "\": give \"write\" or \"read\"").c_str());
}

void bind_submissions(nb::class_<Peer>& peer) {
  peer.def(
          "write", &submit<Op::write>, "local"_a, "remote"_a, "shape"_a = nb::none(), "options"_a,
          nb::sig("def write(self, local: Region, remote: RemoteRegion, shape: Shape | None = "
                  "None, " LINKSPAN_OPTIONS ") -> Transfer"),
          "Copies from a region here to one of the peer's; returns when it is under way or queued. "
          "shape: Pages, Strides, or rows of (local offset, remote offset, bytes); None: all of "
          "both, which are equally long. Errors name what is wrong; nothing was started then.")
      .def("write", &submit_regions<Op::write>, "local"_a, "remote"_a, "shape"_a = nb::none(),
           "options"_a, LINKSPAN_REGIONS_SIG("write"),
           "Copies that shape from local[i] to remote[i] for each i, such as the same pages of all "
           "layers, or of Pages with rows the i-th, as one transfer: one wait, one cancel, and the "
           "notification follows all of it. Errors name the index of the pair.")
      .def("write", &submit_parts<Op::write>, "parts"_a, "options"_a, LINKSPAN_PARTS_SIG("write"),
           "Does the same with a shape for each pair.")
      .def("read", &submit<Op::read>, "local"_a, "remote"_a, "shape"_a = nb::none(), "options"_a,
           nb::sig("def read(self, local: Region, remote: RemoteRegion, shape: Shape | None = "
                   "None, " LINKSPAN_OPTIONS ") -> Transfer"),
           "The same, from the peer's region to the one here.")
      .def("read", &submit_regions<Op::read>, "local"_a, "remote"_a, "shape"_a = nb::none(),
           "options"_a, LINKSPAN_REGIONS_SIG("read"),
           "Copies that shape from remote[i] to local[i].")
      .def("read", &submit_parts<Op::read>, "parts"_a, "options"_a, LINKSPAN_PARTS_SIG("read"),
           "Does the same with a shape for each pair.")
      .def("prepare", &prepare, "op"_a, "local"_a, "remote"_a, "shape"_a = nb::none(),
           nb::sig("def prepare(self, op: typing.Literal['write', 'read'], local: Region, remote: "
                   "RemoteRegion, shape: Shape | None = None) -> Prepared"),
           "Checks and keeps what write() or read() would take, to be posted often.")
      .def("prepare", &prepare_regions, "op"_a, "local"_a, "remote"_a, "shape"_a = nb::none(),
           nb::sig("def prepare(self, op: typing.Literal['write', 'read'], local: "
                   "typing.Sequence[Region], remote: typing.Sequence[RemoteRegion] | RegionSet, "
                   "shape: Shape | None = None) -> Prepared"),
           "The same for each local[i] and remote[i]; a post copies all as one transfer.")
      .def("prepare", &prepare_parts, "op"_a, "parts"_a,
           nb::sig("def prepare(self, op: typing.Literal['write', 'read'], parts: "
                   "typing.Sequence[tuple[Region, RemoteRegion, Shape | None]]) -> Prepared"),
           "The same with a shape for each pair.");
}

}  // namespace linkspan::python
