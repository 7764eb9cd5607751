#include "tools/linkspan/pair/far_memories.hpp"

#include <sstream>

#include "base/clock.hpp"
#include "tools/linkspan/pair/far_end.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kMaxOfStranger = 4 * kGiB;  // of one memory
constexpr std::uint64_t kMaxPieces = 1'000'000;     // of one transfer, as --pages and --blocks

Status bad_request(const std::string& request, Where at = {}) {
  return {Code::invalid_argument, Scope::request, "not understood: " + request, at};
}

}  // namespace

Result<std::string> FarMemories::handle(const std::string& request) {
  std::istringstream words(request);
  std::string verb, what;
  words >> verb >> what;
  if (verb == "hello") return std::string();
  if (verb == "memory") {
    const auto place = Place::parse(what);
    std::uint64_t bytes = 0;
    if (!place || !(words >> bytes)) return bad_request(request);
    return add(*place, bytes);
  }
  Status status = bad_request(request);
  if (verb == "meet" || verb == "echo" || (!stranger_ && (verb == "ping" || verb == "pong")))
    status = answering_.handle(request);
  const auto memory = memories_.find(what);
  if (memory != memories_.end() && verb == "arrived") {
    status = arrived(*memory->second, words);
  } else if (memory != memories_.end() && (verb == "fill" || verb == "check")) {
    std::uint64_t offset = 0, bytes = 0, seed = 0, from = 0;
    if (!(words >> offset >> bytes >> seed >> from)) return bad_request(request);
    status = verb == "fill" ? memory->second->fill(offset, bytes, seed, from)
                            : memory->second->check(offset, bytes, seed, from);
  }
  if (!status.ok()) return status;
  return std::string();
}

Status FarMemories::arrived(Memory& memory, std::istream& words) const {
  std::uint64_t base = 0, sent = 0, before = 0;
  std::string shape;
  if (!(words >> base >> sent >> before) || !std::getline(words, shape))
    return bad_request("arrived");
  const auto known = Shape::decode(shape);
  if (!known || (stranger_ && (known->count > kMaxPieces || known->bytes > memory.bytes())))
    return bad_request("arrived" + shape);
  return memory.check(base, Layout::of(*known).tiles(base, sent, before));
}

Result<std::string> FarMemories::add(Place place, std::uint64_t bytes) {
  if (stranger_ && (bytes > kMaxOfStranger || memories_.contains(place.name())))
    return Status(Code::no_resource, Scope::request,
                  "at most 4 GiB of a kind of memory, and once; ask for less");
  auto memory = Memory::create(engine_, gpus_, place, bytes);
  if (!memory.ok()) return memory.status();
  // Kept first: nothing that peers know of is freed by a failure.
  const Memory& kept = *(memories_[place.name()] = *std::move(memory));
  if (Status s = engine_.publish(place.name(), kept.region()); !s.ok()) return s;
  const auto far = stranger_ ? Result<FarMemory>(FarMemory{}) : FarMemory::of(kept);
  if (!far.ok()) return far.status();
  return far->encode();
}

bool FarMemories::close(Duration timeout) {
  const auto deadline = base::Deadline::after(base::Clock::steady(), timeout);
  std::erase_if(memories_, [&](const auto& named) {
    return engine_.deregister(named.second->region(), deadline.left()).ok();
  });
  return memories_.empty();
}

void FarMemories::leave() {
  for (auto& [name, memory] : memories_) (void)memory.release();
  memories_.clear();
}

}  // namespace linkspan::tool
