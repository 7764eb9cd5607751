// tests/support/driver_shim/control.hpp - orders errors, delays and bans from the shim that this
// process runs over, and reads which objects were created and not destroyed.
//
// counts.hpp counts calls.
// Threads: any thread; an Own belongs to the thread that made it.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace linkspan::test {

/// Numbers of objects of each kind that the driver created and did not destroy.
using DriverBalance = std::map<std::string, long long>;

class DriverShim {
 public:
  static constexpr const char* kNeeded = "needs the counting shim";

  /// Loads the shim, without a call of the driver. The result is false if the process runs over no
  /// shim.
  static DriverShim find() {
    DriverShim found;
    const char* file = std::getenv("LINKSPAN_CUDA_LIBRARY");
    void* library = file != nullptr ? dlopen(file, RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (library == nullptr) return found;
    const auto ask = [library](const char* name, auto& function) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    };
    ask("linkspan_shim_order", found.order_);
    ask("linkspan_shim_own", found.own_);
    ask("linkspan_shim_struck", found.struck_);
    ask("linkspan_shim_forbidden", found.forbidden_);
    ask("linkspan_shim_traced", found.traced_);
    ask("linkspan_shim_balance", found.balance_);
    return found;
  }
  explicit operator bool() const noexcept { return balance_ != nullptr; }

  /// Gives an order of rules.hpp.
  void order(const std::string& text) const {
    if (order_(text.c_str()) == 0) throw std::invalid_argument(text);
  }
  /// Return the entries that an order let fail, and the forbidden ones that were called.
  std::string struck() const { return text_of(struck_); }
  std::string forbidden() const { return text_of(forbidden_); }
  /// Returns the names of the calls since "trace".
  std::vector<std::string> traced() const {
    std::vector<std::string> calls;
    while (const char* name = traced_(calls.size())) calls.emplace_back(name);
    return calls;
  }
  DriverBalance balance() const {
    DriverBalance all;
    long long count = 0;
    for (unsigned i = 0; const char* name = balance_(i, &count); ++i) all[name] = count;
    return all;
  }

  /// While it exists, no order applies to this thread, and its objects are not counted.
  class Own {
   public:
    explicit Own(const DriverShim& shim) : own_(shim.own_) { set(1); }
    Own(const Own&) = delete;
    Own& operator=(const Own&) = delete;
    ~Own() { set(0); }

   private:
    void set(int own) const {
      if (own_ != nullptr) own_(own);
    }
    void (*own_)(int);
  };

 private:
  static std::string text_of(unsigned (*read)(char*, unsigned)) {
    std::string text(read(nullptr, 0), '\0');
    text.resize(
        std::min<std::size_t>(text.size(), read(text.data(), static_cast<unsigned>(text.size()))));
    return text;
  }

  int (*order_)(const char*) = nullptr;
  void (*own_)(int) = nullptr;
  unsigned (*struck_)(char*, unsigned) = nullptr;
  unsigned (*forbidden_)(char*, unsigned) = nullptr;
  const char* (*traced_)(unsigned long long) = nullptr;
  const char* (*balance_)(unsigned, long long*) = nullptr;
};

/// Returns only what differs, such as "streams +2, events -1", or nothing.
inline std::string difference(const DriverBalance& before, const DriverBalance& after) {
  std::string text;
  for (const auto& [name, count] : after) {
    const auto found = before.find(name);
    const long long more = count - (found != before.end() ? found->second : 0);
    if (more == 0) continue;
    text += (text.empty() ? "" : ", ") + name + (more > 0 ? " +" : " ") + std::to_string(more);
  }
  return text;
}

}  // namespace linkspan::test
