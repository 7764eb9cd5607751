// Regions of both sides, and where an object's memory lies.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "python/core/core.hpp"

namespace linkspan::python {
namespace {

using namespace nb::literals;

/// (pointer, shape, strides in bytes, bytes an element, DLPack's device type, device id, whether it
/// is read-only, what holds it), by DLPack. What holds it is the capsule and the object.
nb::object dlpack_view(nb::handle value) {
  nb::ndarray<> writable;
  nb::ndarray<nb::ro> array;
  const bool read_only = !nb::try_cast(value, writable);
  if (!read_only)
    array = nb::ndarray<nb::ro>(writable);
  else if (!nb::try_cast(value, array))
    throw nb::type_error("its __dlpack__() gives nothing that can be used here");
  auto holder = std::make_unique<nb::ndarray<nb::ro>>(array);
  const nb::capsule held(
      holder.get(), [](void* data) noexcept { delete static_cast<nb::ndarray<nb::ro>*>(data); });
  static_cast<void>(holder.release());  // the capsule's now
  const std::int64_t item = static_cast<std::int64_t>(array.itemsize());
  nb::list shape, strides;
  for (std::size_t i = 0; i < array.ndim(); ++i) {
    shape.append(array.shape(i));
    strides.append(array.stride(i) * item);
  }
  return nb::make_tuple(reinterpret_cast<std::uintptr_t>(array.data()), shape, strides, item,
                        array.device_type(), array.device_id(), read_only,
                        nb::make_tuple(held, value));
}

/// Returns the address of the first element by the buffer protocol, for any strides.
std::uintptr_t address_of(nb::handle value) {
  Py_buffer view;
  if (PyObject_GetBuffer(value.ptr(), &view, PyBUF_FULL_RO) != 0) throw nb::python_error();
  const auto address = reinterpret_cast<std::uintptr_t>(view.buf);
  PyBuffer_Release(&view);
  return address;
}

nb::object memory_of(nb::handle self) {
  const auto& region = *nb::inst_ptr<PyRegion>(self);
  if (region.region.kind() == MemoryKind::device)
    throw nb::type_error("the region is on a GPU, where the CPU reads nothing");
  if (region.has_ended())
    throw nb::value_error("the region is deregistered, and its memory is not kept any more");
  const nb::handle owner = region.memory.is_valid() ? nb::handle(region.memory) : self;
  const std::size_t bytes = region.region.bytes();
  const auto view = [&]<class Byte>(Byte* data) {
    return nb::cast(
        nb::ndarray<nb::memview, Byte, nb::ndim<1>, nb::c_contig>(data, {bytes}, owner));
  };
  auto* const data = static_cast<std::uint8_t*>(region.region.data());
  return region.read_only ? view(static_cast<const std::uint8_t*>(data)) : view(data);
}

std::string gpu_of(const Region& region) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "GPU-";
  const GpuUuid uuid = region.gpu();
  if (uuid == GpuUuid{}) return {};
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    const auto value = static_cast<unsigned>(uuid[i]);
    text += {kDigits[value >> 4], kDigits[value & 15]};
  }
  return text;
}

nb::bytes bytes_of(const Descriptor& descriptor) {
  const std::vector<std::byte> bytes = descriptor.serialize();
  return nb::bytes(bytes.data(), bytes.size());
}

Descriptor parse(const nb::bytes& bytes) {
  return take(Descriptor::parse({static_cast<const std::byte*>(bytes.data()), bytes.size()}));
}

std::uint64_t total_of(const Descriptor& descriptor) {
  std::uint64_t total = 0;
  for (const DescribedRegion& each : descriptor.regions) total += each.bytes;
  return total;
}

std::string kind_of(const DescribedRegion& region) { return std::string(name_of(region.kind)); }

nb::object words_of(const Descriptor& self) {
  const std::string what = self.version == 0
                               ? kind_of(self.regions.front()) + " memory"
                               : "version " + std::to_string(self.version) +
                                     ", regions: " + std::to_string(self.regions.size());
  return text_of("<Descriptor \"" + self.name + "\" of Engine \"" + self.engine +
                 "\": " + std::to_string(total_of(self)) + " bytes, " + what + ">");
}

