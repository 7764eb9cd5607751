#include "integrations/nixl/src/registered_memory.hpp"

#include <optional>

namespace linkspan::nixl {
namespace {

constexpr Duration kEnd = std::chrono::milliseconds(200), kEndLater = std::chrono::seconds(10);

/// Asks for the end of a registration until it has come.
struct EndTask {
  const Services& services;
  Region region;
  std::string memory;
  std::shared_ptr<std::atomic<int>> ending;
  std::optional<Future<void>> call{};

  std::optional<base::Time> operator()() {
    if (call && call->done()) {
      Status end = call->wait({});
      if (end.ok() || end.code() == Code::invalid_argument || end.code() == Code::not_found) {
        --*ending;
        return std::nullopt;
      }
      services.log.write(base::Level::warning, memory + " is still used: " + end.to_string());
      call.reset();
    }
    if (!call) {
      call = services.engine.invalidate_async(region, kEndLater);
      services.tasks.watch(*call);
    }
    return base::Clock::steady().now() + kEndLater;
  }
};

}  // namespace

Result<std::unique_ptr<LocalMemory>> Registrations::add(const abi::Descriptor& memory,
                                                        abi::Memory kind) {
  if (kind != abi::Memory::dram && kind != abi::Memory::vram)
    return Status(Code::unsupported, Scope::request,
                  "memory of kind " + std::to_string(static_cast<int>(kind)) +
                      ": this backend takes DRAM and VRAM");
  if (memory.bytes == 0)
    return Status(Code::invalid_argument, Scope::request,
                  "a registration of 0 bytes at " + std::to_string(memory.address));
  auto region = services_.engine.register_memory(
      reinterpret_cast<void*>(memory.address), memory.bytes);  // NOLINT(performance-no-int-to-ptr)
  if (!region.ok()) return region.status();
  MemoryAddress where{"nixl/" + std::to_string(++next_name_), memory.address, memory.bytes};
  Status made;
  if ((region->kind() == MemoryKind::device) != (kind == abi::Memory::vram))
    made = Status(Code::invalid_argument, Scope::request,
                  std::to_string(memory.bytes) + " bytes at " + std::to_string(memory.address) +
                      " were registered as " + (kind == abi::Memory::vram ? "VRAM" : "DRAM") +
                      " and are " + std::string(name_of(region->kind())) + " memory");
  else
    made = services_.engine.publish(where.published, *region);
  if (!made.ok()) {
    (void)services_.engine.deregister(*region, {});  // no peer knows it
    return made;
  }
  return std::make_unique<LocalMemory>(*std::move(region), std::move(where));
}

Status Registrations::end(const LocalMemory& memory) {
  Status end = services_.engine.invalidate(memory.region, *ending_ == 0 ? kEnd : Duration{});
  if (end.code() != Code::busy && end.code() != Code::timed_out) return end;
  ++*ending_;
  end_later(memory, end);
  return {Code::pending, Scope::request, end.what()};
}

void Registrations::end_later(const LocalMemory& memory, const Status& used) {
  std::string text = std::to_string(memory.bytes) + " bytes of " +
                     std::string(name_of(memory.region.kind())) + " memory at " +
                     std::to_string(memory.address);
  services_.log.write(base::Level::warning, text + " were deregistered while they were used (" +
                                                used.what() + "): keep them until that has ended");
  services_.tasks.add(EndTask{services_, memory.region, std::move(text), ending_});
}

}  // namespace linkspan::nixl
