// tests/conformance/loopback.cpp - the reference transport: two ends in one process, memcpy in
// progress(). It does what the contract demands in the plainest way and keeps the suite honest.
//
// Each progress() copies one block of every batch, so that cancel and close find work half done.
#include <array>
#include <cstring>
#include <list>
#include <mutex>
#include <optional>

#include "base/process.hpp"
#include "tests/conformance/subjects.hpp"

namespace linkspan::test {
namespace {

using memory::fits;
using transport::PeerProcess, transport::RemoteKey, transport::BatchSummary;

constexpr const char* kPath = "loopback+memcpy";
constexpr Capabilities kCapabilities{.local_kinds = {MemoryKind::host, MemoryKind::shared},
                                     .initiator_reads = true,
                                     .orders_streams = false,
                                     .gpu_indices = false,
                                     .leaves_host = false,
                                     .max_batch_bytes = 8u << 20,
                                     .max_batch_blocks = 8192,
                                     .max_batch_pages = 8192,
                                     .max_inflight = 64};

/// Shared by both ends in the place of a wire. The mutex is held for the copy of one block at most.
struct Wire {
  std::mutex mutex;
  std::map<std::uint64_t, const memory::Region*> published;  // by token; the token is the key
  std::uint64_t tokens = base::random_u64();  // a key of another wire means nothing here
  std::array<bool, 2> connected{};
};

struct LoopRemote final : Mapping {
  LoopRemote(std::uint64_t t, const memory::Region& region)
      : token(t), size(region.bytes()), peers(region.facts().peers) {}
  std::uint64_t bytes() const noexcept override { return size; }
  Permissions permissions() const noexcept override { return peers; }
  bool alive() const noexcept override { return true; }

  const std::uint64_t token, size;
  const Permissions peers;
};

/// Returns the address, which is host memory because publish() accepts no other.
std::byte* pointer(const memory::Region& region, std::uint64_t offset) {
  return reinterpret_cast<std::byte*>(region.facts().address + offset);  // NOLINT(*-int-to-ptr)
}

/// Returns the batch as checked blocks. No other code uses an offset from outside.
std::optional<std::vector<Block>> checked(const Batch& batch) {
  const std::uint64_t here = batch.local->bytes(), there = batch.remote->bytes();
  std::vector<Block> blocks;
  if (const auto* list = std::get_if<std::span<const Block>>(&batch.shape)) {
    blocks.assign(list->begin(), list->end());
  } else {
    const auto& p = std::get<Pages>(batch.shape);
    if (p.local_index.size() != p.remote_index.size()) return std::nullopt;
    const auto whole = [&p](std::uint64_t base, std::uint32_t index, std::uint64_t size) {
      return base <= size && (p.page_bytes == 0 || index < (size - base) / p.page_bytes);
    };
    for (std::size_t i = 0; i < p.local_index.size(); ++i) {
      const std::uint32_t l = p.local_index[i], r = p.remote_index[i];
      if (!whole(p.local_base, l, here) || !whole(p.remote_base, r, there)) return std::nullopt;
      blocks.push_back(
          {p.local_base + l * p.page_bytes, p.remote_base + r * p.page_bytes, p.page_bytes});
    }
  }
  std::uint64_t left = kCapabilities.max_batch_bytes;
  if (blocks.size() > kCapabilities.max_batch_blocks) return std::nullopt;
  for (const Block& b : blocks) {
    if (!fits(b.local_offset, b.bytes, here) || !fits(b.remote_offset, b.bytes, there) ||
        b.bytes > left)
      return std::nullopt;
    left -= b.bytes;
  }
  return blocks;
}

class LoopEndpoint final : public Endpoint {
 public:
  LoopEndpoint(std::shared_ptr<Wire> wire, Deadline deadline)
      : wire_(std::move(wire)), connect_by_(deadline) {}

  Result<transport::Posted> post(const Batch& batch) override {
    if (closed_) return Status(Code::canceled, Scope::peer, "endpoint is closed");
    if (gone_) return Status(Code::disconnected, Scope::peer, "the other end is gone");
    if (!connected()) {
      if (!connect_by_.passed()) return Status::no_resource();
      return Status(Code::timed_out, Scope::peer, "the peer did not connect in time");
    }
    if (slots_.size() >= kCapabilities.max_inflight) return Status::no_resource();
    if (batch.streams.after != nullptr)
      return Status(Code::unsupported, Scope::request, "loopback knows no streams");
    if (batch.hints.checksum)
      return Status(Code::unsupported, Scope::request, "loopback makes no checksums");
    const auto& remote = static_cast<const LoopRemote&>(*batch.remote);
    if (!(batch.op == Op::write ? remote.peers.write : remote.peers.read))
      return Status(Code::permission_denied, Scope::request, "the peer does not permit it");
    const auto* pages = std::get_if<Pages>(&batch.shape);
    if (pages != nullptr && pages->indices_on_gpu)
      return Status(Code::unsupported, Scope::request, "loopback reads no GPU's memory");
    auto blocks = checked(batch);
    if (!blocks) return Status(Code::invalid_argument, Scope::request, "malformed batch");
    slots_.push_back({.op = batch.op,
                      .local = batch.local,
                      .token = remote.token,
                      .blocks = *std::move(blocks),
                      .cookie = batch.cookie});
    return transport::Posted{.path = {.path = kPath, .by_peer = false}};
  }

  void cancel(std::uint64_t cookie) override {
    for (Slot& slot : slots_)
      if (slot.cookie == cookie) slot.canceled = true;
  }

  std::size_t progress(CompletionSink& sink) override {
    std::size_t completed = 0;
    for (auto slot = slots_.begin(); slot != slots_.end();) {
      std::optional<Status> end = step(*slot);
      if (!end) {
        ++slot;
        continue;
      }
      sink.complete({slot->cookie, *std::move(end)});
      slot = slots_.erase(slot);
      ++completed;
    }
    return completed;
  }

