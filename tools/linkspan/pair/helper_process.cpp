#include "tools/linkspan/pair/helper_process.hpp"

#include <sys/uio.h>

#include <optional>
#include <sstream>

#include "base/process.hpp"
#include "tools/linkspan/pair/child_process.hpp"
#include "tools/linkspan/pair/target_memories.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view kHexDigits = "0123456789abcdef";

Status bad_request(const std::string& request, Where at = {}) {
  return {Code::invalid_argument, Scope::request, "not understood: " + request, at};
}

class HelperProcess {
 public:
  HelperProcess() : gpus_(Gpus::find()) {}
  ~HelperProcess() { close(); }
  HelperProcess(const HelperProcess&) = delete;
  HelperProcess& operator=(const HelperProcess&) = delete;

  Result<std::string> handle(const std::string& request);

 private:
  static Result<std::string> peek(const std::string& request);
  Status open(const std::string& address);
  void close();

  Gpus gpus_;
  const std::uint64_t probe_value_ = base::random_u64();  // for the request "probe"
  std::optional<Engine> engine_;
  std::optional<TargetMemories> memories_;
};

Result<std::string> HelperProcess::handle(const std::string& request) {
  std::istringstream fields(request);
  std::string command, what;
  fields >> command >> what;
  if (command == "hello") return std::string();
  if (command == "probe")
    return std::to_string(reinterpret_cast<std::uint64_t>(&probe_value_)) + ' ' +
           std::to_string(probe_value_);
  if (command == "peek") return peek(request);
  if (command == "open") {
    if (Status s = open(what); !s.ok()) return s;
    return std::string();
  }
  if (!memories_) return bad_request(request);
  return memories_->handle(request);
}

Result<std::string> HelperProcess::peek(const std::string& request) {
  std::istringstream fields(request);
  std::string command;
  pid_t pid = 0;
  std::uint64_t address = 0;
  if (!(fields >> command >> pid >> address)) return bad_request(request);
  const auto value = read_u64(pid, address);
  if (!value.ok()) return value.status();
  return std::to_string(*value);
}

Status HelperProcess::open(const std::string& address) {
  auto engine = Engine::open({.name = "far end"});
  if (!engine.ok()) return engine.status();
  engine_.emplace(*std::move(engine));
  memories_.emplace(*engine_, gpus_);
  return engine_->listen(address);
}

/// Memory that is not quiet may still be written to, so it stays allocated until the process ends.
void HelperProcess::close() {
  if (engine_ && !engine_->close(3s).ok() && memories_) memories_->leak();
}

}  // namespace

std::string target_request(const char* command, Place place,
                           std::initializer_list<std::uint64_t> numbers) {
  std::string out = std::string(command) + ' ' + place.name();
  for (const std::uint64_t number : numbers) out += ' ' + std::to_string(number);
  return out;
}

Result<ExportedMemory> ExportedMemory::of(const Memory& memory) {
  ExportedMemory out{.address = memory.address()};
  if (const cuda::Device* device = memory.device()) {
    auto handle = cuda::export_ipc(*device, out.address);
    if (!handle.ok()) return handle.status();
    out.exported = true;
    out.handle = *handle;
    out.allocation_offset = memory.allocation_offset();
  }
  return out;
}

std::string ExportedMemory::encode() const {
  std::string text = std::to_string(address);
  if (!exported) return text;
  text += ' ';
  for (const std::byte byte : handle) {
    text += kHexDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kHexDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text + ' ' + std::to_string(allocation_offset);
}

Result<ExportedMemory> ExportedMemory::decode(const std::string& text) {
  std::istringstream fields(text);
  ExportedMemory out;
  std::string hex;
  if (!(fields >> out.address)) return bad_request(text);
  if (!(fields >> hex)) return out;
  if (hex.size() != 2 * out.handle.size() || !(fields >> out.allocation_offset))
    return bad_request(text);
  for (std::size_t i = 0; i < out.handle.size(); ++i) {
    const auto high = kHexDigits.find(hex[2 * i]), low = kHexDigits.find(hex[2 * i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return bad_request(text);
    out.handle[i] = static_cast<std::byte>(high * 16 + low);
  }
  out.exported = true;
  return out;
}

Result<std::uint64_t> read_u64(pid_t pid, std::uint64_t address) {
  std::uint64_t value = 0;
  const iovec here{&value, sizeof value};
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  const iovec there{reinterpret_cast<void*>(address), sizeof value};
  const ssize_t got = ::process_vm_readv(pid, &here, 1, &there, 1, 0);
  if (got < 0) return base::Fd::from("process_vm_readv", -1).status();
  if (got != sizeof value)
    return Status(Code::system, Scope::request, "process_vm_readv read less than a word");
  return value;
}

int run_helper_process() {
  HelperProcess helper;
  serve_parent([&helper](const std::string& request) { return helper.handle(request); });
  return 0;
}

}  // namespace linkspan::tool
