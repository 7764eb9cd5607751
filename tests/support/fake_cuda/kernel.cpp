// tests/support/fake_cuda/kernel.cpp - modules, functions and the host twins of the kernels.
//
// A module is any image. A function is found by name among the twins; its parameters are copied at
// the launch, as the driver does. An address that a kernel may not touch loses the device.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <span>
#include <string_view>
#include <thread>

#include "tests/support/fake_cuda/fake_cuda.hpp"
#include "tests/support/fake_cuda/host_code.hpp"

namespace linkspan::cuda::fake {
namespace {

/// Each as the launch gave it, from its first byte on.
using Parameters = std::array<std::array<std::uint64_t, 512>, 4>;

struct Kernel {
  std::string_view name;
  std::array<std::size_t, 4> parameter_bytes;  // zero: there is none
  CUresult (*run)(const Device& device, const Parameters& parameters);
};

struct Piece {
  std::uint64_t to, from, bytes;
};

auto access(const Device& device, std::uint64_t address, std::uint64_t bytes) {
  const Lock lock(world().mutex);
  return kernel_range(device, address, bytes);
}

/// Copies the pieces one after the other, each whole; calls stopped() if it leaves out some because
/// of the abort word. The real kernels do not order them.
template <class PieceOf, class Stopped>
CUresult copy_all(const Device& device, std::uint64_t count, PieceOf piece_of, std::uint64_t abort,
                  const Stopped& stopped) {
  const auto abort_word = access(device, abort, sizeof(unsigned));
  if (!abort_word) return CUDA_ERROR_ILLEGAL_ADDRESS;
  const std::atomic_ref stop(*reinterpret_cast<unsigned*>(abort_word->view));
  for (std::uint64_t i = 0; i < count && !world().ended; ++i) {
    if (stop.load(std::memory_order_acquire) != 0) {
      stopped();
      break;
    }
    const Piece piece = piece_of(i);
    if (piece.bytes == 0) continue;
    const auto to = access(device, piece.to, piece.bytes);
    const auto from = access(device, piece.from, piece.bytes);
    if (!to || !from) return CUDA_ERROR_ILLEGAL_ADDRESS;
    std::memmove(to->view, from->view, piece.bytes);
    if (!live(*to) || !live(*from)) return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  return CUDA_SUCCESS;
}

/// Copies the same way; stores 1 to the word at `aborted` if it leaves out some.
template <class PieceOf>
CUresult copy_all(const Device& device, std::uint64_t count, PieceOf piece_of, std::uint64_t abort,
                  std::uint64_t aborted) {
  const auto word = access(device, aborted, sizeof(unsigned));
  if (!word) return CUDA_ERROR_ILLEGAL_ADDRESS;
  return copy_all(device, count, piece_of, abort,
                  [&word] { std::atomic_ref(*reinterpret_cast<unsigned*>(word->view)).store(1); });
}

CUresult copy_blocks(const Device& device, const Parameters& parameters) {
  const std::uint64_t count = parameters[1][0];
  const auto pieces = access(device, parameters[0][0], count * sizeof(Piece));
  if (!pieces) return CUDA_ERROR_ILLEGAL_ADDRESS;
  const auto piece_of = [&pieces](std::uint64_t i) {
    Piece piece;
    std::memcpy(&piece, pieces->view + i * sizeof piece, sizeof piece);
    return piece;
  };
  return copy_all(device, count, piece_of, parameters[2][0], parameters[3][0]);
}

struct Bases {
  std::uint64_t to, from;
};

/// Copies the pages of each of `pairs`, whose lists are `list_step` entries apart; if there are no
/// pairs, of the bases in the parameter.
CUresult copy_pages_of(const Device& device, const Parameters& parameters,
                       std::span<const Bases> pairs, std::uint32_t list_step = 0) {
  struct Pages {
    Bases bases;
    std::uint64_t page_bytes, part_bytes, to_index, from_index;
    std::uint32_t to_last, from_last, count, parts;
  } pages;
  std::memcpy(&pages, parameters[0].data(), sizeof pages);
  if (pairs.empty()) pairs = {&pages.bases, 1};
  const std::uint64_t of_each = std::uint64_t{pages.count} * pages.parts;
  const std::size_t list = (pages.count + (pairs.size() - 1) * list_step) * sizeof(std::uint32_t);
  const auto to = access(device, pages.to_index, list);
  const auto from = access(device, pages.from_index, list);
  const auto refused = access(device, parameters[3][0], sizeof(std::uint64_t));
  const bool refuses = (pages.to_last & pages.from_last) != ~std::uint32_t{0};
  if (!to || !from || (refuses && !refused)) return CUDA_ERROR_ILLEGAL_ADDRESS;
  const auto entry = [](const auto& indices, std::uint64_t i) {
    std::uint32_t index = 0;
    std::memcpy(&index, indices->view + i * sizeof index, sizeof index);
    return index;
  };
  const auto piece_of = [&](std::uint64_t i) {
    const std::uint64_t page = i % of_each / pages.parts;
    const std::uint64_t offset = i % pages.parts * pages.part_bytes;
    const Bases& bases = pairs[i / of_each];
    const std::uint64_t begin = i / of_each * list_step;
    const std::uint64_t to_page = entry(to, begin + page), from_page = entry(from, begin + page);
    const bool of_target = to_page > pages.to_last;
    if (of_target || from_page > pages.from_last) {
      const std::uint64_t word = std::uint64_t{1} << 63 | std::uint64_t{of_target} << 62 |
                                 page << 32 | (of_target ? to_page : from_page);
      std::atomic_ref(*reinterpret_cast<std::uint64_t*>(refused->view)).store(word);
      return Piece{};
    }
    return Piece{.to = bases.to + to_page * pages.page_bytes + offset,
                 .from = bases.from + from_page * pages.page_bytes + offset,
                 .bytes = std::min(pages.part_bytes, pages.page_bytes - offset)};
  };
  return copy_all(device, pairs.size() * of_each, piece_of, parameters[1][0], parameters[2][0]);
}

CUresult copy_pages(const Device& device, const Parameters& parameters) {
  return copy_pages_of(device, parameters, {});
}

CUresult copy_pages_of_pairs(const Device& device, const Parameters& parameters) {
  constexpr std::size_t kPairsAt = 8, kBasesAt = 9;  // words: behind the pages; behind the count
  std::array<Bases, 240> pairs{};
  const auto count = static_cast<std::uint32_t>(parameters[0][kPairsAt]);
  const auto list_step = static_cast<std::uint32_t>(parameters[0][kPairsAt] >> 32);
  std::memcpy(pairs.data(), &parameters[0][kBasesAt], sizeof pairs);
  return copy_pages_of(device, parameters, std::span(pairs).first(count), list_step);
}

/// Simulates kernels/copy_captured.cu, all CTAs as one.
CUresult copy_captured(const Device& device, const Parameters& parameters) {
  struct Gate {
    std::uint64_t closed_and_entered, left;
  };
  constexpr std::uint64_t kRefused = std::uint64_t{1} << 63;
  struct Counts {
    std::uint64_t completed, refused;
  };
  struct Captured {
    std::uint64_t list, gate, counts;
    std::uint32_t count, ctas;
  } p;
  std::memcpy(&p, parameters[0].data(), sizeof p);
  const auto gate_memory = access(device, p.gate, sizeof(Gate));
  const auto counts_memory = access(device, p.counts, sizeof(Counts));
  const auto list = access(device, p.list, std::max<std::uint64_t>(p.count, 1) * sizeof(Piece));
  if (!gate_memory || !counts_memory || !list) return CUDA_ERROR_ILLEGAL_ADDRESS;
  Gate& gate = *reinterpret_cast<Gate*>(gate_memory->view);
  Counts& counts = *reinterpret_cast<Counts*>(counts_memory->view);
  const std::atomic_ref left(gate.left);
  const auto refuse = [&left] { left.fetch_or(kRefused); };
  const auto entered = static_cast<std::uint64_t>(p.ctas) << 32;
  if (static_cast<std::uint32_t>(std::atomic_ref(gate.closed_and_entered).fetch_add(entered)) != 0)
    refuse();
  const auto piece_of = [&list](std::uint64_t i) {
    Piece piece;
    std::memcpy(&piece, list->view + i * sizeof piece, sizeof piece);
    return piece;
  };
  const CUresult r = copy_all(device, p.count, piece_of, p.gate, refuse);
  if (r != CUDA_SUCCESS) return r;
  const bool refused = (left.fetch_add(p.ctas) & kRefused) != 0;
  std::atomic_ref(refused ? counts.refused : counts.completed).fetch_add(1);
  return CUDA_SUCCESS;
}

/// Simulates kernels/unpack.cu. The real kernel does not order two overlapping entries; here the
/// later one wins.
CUresult unpack(const Device& device, const Parameters& parameters) {
  struct Entry {
    std::uint32_t from, bytes_and_pool;
    std::uint64_t to;
  };
  struct Unpack {
    std::uint64_t list, pools[32];
    std::uint32_t count;
  } p;
  std::memcpy(&p, parameters[0].data(), sizeof p);
  const auto list = access(device, p.list, p.count * sizeof(Entry));
  if (!list) return CUDA_ERROR_ILLEGAL_ADDRESS;
  for (std::uint64_t i = 0; i < p.count && !world().ended; ++i) {
    Entry entry;
    std::memcpy(&entry, list->view + i * sizeof entry, sizeof entry);
    const std::uint32_t bytes = entry.bytes_and_pool & 0xffffff;
    if (bytes == 0) continue;
    const auto to = access(device, entry.to, bytes);
    const auto from = access(device, p.pools[entry.bytes_and_pool >> 24 & 31] + entry.from, bytes);
    if (!to || !from) return CUDA_ERROR_ILLEGAL_ADDRESS;
    std::memmove(to->view, from->view, bytes);
    if (!live(*to) || !live(*from)) return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  return CUDA_SUCCESS;
}

/// Simulates kernels/resident.cu: polls for the next command, ends by the clock.
CUresult resident(const Device& device, const Parameters& parameters) {
  constexpr std::size_t kLineWords = 8, kCommandWords = 5;
  struct Resident {
    std::uint64_t commands, done, left, next, launch, idle, stay;
    std::uint32_t lines;
  } p;
  std::memcpy(&p, parameters[0].data(), sizeof p);
  const auto lines = access(device, p.commands, p.lines * kLineWords * sizeof(std::uint64_t));
  const auto done = access(device, p.done, sizeof(std::uint64_t));
  const auto left = access(device, p.left, sizeof(std::uint64_t));
  if (!lines || !done || !left) return CUDA_ERROR_ILLEGAL_ADDRESS;
  const auto tell = [](const auto& word, std::uint64_t value) {
    std::atomic_ref(*reinterpret_cast<std::uint64_t*>(word->view))
        .store(value, std::memory_order_release);
  };
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  auto last = begin;
  for (std::uint64_t number = p.next; !world().ended;) {
    const auto now = Clock::now();
    if (now - last > std::chrono::nanoseconds(p.idle) ||
        now - begin > std::chrono::nanoseconds(p.stay))
      break;
    std::array<std::uint64_t, kCommandWords> words{};
    auto* const line =
        reinterpret_cast<std::uint64_t*>(lines->view) + number % p.lines * kLineWords;
    for (std::size_t i = 0; i < kCommandWords; ++i)
      words[i] = std::atomic_ref(line[i]).load(std::memory_order_acquire);
    if (!std::ranges::all_of(words, [&](std::uint64_t word) {
          return word >> 32 == static_cast<std::uint32_t>(number);
        })) {
      std::this_thread::yield();
      continue;
    }
    const auto half = [&words](std::size_t i) { return words[i] & 0xffffffff; };
    if (half(4) == 0xffffffff) break;
    if (half(4) != 0) {
      const auto to = access(device, half(0) | half(1) << 32, half(4));
      const auto from = access(device, half(2) | half(3) << 32, half(4));
      if (!to || !from) return CUDA_ERROR_ILLEGAL_ADDRESS;
      std::memmove(to->view, from->view, half(4));
      if (!live(*to) || !live(*from)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    tell(done, number++);
    last = Clock::now();
  }
  tell(left, p.launch);
  return CUDA_SUCCESS;
}

/// Runs a program's own kernel, compiled for the host. The caller is responsible for its accesses.
CUresult host_code(const Device& device, const Parameters& parameters) {
  const auto reach = [](const void* of, std::uint64_t address) -> void* {
    const auto found = access(*static_cast<const Device*>(of), address, 1);
    return found ? found->view : nullptr;
  };
  const auto run = reinterpret_cast<HostCode>(parameters[0][0]);
  run(reach, &device, reinterpret_cast<void*>(parameters[1][0]));
  return CUDA_SUCCESS;
}

constexpr int kMaxThreads = 512;

const std::array kKernels{
    Kernel{.name = "linkspan_copy_blocks", .parameter_bytes = {8, 4, 8, 8}, .run = copy_blocks},
    Kernel{.name = "linkspan_copy_pages", .parameter_bytes = {64, 8, 8, 8}, .run = copy_pages},
    Kernel{.name = "linkspan_copy_pages_of_pairs",
           .parameter_bytes = {3912, 8, 8, 8},
           .run = copy_pages_of_pairs},
    Kernel{.name = "linkspan_copy_captured", .parameter_bytes = {32}, .run = copy_captured},
    Kernel{.name = "linkspan_resident", .parameter_bytes = {64}, .run = resident},
    Kernel{.name = "linkspan_unpack", .parameter_bytes = {272}, .run = unpack},
    Kernel{.name = kHostCode, .parameter_bytes = {8, 8}, .run = host_code}};

/// A kernel in a module, whose context is the only one that may launch it.
struct Function {
  const Kernel& kernel;
  const Device& device;
};
using Module = std::vector<Function>;

/// Returns all modules. Never destroyed, like the World. Called under the lock.
std::map<CUmodule, std::unique_ptr<Module>>& modules() {
  static auto& all = *new std::map<CUmodule, std::unique_ptr<Module>>;
  return all;
}

/// Null: no function, or one of a module that was unloaded.
const Function* find_function(CUfunction handle) {
  for (const auto& [id, module] : modules())
    for (const Function& function : *module)
      if (&function == reinterpret_cast<const Function*>(handle)) return &function;
  return nullptr;
}

}  // namespace

CUresult cuModuleLoadData(CUmodule* id, const void* image) {
  const Call call;
  if (call.error != CUDA_SUCCESS) return call.error;
  if (image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto module = std::make_unique<Module>();
  for (const Kernel& kernel : kKernels) module->push_back({kernel, *call.device});
  *id = reinterpret_cast<CUmodule>(module.get());
  modules()[*id] = std::move(module);
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule id) {
  const Call call;
  if (call.error != CUDA_SUCCESS) return call.error;
  return modules().erase(id) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuModuleGetFunction(CUfunction* handle, CUmodule id, const char* name) {
  const Call call;
  if (call.error != CUDA_SUCCESS) return call.error;
  const auto module = modules().find(id);
  if (module == modules().end()) return CUDA_ERROR_INVALID_HANDLE;
  for (Function& function : *module->second) {
    if (function.kernel.name != name) continue;
    *handle = reinterpret_cast<CUfunction>(&function);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_FOUND;
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  const Call call;
  if (call.error != CUDA_SUCCESS) return call.error;
  if (find_function(function) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK) return CUDA_ERROR_INVALID_VALUE;
  *value = kMaxThreads;
  return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction function) {
  const Call call;
  if (call.error != CUDA_SUCCESS) return call.error;
  return find_function(function) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned,
                        CUstream stream, void** parameters, void**) {
  Call call(stream);
  if (call.error != CUDA_SUCCESS) return call.error;
  const Function* function = find_function(handle);
  if (function == nullptr || &function->device != call.device) return CUDA_ERROR_INVALID_HANDLE;
  const std::uint64_t threads = std::uint64_t{block_x} * block_y * block_z;
  if (grid_x == 0 || grid_y == 0 || grid_z == 0 || threads == 0 || threads > kMaxThreads)
    return CUDA_ERROR_INVALID_VALUE;
  const Kernel& kernel = function->kernel;
  Parameters values{};
  for (std::size_t i = 0; i < kernel.parameter_bytes.size(); ++i)
    if (kernel.parameter_bytes[i] != 0)
      std::memcpy(values[i].data(), parameters[i], kernel.parameter_bytes[i]);
  return submit(call, {.after = nullptr,
                       .work = [&kernel, values,
                                device = call.device] { return kernel.run(*device, values); },
                       .mark = nullptr});
}

}  // namespace linkspan::cuda::fake