  PollHint poll_hint() const override {
    return {slots_.empty() ? PollHint::When::idle : PollHint::When::now, {}};
  }
  Explanation explain(Op, const memory::Region&, const Mapping&, BatchSummary) const override {
    return {.path = kPath,
            .executor = "here",
            .reason = "both ends are in this process",
            .expected_gbps = 0,
            .refused = {}};
  }

  std::string describe_paths() const override { return "one process"; }

  Status on_message(std::uint16_t op, std::span<const std::byte>, std::span<Fd>) override {
    return Status(Code::unsupported, Scope::request, "loopback has no op " + std::to_string(op));
  }

  void close() override { closed_ = true; }
  /// The other end runs no copy for this one, so what is in flight runs to its own end.
  void peer_terminated() override { gone_ = true; }
  bool drained() const override { return gone_; }

 private:
  struct Slot {
    Op op;
    const memory::Region* local;
    std::uint64_t token;
    std::vector<Block> blocks;
    std::uint64_t cookie;
    std::size_t next = 0;  // blocks before it are copied
    bool canceled = false;
  };

  bool connected() {
    const std::scoped_lock lock(wire_->mutex);
    return wire_->connected[0] && wire_->connected[1];
  }

  /// Copies one block. Has a Status once no byte of the slot will ever move again.
  std::optional<Status> step(Slot& slot) {
    if (closed_ || slot.canceled) return Status(Code::canceled, Scope::request, "canceled");
    if (slot.next < slot.blocks.size()) {
      const Block& b = slot.blocks[slot.next++];
      const std::scoped_lock lock(wire_->mutex);
      const auto target = wire_->published.find(slot.token);
      if (target == wire_->published.end())
        return Status(Code::unreachable, Scope::request, "the peer has retracted the region");
      std::byte* here = pointer(*slot.local, b.local_offset);
      std::byte* there = pointer(*target->second, b.remote_offset);
      if (slot.op == Op::read) std::swap(here, there);
      std::memcpy(there, here, b.bytes);
    }
    if (slot.next < slot.blocks.size()) return std::nullopt;
    return Status();
  }

  std::shared_ptr<Wire> wire_;  // with both Transports
  Deadline connect_by_;
  std::list<Slot> slots_;
  bool closed_ = false, gone_ = false;
};

class Loopback final : public Transport {
 public:
  Loopback(std::shared_ptr<Wire> wire, std::uint8_t end) : wire_(std::move(wire)), end_(end) {}
  std::string_view name() const noexcept override { return "loopback"; }
  const Capabilities& capabilities() const noexcept override { return kCapabilities; }

  Result<PublishedKey> publish(const memory::Region& region) override {
    if (!kCapabilities.local_kinds.contains(region.facts().kind))
      return Status(Code::unsupported, Scope::request, "loopback copies by memcpy");
    const std::scoped_lock lock(wire_->mutex);
    const std::uint64_t token = ++wire_->tokens;
    wire_->published[token] = &region;
    PublishedKey key;
    for (int shift = 0; shift < 64; shift += 8)
      key.bytes.push_back(static_cast<std::byte>(token >> shift));
    return key;
  }
  Status retract(const memory::Region& region, bool) override {
    const std::scoped_lock lock(wire_->mutex);
    std::erase_if(wire_->published, [&](const auto& entry) { return entry.second == &region; });
    return {};
  }
  Status forget(const memory::Region& region) override { return retract(region, false); }
  Result<std::unique_ptr<Mapping>> import_key(RemoteKey key, Deadline deadline) override {
    if (deadline.passed()) return Status(Code::timed_out, Scope::request, "import");
    if (key.bytes.size() != 8 || !key.fds.empty())
      return Status(Code::corrupt, Scope::request, "key of a wrong size");
    std::uint64_t token = 0;
    for (std::size_t i = 0; i < 8; ++i)
      token |= std::to_integer<std::uint64_t>(key.bytes[i]) << 8 * i;
    const std::scoped_lock lock(wire_->mutex);
    const auto found = wire_->published.find(token);
    if (found == wire_->published.end())
      return Status(Code::not_found, Scope::request, "no such region");
    return std::unique_ptr<Mapping>(std::make_unique<LoopRemote>(token, *found->second));
  }

  std::vector<transport::CopyCount> copies() const override { return {}; }
  std::vector<std::byte> address() const override { return {std::byte{end_}}; }
  Result<std::unique_ptr<Endpoint>> connect(std::span<const std::byte> address, Channel&,
                                            Deadline deadline) override {
    if (address.size() != 1 || address[0] != std::byte(1 - end_))
      return Status(Code::corrupt, Scope::request, "not the other end's address");
    const std::scoped_lock lock(wire_->mutex);
    wire_->connected[end_] = true;
    return std::unique_ptr<Endpoint>(std::make_unique<LoopEndpoint>(wire_, deadline));
  }

 private:
  std::shared_ptr<Wire> wire_;  // with the other end and both Endpoints
  std::uint8_t end_;
};

std::unique_ptr<HereEnd> end_of(const std::shared_ptr<Wire>& wire, std::uint8_t end) {
  return std::make_unique<HereEnd>(
      HereEnd::Parts{.registry = std::make_unique<memory::Registry>(1 + end, nullptr),
                     .transport = std::make_unique<Loopback>(wire, end),
                     .kind = MemoryKind::host});
}

}  // namespace

Result<Ends> open_loopback(const Subject&) {
  auto wire = std::make_shared<Wire>();
  return Ends{.far = end_of(wire, 1), .near = end_of(wire, 0), .line = nullptr};
}

}  // namespace linkspan::test
