// Fuzzes what is published about a region and about an Engine: Descriptors of the wire and of
// users, keys and addresses. Accepted input keeps the limits, and encoding it again gives the same.
#include "linkspan/descriptor.hpp"
#include "memory/descriptor.hpp"
#include "tests/fuzz/support.hpp"
#include "transport/local/key.hpp"

namespace linkspan::fuzz {
namespace {

void descriptor(std::span<const std::byte> bytes) {
  const auto taken = memory::decode(bytes);
  if (!taken.ok()) return demand(taken.status().code() == Code::corrupt, "another code");
  const memory::Descriptor& d = *taken;
  demand(d.name.size() <= memory::kMaxNameBytes && d.keys.size() <= memory::kMaxKeys, "a limit");
  for (const auto& key : d.keys) demand(key.bytes.size() <= memory::kMaxKeyBytes, "a key's limit");
  const std::vector<std::byte> wire = memory::encode(d);
  const auto again = memory::decode(wire);
  demand(again.ok() && memory::encode(*again) == wire, "not the same again");
}

void key(std::span<const std::byte> bytes) {
  const auto taken = transport::local::decode_key(bytes);
  if (!taken.ok()) return demand(taken.status().code() == Code::corrupt, "another code");
  demand(static_cast<std::size_t>(taken->kind) < kMemoryKinds, "an unknown kind");
  demand(taken->bytes <= ~std::uint64_t{0} - taken->allocation_offset, "it passes the end");
  const std::vector<std::byte> wire = encode(*taken);
  const auto again = transport::local::decode_key(wire);
  demand(again.ok() && encode(*again) == wire, "not the same again");
}

void address(std::span<const std::byte> bytes) {
  const auto taken = transport::local::decode_address(bytes);
  if (!taken.ok()) return demand(taken.status().code() == Code::corrupt, "another code");
  const auto again = transport::local::decode_address(encode(*taken));
  demand(again.ok() && again->proof == taken->proof && again->process == taken->process,
         "not the same again");
}

void users_descriptor(std::span<const std::byte> bytes) {
  const auto taken = Descriptor::parse(bytes);
  const Code code = taken.status().code();
  if (!taken.ok())
    return demand(code == Code::corrupt || code == Code::unsupported, "another code");
  demand(taken->regions.size() <= memory::kMaxSet, "a limit");
  const auto again = Descriptor::parse(taken->serialize());
  demand(again.ok() && *again == *taken, "not the same again");
}

}  // namespace
}  // namespace linkspan::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace linkspan::fuzz;
  Input input(data, size);
  const std::uint8_t which = input.byte();
  const std::vector<std::byte> bytes = input.rest();
  if (which % 4 == 0) descriptor(bytes);
  if (which % 4 == 1) key(bytes);
  if (which % 4 == 2) address(bytes);
  if (which % 4 == 3) users_descriptor(bytes);
  return 0;
}
