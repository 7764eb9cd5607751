// tests/conformance/verbs.cpp - the verbs transport of this process over simulated network cards,
// or real ones, tried with one kind of memory.
#include "base/process.hpp"
#include "tests/conformance/subjects.hpp"
#include "tests/conformance/wire_pair.hpp"
#include "transport/verbs/verbs_transport.hpp"

namespace linkspan::test {
namespace {

namespace verbs = transport::verbs;

Result<HereEnd::Parts> verbs_parts(MemoryKind kind) {
  const Kind& of_kind = kind == MemoryKind::device ? kKinds[0] : kKinds[3];
  if (Status status = kinds_by(kVerbs, {of_kind}); !status.ok()) return status;
  // Queue pairs use it until the process ends.
  static const auto library = verbs::Library::load(verbs_library().c_str());
  if (!library.ok()) return library.status();
  const std::uint64_t incarnation = base::random_u64();
  HereEnd::Parts parts;
  parts.kind = kind;
  parts.registry = std::make_unique<memory::Registry>(incarnation, topology());
  auto rails =
      verbs::open_rails(*library, {}, base::Log(base::Level::warning, base::stderr_sink()));
  if (!rails.ok()) return rails.status();
  if (rails->empty())
    return Status(Code::internal, Scope::process, "the simulated library has no active port");
  parts.transport = std::make_unique<verbs::VerbsTransport>(verbs::VerbsOptions{
      .rails = *std::move(rails), .topology = topology(), .incarnation = incarnation});
  return parts;
}

}  // namespace

Result<HereEnd::Parts> verbs_host() { return verbs_parts(MemoryKind::host); }
Result<HereEnd::Parts> verbs_device() { return verbs_parts(MemoryKind::device); }

}  // namespace linkspan::test
