#include "tools/linkspan/pair/far_end.hpp"

#include <sys/uio.h>

#include <optional>
#include <sstream>

#include "base/process.hpp"
#include "tools/linkspan/pair/child_process.hpp"
#include "tools/linkspan/pair/far_memories.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view kHexDigits = "0123456789abcdef";

Status bad_request(const std::string& request, Where at = {}) {
  return {Code::invalid_argument, Scope::request, "not understood: " + request, at};
}

class FarEnd {
 public:
  FarEnd() : gpus_(Gpus::find()) {}
  ~FarEnd() { close(); }
  FarEnd(const FarEnd&) = delete;
  FarEnd& operator=(const FarEnd&) = delete;

  Result<std::string> handle(const std::string& request);

 private:
  static Result<std::string> peek(const std::string& request);
  Status open(const std::string& address);
  void close();

  Gpus gpus_;
  const std::uint64_t word_ = base::random_u64();  // for probe
  std::optional<Engine> engine_;
  std::optional<FarMemories> memories_;
};

Result<std::string> FarEnd::handle(const std::string& request) {
  std::istringstream words(request);
  std::string verb, what;
  words >> verb >> what;
  if (verb == "hello") return std::string();
  if (verb == "probe")
    return std::to_string(reinterpret_cast<std::uint64_t>(&word_)) + ' ' + std::to_string(word_);
  if (verb == "peek") return peek(request);
  if (verb == "open") {
    if (Status s = open(what); !s.ok()) return s;
    return std::string();
  }
  if (!memories_) return bad_request(request);
  return memories_->handle(request);
}

Result<std::string> FarEnd::peek(const std::string& request) {
  std::istringstream words(request);
  std::string verb;
  pid_t pid = 0;
  std::uint64_t address = 0;
  if (!(words >> verb >> pid >> address)) return bad_request(request);
  const auto word = read_word(pid, address);
  if (!word.ok()) return word.status();
  return std::to_string(*word);
}

Status FarEnd::open(const std::string& address) {
  auto engine = Engine::open({.name = "far end"});
  if (!engine.ok()) return engine.status();
  engine_.emplace(*std::move(engine));
  memories_.emplace(*engine_, gpus_);
  return engine_->listen(address);
}

/// What is not quiet may still be written to: it stays until the process ends, which is soon.
void FarEnd::close() {
  if (engine_ && !engine_->close(3s).ok() && memories_) memories_->leave();
}

}  // namespace

std::string far_request(const char* verb, Place place,
                        std::initializer_list<std::uint64_t> numbers) {
  std::string out = std::string(verb) + ' ' + place.name();
  for (const std::uint64_t number : numbers) out += ' ' + std::to_string(number);
  return out;
}

Result<FarMemory> FarMemory::of(const Memory& memory) {
  FarMemory out{.address = memory.address()};
  if (const cuda::Device* device = memory.device()) {
    auto handle = cuda::export_ipc(*device, out.address);
    if (!handle.ok()) return handle.status();
    out.exported = true;
    out.handle = *handle;
    out.lead = memory.lead();
  }
  return out;
}

std::string FarMemory::encode() const {
  std::string text = std::to_string(address);
  if (!exported) return text;
  text += ' ';
  for (const std::byte byte : handle) {
    text += kHexDigits[std::to_integer<unsigned>(byte) >> 4];
    text += kHexDigits[std::to_integer<unsigned>(byte) & 15];
  }
  return text + ' ' + std::to_string(lead);
}

Result<FarMemory> FarMemory::decode(const std::string& text) {
  std::istringstream words(text);
  FarMemory out;
  std::string hex;
  if (!(words >> out.address)) return bad_request(text);
  if (!(words >> hex)) return out;
  if (hex.size() != 2 * out.handle.size() || !(words >> out.lead)) return bad_request(text);
  for (std::size_t i = 0; i < out.handle.size(); ++i) {
    const auto high = kHexDigits.find(hex[2 * i]), low = kHexDigits.find(hex[2 * i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return bad_request(text);
    out.handle[i] = static_cast<std::byte>(high * 16 + low);
  }
  out.exported = true;
  return out;
}

Result<std::uint64_t> read_word(pid_t pid, std::uint64_t address) {
  std::uint64_t word = 0;
  const iovec here{&word, sizeof word};
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  const iovec there{reinterpret_cast<void*>(address), sizeof word};
  const ssize_t got = ::process_vm_readv(pid, &here, 1, &there, 1, 0);
  if (got < 0) return base::Fd::from("process_vm_readv", -1).status();
  if (got != sizeof word)
    return Status(Code::system, Scope::request, "process_vm_readv read less than a word");
  return word;
}

int run_far_end() {
  FarEnd far_end;
  serve_parent([&far_end](const std::string& request) { return far_end.handle(request); });
  return 0;
}

}  // namespace linkspan::tool
