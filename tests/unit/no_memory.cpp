#include "tests/support/no_memory.hpp"

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

namespace linkspan::test {
namespace {

std::atomic<const char*> without{nullptr};
std::atomic<unsigned> every_nth{1};
std::atomic<std::size_t> asked_for{0}, refused{0};

bool refuses() noexcept {
  const char* const name = without.load();
  if (name == nullptr) return false;
  std::array<char, 16> ours{};
  if (::pthread_getname_np(::pthread_self(), ours.data(), ours.size()) != 0 ||
      std::strcmp(ours.data(), name) != 0 || ++asked_for % every_nth != 0)
    return false;
  ++refused;
  return true;
}

[[maybe_unused]] void* allocate(std::size_t bytes) noexcept {
  return refuses() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
}

[[maybe_unused]] void* allocate_or_throw(std::size_t bytes) {
  void* const memory = allocate(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

NoMemory::NoMemory(const char* thread, unsigned every) {
  asked_for = refused = 0;
  every_nth = every;
  without = thread;
}
NoMemory::~NoMemory() { without = nullptr; }
std::size_t NoMemory::failed() noexcept { return refused; }

}  // namespace linkspan::test

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define LINKSPAN_WRAPS_NEW
#endif
#endif

#if defined(LINKSPAN_WRAPS_NEW)
// ThreadSanitizer's operator new cannot be replaced: the linker leads the program's calls to these.
extern "C" {
void* __real__Znwm(std::size_t bytes);   // NOLINT
void* __real__Znam(std::size_t bytes);   // NOLINT
void* __wrap__Znwm(std::size_t bytes) {  // NOLINT
  if (linkspan::test::refuses()) throw std::bad_alloc();
  return __real__Znwm(bytes);
}
void* __wrap__Znam(std::size_t bytes) {  // NOLINT
  if (linkspan::test::refuses()) throw std::bad_alloc();
  return __real__Znam(bytes);
}
}
#else
// Replaces the allocation functions of the standard library and of the sanitizers, which see malloc
// and free. Not those for over-aligned types, because a sanitizer expects each pair from one
// source.
void* operator new(std::size_t bytes) { return linkspan::test::allocate_or_throw(bytes); }
void* operator new[](std::size_t bytes) { return linkspan::test::allocate_or_throw(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return linkspan::test::allocate(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return linkspan::test::allocate(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
#endif