void bind_descriptor(nb::module_& module) {
  nb::class_<Descriptor>(module, "Descriptor",
                         "What another process needs to find what an Engine published. A value: "
                         "send to_bytes(), or pickle it. It contains no key: the Engine at "
                         "`address` must still accept the process that uses it.")
      .def_prop_ro(
          "address", [](const Descriptor& self) { return text_of(self.address); },
          nb::sig("def address(self) -> str"), "Engine.addresses of its maker.")
      .def_prop_ro(
          "engine", [](const Descriptor& self) { return text_of(self.engine); },
          nb::sig("def engine(self) -> str"), "The name of that Engine.")
      .def_prop_ro(
          "name", [](const Descriptor& self) { return text_of(self.name); },
          nb::sig("def name(self) -> str"), "The published name.")
      .def_ro("version", &Descriptor::version, "The version of a set; 0: one region.")
      .def_prop_ro(
          "regions",
          [](const Descriptor& self) {
            nb::list regions;
            for (const DescribedRegion& each : self.regions)
              regions.append(nb::make_tuple(each.bytes, kind_of(each)));
            return nb::tuple(regions);
          },
          nb::sig("def regions(self) -> tuple[tuple[int, str], ...]"),
          "The bytes and the kind of each region, in the order of publish().")
      .def_prop_ro("bytes", &total_of, "The bytes of all regions together.")
      .def_prop_ro(
          "kind", [](const Descriptor& self) { return kind_of(self.regions.front()); },
          "The kind of the first region's memory.")
      .def("to_bytes", &bytes_of, "Returns bytes that linkspan reads in every language.")
      .def_static(
          "from_bytes", &parse, "data"_a,
          "Parses what to_bytes() returned, which may come from anyone. CorruptError: something "
          "else, or cut. UnsupportedError: another release's format.")
      .def("__getstate__", &bytes_of)
      .def("__setstate__",
           [](Descriptor& self, const nb::bytes& state) { new (&self) Descriptor(parse(state)); })
      .def(
          "__eq__", [](const Descriptor& self, const Descriptor& other) { return self == other; },
          nb::is_operator(), nb::sig("def __eq__(self, other: object, /) -> bool"))
      .def("__hash__", [](const Descriptor& self) { return nb::hash(bytes_of(self)); })
      .def("__repr__", &words_of, nb::sig("def __repr__(self) -> str"));
}

}  // namespace

void bind_memory(nb::module_& module) {
  module.def(
      "dlpack_view", &dlpack_view, "memory"_a,
      nb::sig("def dlpack_view(memory: object) -> tuple[int, list[int], list[int], int, int, "
              "int, bool, object]"));
  module.def("address_of", &address_of, "memory"_a);

  bind_descriptor(module);

  nb::class_<PyRegion>(module, "Region",
                       "Memory of this process that was registered; what it belongs to lives as "
                       "long as the registration.",
                       nb::type_slots(CollectedSlots<&PyRegion::memory>::slots))
      .def_prop_ro("bytes", [](const PyRegion& self) { return self.region.bytes(); })
      .def_prop_ro(
          "kind", [](const PyRegion& self) { return std::string(name_of(self.region.kind())); },
          "\"host\", \"pinned\", \"shared\" or \"device\"")
      .def_prop_ro(
          "address",
          [](const PyRegion& self) { return reinterpret_cast<std::uintptr_t>(self.region.data()); })
      .def_prop_ro(
          "gpu", [](const PyRegion& self) { return gpu_of(self.region); },
          "\"GPU-...\", as nvidia-smi names it; \"\": none")
      .def_prop_ro("memory", &memory_of, nb::sig("def memory(self) -> memoryview"),
                   "Its bytes, of host memory; read-only if what was registered is. ValueError: it "
                   "was deregistered.")
      .def("_end", [](PyRegion& self) { self.end(); })
      .def("__len__", [](const PyRegion& self) { return self.region.bytes(); })
      .def("__repr__",
           [](const PyRegion& self) { return "<Region: " + self.region.describe() + ">"; });

  nb::class_<RemoteRegion>(module, "RemoteRegion",
                           "A peer's region, imported. Dropping the last reference unmaps it.")
      .def_prop_ro("bytes", &RemoteRegion::bytes)
      .def_prop_ro("kind",
                   [](const RemoteRegion& self) { return std::string(name_of(self.kind())); })
      .def_prop_ro("name", &RemoteRegion::name)
      .def_prop_ro("peer", &RemoteRegion::peer, "Peer.id of its owner.")
      .def("__len__", &RemoteRegion::bytes)
      .def("__repr__", [](const RemoteRegion& self) {
        return "<RemoteRegion \"" + self.name() + "\": " + std::to_string(self.bytes()) +
               " bytes of " + std::string(name_of(self.kind())) + " memory of peer " +
               std::to_string(self.peer()) + ">";
      });

  nb::class_<RegionSet>(
      module, "RegionSet",
      "What a name of a peer's stood for at one time: all regions of one version.")
      .def_ro("version", &RegionSet::version)
      .def_ro("regions", &RegionSet::regions);
}

}  // namespace linkspan::python
