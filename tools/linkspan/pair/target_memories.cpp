#include "tools/linkspan/pair/target_memories.hpp"

#include <sstream>

#include "base/clock.hpp"
#include "tools/linkspan/pair/helper_process.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kMaxUntrustedBytes = 4 * kGiB;  // limit of one memory
// limit of one transfer, as for --pages and --blocks
constexpr std::uint64_t kMaxPieces = 1'000'000;

Status bad_request(const std::string& request, Where at = {}) {
  return {Code::invalid_argument, Scope::request, "not understood: " + request, at};
}

}  // namespace

Result<std::string> TargetMemories::handle(const std::string& request) {
  std::istringstream fields(request);
  std::string command, what;
  fields >> command >> what;
  if (command == "hello") return std::string();
  if (command == "memory") {
    const auto place = Place::parse(what);
    std::uint64_t bytes = 0;
    if (!place || !(fields >> bytes)) return bad_request(request);
    return add(*place, bytes);
  }
  Status status = bad_request(request);
  if (command == "meet" || command == "echo" ||
      (!is_untrusted_ && (command == "ping" || command == "pong")))
    status = echo_responder_.handle(request);
  const auto memory = memories_.find(what);
  if (memory != memories_.end() && command == "arrived") {
    status = arrived(*memory->second, fields);
  } else if (memory != memories_.end() && (command == "fill" || command == "check")) {
    std::uint64_t offset = 0, bytes = 0, seed = 0, from = 0;
    if (!(fields >> offset >> bytes >> seed >> from)) return bad_request(request);
    status = command == "fill" ? memory->second->fill(offset, bytes, seed, from)
                               : memory->second->check(offset, bytes, seed, from);
  }
  if (!status.ok()) return status;
  return std::string();
}

Status TargetMemories::arrived(Memory& memory, std::istream& fields) const {
  std::uint64_t base = 0, sent = 0, before = 0;
  std::string shape;
  if (!(fields >> base >> sent >> before) || !std::getline(fields, shape))
    return bad_request("arrived");
  const auto known = Shape::decode(shape);
  if (!known || (is_untrusted_ && (known->count > kMaxPieces || known->bytes > memory.bytes())))
    return bad_request("arrived" + shape);
  return memory.check(base, Layout::of(*known).tiles(base, sent, before));
}

Result<std::string> TargetMemories::add(Place place, std::uint64_t bytes) {
  if (is_untrusted_ &&
      (bytes > kMaxUntrustedBytes || place.region != 0 || memories_.contains(place.name())))
    return Status(Code::no_resource, Scope::request,
                  "at most 4 GiB of a kind of memory, and once; ask for less");
  auto memory = Memory::create(engine_, gpus_, place, bytes);
  if (!memory.ok()) return memory.status();
  // Stored first, so that a failure frees no memory that peers know of.
  const Memory& stored = *(memories_[place.name()] = *std::move(memory));
  if (Status s = engine_.publish(place.name(), stored.region()); !s.ok()) return s;
  const auto far =
      is_untrusted_ ? Result<ExportedMemory>(ExportedMemory{}) : ExportedMemory::of(stored);
  if (!far.ok()) return far.status();
  return far->encode();
}

bool TargetMemories::close(Duration timeout) {
  const auto deadline = base::Deadline::in(timeout);
  std::erase_if(memories_, [&](const auto& named) {
    return engine_.deregister(named.second->region(), deadline.left()).ok();
  });
  return memories_.empty();
}

void TargetMemories::leak() {
  for (auto& [name, memory] : memories_) (void)memory.release();
  memories_.clear();
}

}  // namespace linkspan::tool
