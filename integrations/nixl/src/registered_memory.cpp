#include "integrations/nixl/src/registered_memory.hpp"

#include <optional>

namespace linkspan::nixl {
namespace {

constexpr Duration kEnd = std::chrono::milliseconds(200), kEndLater = std::chrono::seconds(10);
constexpr Duration kPause = std::chrono::seconds(1);  // after a call that ended nothing

/// Asks for the end of a registration until it has come. It is called after each future that is
/// done, also of others, so it keeps the pause itself.
struct EndTask {
  const Services& services;
  Region region;
  std::string memory;
  std::shared_ptr<std::atomic<int>> ending;
  std::optional<Future<void>> call{};
  base::Time next{};  // there is no call before it

  std::optional<base::Time> operator()() {
    const base::Time now = base::Clock::steady().now();
    if (!call && now < next) return next;
    if (!call) {
      call = services.engine.invalidate_async(region, kEndLater);
      if (!call->done()) services.tasks.watch(*call);
    }
    if (!call->done()) return now + kEndLater;
    Status end = call->wait({});
    call.reset();
    if (end.ok() || end.code() == Code::invalid_argument || end.code() == Code::not_found) {
      --*ending;
      return std::nullopt;
    }
    if (end.code() != Code::no_resource)  // else too many others are asked for
      services.log.write(base::Level::warning, memory + " is still used: " + end.to_string());
    return next = now + kPause;
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
