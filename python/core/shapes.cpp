// Blocks, Pages, Strides out of Python's lists and arrays.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "python/core/core.hpp"

namespace linkspan::python {
namespace {

using namespace nb::literals;
using Array = nb::ndarray<nb::ro>;

constexpr const char* kIndexTypes = "int32, uint32, int64 or uint64";

[[noreturn]] void refuse(const std::string& what) { throw nb::value_error(what.c_str()); }

bool is_array(nb::handle value) {
  return nb::hasattr(value, "__dlpack__") || PyObject_CheckBuffer(value.ptr()) != 0;
}

Array array_of(nb::handle value, const std::string& what, const char* give) {
  Array array;
  if (!nb::try_cast(value, array))
    refuse(what + ": an array of " +
           nb::cast<std::string>(nb::str(nb::getattr(value, "dtype", value.type()))) +
           ", which is read by no name that other libraries know; give " + give);
  return array;
}

/// Whole numbers in host memory, in one dimension or two. Steps are in elements.
struct NumberArray {
  const void* data;
  std::size_t size;  // of a row, if it has rows
  std::int64_t step;
  nb::dlpack::dtype type;
  std::size_t rows = 0;  // 0: it has one dimension
  std::int64_t row_step = 0;
};

/// Calls `each(i, value)` for all. The loop without steps is one that a compiler vectorizes.
template <class T, class Each>
void for_all(const NumberArray& array, Each each) {
  const auto* data = static_cast<const T*>(array.data);
  if (array.step == 1)
    for (std::size_t i = 0; i < array.size; ++i) each(i, data[i]);
  else
    for (std::size_t i = 0; i < array.size; ++i)
      each(i, data[static_cast<std::int64_t>(i) * array.step]);
}

/// Returns the position of the first value that is no page index, or the number of values.
template <class T>
std::size_t copy_indices(const NumberArray& array, std::uint32_t* to) {
  using Bits = std::make_unsigned_t<T>;
  // The sign, and the bits above the lower 32: set in no page index.
  constexpr Bits kNone =
      static_cast<Bits>(std::is_signed_v<T> ? Bits{1} << (8 * sizeof(T) - 1) : 0) |
      static_cast<Bits>(~std::uint64_t{0xffff'ffff});
  Bits all = 0;  // looked at once, behind the loop
  for_all<T>(array, [&](std::size_t i, T value) {
    all |= static_cast<Bits>(value);
    to[i] = static_cast<std::uint32_t>(value);
  });
  if ((all & kNone) == 0) return array.size;
  std::size_t first = array.size;
  for_all<T>(array, [&](std::size_t i, T value) {
    if ((static_cast<Bits>(value) & kNone) != 0) first = std::min(first, i);
  });
  return first;
}

template <class T>
void append_rows(const NumberArray& array, const char* what, IndexList& to) {
  const std::size_t begin = to.size(), all = std::max<std::size_t>(array.rows, 1) * array.size;
  if (begin == 0) to.reserve(2 * all);  // the other list is as long
  to.resize(begin + all);
  const auto size = static_cast<std::int64_t>(array.size);
  NumberArray part = array;  // a row, or all rows where one begins at another's end
  if (array.rows != 0 && array.step == 1 && array.row_step == size) part.size = all;
  for (std::size_t done = 0; done < all; done += part.size) {
    part.data =
        static_cast<const T*>(array.data) + static_cast<std::int64_t>(done) / size * array.row_step;
    const std::size_t good = copy_indices<T>(part, to.data() + begin + done);
    if (good == part.size) continue;
    const std::size_t at = done + good;
    const std::string of_row = array.rows == 0 ? "" : std::to_string(at / array.size) + ", ";
    refuse(std::string(what) + "[" + of_row + std::to_string(at % array.size) +
           "] is no page index; these are 0 to " +
           std::to_string(std::numeric_limits<std::uint32_t>::max()));
  }
}

void append_array(const NumberArray& array, const char* what, IndexList& to) {
  if (array.type == nb::dtype<std::int32_t>())
    append_rows<std::int32_t>(array, what, to);
  else if (array.type == nb::dtype<std::uint32_t>())
    append_rows<std::uint32_t>(array, what, to);
  else if (array.type == nb::dtype<std::int64_t>())
    append_rows<std::int64_t>(array, what, to);
  else if (array.type == nb::dtype<std::uint64_t>())
    append_rows<std::uint64_t>(array, what, to);
  else
    refuse(std::string(what) + " has elements of another type; give " + kIndexTypes);
}

/// Returns a tensor of torch's in host memory as numpy's array of the same memory, which is read
/// without torch's costly DLPack. Returns all else as it is.
nb::object without_torch(nb::handle value) {
  nb::object same = nb::borrow(value);
  if (PyObject_CheckBuffer(value.ptr()) != 0 ||
      !nb::getattr(value, "is_cpu", nb::none()).is(Py_True))
    return same;
  try {
    return value.attr("numpy")();
  } catch (const nb::python_error&) {
    return same;  // there is no numpy
  }
}

/// Appends an int32 or int64 array without steps, such as numpy's, through its buffer, which costs
/// less than a DLPack capsule. Returns its rows, or nullopt for anything else.
std::optional<std::size_t> append_buffer(nb::handle value, const char* what, IndexList& to) {
  Py_buffer buffer{};
  if (PyObject_CheckBuffer(value.ptr()) == 0) return std::nullopt;
  if (PyObject_GetBuffer(value.ptr(), &buffer, PyBUF_ND | PyBUF_FORMAT) != 0) {
    PyErr_Clear();  // it has steps
    return std::nullopt;
  }
  const std::unique_ptr<Py_buffer, decltype(&PyBuffer_Release)> held(&buffer, PyBuffer_Release);
  const std::string_view format = buffer.format == nullptr ? "" : buffer.format;
  const bool is_int = format == "i" && buffer.itemsize == 4;
  const bool known = is_int || (format == "l" && buffer.itemsize == 8);
  if (!known || buffer.ndim < 1 || buffer.ndim > 2) return std::nullopt;
  const std::size_t rows = buffer.ndim == 2 ? static_cast<std::size_t>(buffer.shape[0]) : 0;
  const Py_ssize_t size = buffer.shape[0] == 0 ? 0 : buffer.shape[buffer.ndim - 1];
  append_array({.data = buffer.buf,
                .size = static_cast<std::size_t>(size),
                .step = 1,
                .type = is_int ? nb::dtype<std::int32_t>() : nb::dtype<std::int64_t>(),
                .rows = rows,
                .row_step = size},
               what, to);
  return rows;
}

/// Appends the indices, row by row. Returns how many rows there are: 0 of what has one dimension.
std::size_t append_indices(nb::handle value, const char* what, IndexList& to) {
  if (const auto rows = append_buffer(value, what, to)) return *rows;
  if (is_array(value)) {
    const Array array = array_of(value, what, kIndexTypes);
    const std::size_t dimensions = array.ndim();
    if (dimensions != 1 && dimensions != 2)
      refuse(std::string(what) + " has " + std::to_string(dimensions) +
             " dimensions; give one, or two with a row for each region");
    const std::size_t rows = dimensions == 2 ? array.shape(0) : 0;
    append_array({.data = array.data(),
                  .size = array.shape(0) == 0 ? 0 : array.shape(dimensions - 1),
                  .step = array.stride(dimensions - 1),
                  .type = array.dtype(),
                  .rows = rows,
                  .row_step = dimensions == 2 ? array.stride(0) : 0},
                 what, to);
    return rows;
  }
  if (!nb::isinstance<nb::sequence>(value) && !nb::hasattr(value, "__iter__"))
    throw nb::type_error(
        (std::string(what) + ": give whole numbers, as a list or an array").c_str());
  for (const nb::handle each : nb::iter(value)) {
    std::uint32_t index = 0;
    if (!nb::try_cast(each, index))
      refuse(std::string(what) + ": " + nb::cast<std::string>(nb::repr(each)) +
             " is no page index; these are 0 to " +
             std::to_string(std::numeric_limits<std::uint32_t>::max()));
    to.push_back(index);
  }
  return 0;
}

/// Returns the indices where they are, for a kernel to read. Returns nullopt if they are not on a
/// GPU.
std::optional<std::span<const std::uint32_t>> gpu_indices(nb::handle value, const char* what) {
  // A buffer is in host memory.
  if (nb::isinstance<nb::list>(value) || PyObject_CheckBuffer(value.ptr()) != 0)
    return std::nullopt;
  const nb::object found =
      nb::module_::import_("linkspan._memory").attr("gpu_indices")(value, what);
  if (found.is_none()) return std::nullopt;
  const auto address = nb::cast<std::uintptr_t>(found[0]);
  return std::span(
      reinterpret_cast<const std::uint32_t*>(address),  // NOLINT(performance-no-int-to-ptr)
      nb::cast<std::size_t>(found[1]));
}

PyPages make_pages(std::uint64_t page_bytes, nb::handle local_index, nb::handle remote_index,
                   std::uint64_t local_base, std::uint64_t remote_base) {
  const nb::object local = without_torch(local_index), remote = without_torch(remote_index);
  PyPages pages{.page_bytes = page_bytes,
                .local_base = local_base,
                .remote_base = remote_base,
                .rows = 0,
                .lists = {},
                .on_gpu = {},
                .gpu_local = {},
                .gpu_remote = {}};
  std::size_t here = 0, there = 0, there_rows = 0;
  const auto here_on_gpu = gpu_indices(local, "local_index");
  const auto there_on_gpu = gpu_indices(remote, "remote_index");
  if (here_on_gpu.has_value() != there_on_gpu.has_value())
    refuse("one list of indices is on a GPU and one is not: move one to where the other is");
  if (here_on_gpu) {
    pages.gpu_local = *here_on_gpu;
    pages.gpu_remote = *there_on_gpu;
    pages.on_gpu = nb::make_tuple(local, remote);
    here = pages.gpu_local.size();
    there = pages.gpu_remote.size();
  } else {
    pages.rows = append_indices(local, "local_index", pages.lists);
    here = pages.lists.size();
    there_rows = append_indices(remote, "remote_index", pages.lists);
    there = pages.lists.size() - here;
  }
  if (pages.rows != there_rows)
    refuse("local_index has " + std::to_string(pages.rows) + " rows and remote_index " +
           std::to_string(there_rows) + ": give both in one dimension, or both with a row for " +
           "each region");
  if (here != there)
    refuse("local_index has " + std::to_string(here) + " pages and remote_index " +
           std::to_string(there) + ": each page needs both");
  return pages;
}

using Level = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;

Strides make_strides(std::uint64_t bytes, const std::vector<Level>& levels,
                     std::uint64_t local_base, std::uint64_t remote_base) {
  Strides strides{.bytes = bytes, .local_base = local_base, .remote_base = remote_base};
  if (levels.size() > strides.levels.size())
    refuse(std::to_string(levels.size()) + " levels; at most " +
           std::to_string(strides.levels.size()));
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const auto& [count, local_step, remote_step] = levels[i];
    strides.levels[i] = {count, local_step, remote_step};
  }
  return strides;
}

template <class T>
Blocks blocks_of(const Array& array) {
  Blocks blocks(array.shape(0));
  const auto* data = static_cast<const T*>(array.data());
  const std::int64_t row = array.stride(0), column = array.stride(1);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const T* of = data + static_cast<std::int64_t>(i) * row;
    const auto at = [&](std::int64_t k) {
      if (std::is_signed_v<T> && of[k * column] < 0)
        refuse("block " + std::to_string(i) + " has a negative number");
      return static_cast<std::uint64_t>(of[k * column]);
    };
    blocks[i] = {at(0), at(1), at(2)};
  }
  return blocks;
}

Blocks blocks_of(nb::handle value) {
  constexpr const char* kWhat =
      "shape: give Pages, Strides, or blocks as rows of (local offset, remote offset, bytes)";
  if (is_array(value)) {
    const Array array = array_of(value, "blocks", "int64 or uint64");
    if (array.device_type() != nb::device::cpu::value)
      refuse("blocks are on a GPU: move them to the CPU");
    if (array.ndim() != 2 || array.shape(1) != 3) refuse(kWhat);
    if (array.dtype() == nb::dtype<std::int64_t>()) return blocks_of<std::int64_t>(array);
    if (array.dtype() == nb::dtype<std::uint64_t>()) return blocks_of<std::uint64_t>(array);
    refuse("blocks in an array: give int64 or uint64");
  }
  Blocks blocks;
  if (!nb::hasattr(value, "__iter__")) throw nb::type_error(kWhat);
  for (const nb::handle each : nb::iter(value)) {
    Level block;
    if (!nb::try_cast(each, block)) throw nb::type_error(kWhat);
    blocks.push_back({std::get<0>(block), std::get<1>(block), std::get<2>(block)});
  }
  return blocks;
}

}  // namespace

Pages PyPages::row(std::size_t index) const {
  const std::size_t size = lists.size() / 2 / rows;
  const std::span all(lists);
  return {.page_bytes = page_bytes,
          .local_base = local_base,
          .remote_base = remote_base,
          .local_index = all.subspan(index * size, size),
          .remote_index = all.subspan((rows + index) * size, size)};
}

Pages PyPages::pages() const {
  Pages pages{.page_bytes = page_bytes,
              .local_base = local_base,
              .remote_base = remote_base,
              .local_index = gpu_local,
              .remote_index = gpu_remote,
              .indices_on_gpu = on_gpu.is_valid()};
  if (!pages.indices_on_gpu) {
    const std::span all(lists);
    pages.local_index = all.first(all.size() / 2);
    pages.remote_index = all.subspan(all.size() / 2);
  }
  return pages;
}

IndexList indices_of(nb::handle value, const char* what) {
  IndexList indices;
  if (append_indices(without_torch(value), what, indices) != 0)
    refuse(std::string(what) + " has two dimensions; give one");
  return indices;
}

ParsedShape shape_of(nb::handle value, std::uint64_t here, std::uint64_t there) {
  if (value.is_none()) {
    if (here != there)
      refuse("the local region has " + std::to_string(here) + " bytes and the remote one " +
             std::to_string(there) + ": say which part, [(local offset, remote offset, bytes)]");
    return Blocks{{0, 0, here}};
  }
  if (nb::isinstance<PyPages>(value)) {
    const auto* pages = nb::cast<const PyPages*>(value);
    if (pages->rows != 0)
      refuse("these Pages have a list for each of " + std::to_string(pages->rows) +
             " regions: give as many, local and remote");
    return pages;
  }
  if (nb::isinstance<Strides>(value)) return nb::cast<const Strides*>(value);
  return blocks_of(value);
}

void bind_shapes(nb::module_& module) {
  nb::class_<PyPages>(module, "Pages",
                      "Blocks of one size at page indices: page i is at base + index[i] * "
                      "page_bytes.\n\n"
                      "local_index, remote_index: equally many, as lists, numpy arrays or tensors "
                      "of whole numbers with one dimension, which are copied; or both int32 "
                      "tensors on the GPU that copies, which its kernel reads when it runs and "
                      "which must stay as they are until the transfer is done.\n"
                      "With two dimensions, arrays or tensors in host memory: row i is for the "
                      "i-th of as many local and remote regions.\n"
                      "ValueError: what is no page index, unequal lengths or rows.")
      .def(
          "__init__",
          [](PyPages* self, std::uint64_t page_bytes, nb::handle local_index,
             nb::handle remote_index, std::uint64_t local_base, std::uint64_t remote_base) {
            new (self)
                PyPages(make_pages(page_bytes, local_index, remote_index, local_base, remote_base));
          },
          "page_bytes"_a, "local_index"_a, "remote_index"_a, nb::kw_only(), "local_base"_a = 0,
          "remote_base"_a = 0)
      .def_ro("page_bytes", &PyPages::page_bytes)
      .def_ro("local_base", &PyPages::local_base)
      .def_ro("remote_base", &PyPages::remote_base)
      .def_prop_ro("indices_on_gpu", [](const PyPages& self) { return self.on_gpu.is_valid(); })
      .def("__len__", [](const PyPages& self) { return self.pages().local_index.size(); })
      .def("__repr__", [](const PyPages& self) {
        return "Pages(" + std::to_string(self.pages().local_index.size()) + " of " +
               std::to_string(self.page_bytes) + " bytes)";
      });
  nb::class_<Strides>(
      module, "Strides",
      "A block of `bytes` bytes at the two bases, repeated along up to three levels "
      "of (count, local step, remote step), steps in bytes: the heads that one side "
      "needs of tensors whose rows differ.")
      .def(
          "__init__",
          [](Strides* self, std::uint64_t bytes, const std::vector<Level>& levels,
             std::uint64_t local_base, std::uint64_t remote_base) {
            new (self) Strides(make_strides(bytes, levels, local_base, remote_base));
          },
          "bytes"_a, "levels"_a, nb::kw_only(), "local_base"_a = 0, "remote_base"_a = 0)
      .def_ro("bytes", &Strides::bytes)
      .def_ro("local_base", &Strides::local_base)
      .def_ro("remote_base", &Strides::remote_base)
      .def_prop_ro("levels",
                   [](const Strides& self) {
                     std::vector<Level> levels;
                     for (const Strides::Level& level : self.levels)
                       levels.emplace_back(level.count, level.local_step, level.remote_step);
                     return levels;
                   })
      .def("__repr__", [](const Strides& self) {
        return "Strides(" + std::to_string(self.bytes) + " bytes a block)";
      });
}

}  // namespace linkspan::python
