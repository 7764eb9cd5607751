#include "compat/ipc/ipc_log.hpp"

#include <string>

namespace linkspan::compat::ipc {
namespace {

/// A GPU copies a message in one of its streams.
constexpr unsigned kStreams = 1;

const char* side(bool sends) { return sends ? "[send_ipc] " : "[recv_ipc] "; }
const char* place(MemoryKind kind) { return kind == MemoryKind::device ? "GPU" : "CPU"; }
const char* end_of(MemoryKind kind) { return kind == MemoryKind::device ? "Device" : "Host"; }

/// The memory kinds of both sides.
struct Ends {
  MemoryKind from, to;
  bool push() const { return to == MemoryKind::device; }
  const char* model() const { return push() ? "PUSH" : "PULL"; }
  std::string copy_kind() const { return std::string(end_of(from)) + "To" + end_of(to); }
};
Ends ends_of(const engine::MessageState& x) {
  return x.sends ? Ends{x.kind, x.offer.memory.kind} : Ends{x.offer.memory.kind, x.kind};
}

}  // namespace

void LogObserver::begun(const base::Log& log, std::uint64_t peer, std::uint64_t bytes, int device,
                        const engine::MessageState& x) const {
  if (!log.enabled(base::Level::info)) return;
  std::string line = side(x.sends) + ("conn_id=" + std::to_string(peer)) +
                     " size=" + std::to_string(bytes) + (x.sends ? " sender" : " receiver") +
                     "_mem=";
  line += device < 0 ? "CPU" : "GPU dev=" + std::to_string(device);
  log.write(base::Level::info, line);
}

void LogObserver::matched(const base::Log& log, const engine::MessageState& x) const {
  if (!log.enabled(base::Level::info)) return;
  const Ends ends = ends_of(x);
  const auto say = [&](const std::string& text) {
    log.write(base::Level::info, side(x.sends) + text);
  };
  say(std::string("Memory negotiation complete: ") + place(ends.from) + " -> " + place(ends.to));
  say(std::string("Using ") + ends.model() + " model (" +
      (ends.push() ? std::string("sender writes to receiver's ") + place(ends.to)
                   : std::string("receiver reads from sender's ") + place(ends.from)) +
      ")");
  if (x.sends && ends.push()) {
    say("Copy kind: " + ends.copy_kind());
    say("Using " + std::to_string(kStreams) + " stream(s) for transfer");
  } else if (!x.sends && !ends.push()) {
    say(std::string("Copying ") + place(ends.from) + "->" + place(ends.to) + " using " +
        ends.copy_kind());
  }
}

void LogObserver::ended(const base::Log& log, const engine::MessageState& x) const {
  if (!log.enabled(base::Level::info)) return;
  log.write(
      base::Level::info,
      side(x.sends) + (ends_of(x).model() + std::string(" model transfer completed successfully")));
}

}  // namespace linkspan::compat::ipc
