#include "base/no_memory.hpp"

namespace linkspan::base {
namespace {

// Created when the library is loaded, which fails if there is no memory for them.
const Status of_request{Code::system, Scope::request, "no memory"};  // NOLINT(cert-err58-cpp)
const Status of_peer{Code::system, Scope::peer, "no memory"};        // NOLINT(cert-err58-cpp)

}  // namespace

const Status& no_memory(Scope scope) noexcept {
  return scope == Scope::peer ? of_peer : of_request;
}

}  // namespace linkspan::base
