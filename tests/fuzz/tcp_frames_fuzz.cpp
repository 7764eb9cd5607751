// Fuzzes the frames of a data connection, head after head without their data, sent to a
// ConnectionGroup with a write and a read of ours in flight.
//
// Finds, beside what the sanitizers see: a place outside the region or the read, more or fewer
// bytes than the frame has, a batch that ends twice or never, a code that a hostile peer cannot
// cause.
#include <array>
#include <set>

#include "copy/staging.hpp"
#include "memory/registry.hpp"
#include "tests/fuzz/support.hpp"
#include "transport/tcp/connection_group.hpp"
#include "transport/tcp/data_connection.hpp"

namespace linkspan::fuzz {
namespace {

using namespace transport;       // NOLINT(google-build-using-namespace)
using namespace transport::tcp;  // NOLINT(google-build-using-namespace)

constexpr std::uint64_t kUs = 11, kBytes = 8192;

class Nobody final : public transport::Channel {
 public:
  Status send(std::uint16_t, std::span<const std::byte>, std::span<base::Fd>) override {
    return {};
  }
  bool connects() const noexcept override { return false; }
  Status open_data_connection() override { return {}; }
  void fail_peer(const Status&) override {}
  transport::SessionKey session_key() const noexcept override { return key_; }
  transport::PeerProcess process() const noexcept override { return {}; }
  std::string_view peer_name() const noexcept override { return "nobody"; }
  void deliver_notification(std::vector<std::byte> notification, std::uint64_t) override {
    demand(!notification.empty() && notification.size() <= kMaxNotification,
           "a notification that is none");
  }

 private:
  const std::array<std::byte, 32> key_{};
};

class World {
 public:
  World() {
    auto added = registry_.add(memory_.data(), kBytes, {.read = true, .write = true}, false);
    demand(added.ok(), "no region");
    region_ = *std::move(added);
    auto key = table_.add(region_->region());
    demand(key.ok(), "no key");
    key_ = *decode_key(key->bytes);
  }

  void run(std::span<const std::byte> input) {
    Nobody channel;
    ConnectionGroup group({.published = &table_,
                           .channel = &channel,
                           .incarnation = kUs,
                           .chunk = kMinChunk,
                           .inflight = 4});
    auto out = std::make_shared<Outgoing>();
    out->id = 1;
    out->use = table_.use(key_.id.serial);
    out->extents = {{address(), 0, 5000}};
    out->notification.resize(3);
    group.put(out);
    auto in = std::make_shared<Incoming>();
    in->type = tcp::FrameType::get;
    in->id = 2;
    in->use = table_.use(key_.id.serial);
    in->extents = {{address() + 100, 0, 50}, {address() + 1000, 50, 3000}};
    in->requested = 3050;
    group.get(in, {.type = tcp::FrameType::get, .id = 2, .spans = {{0, 3050}}});
    send(group);
    while (step(group, input)) send(group);
    group.fail(Status(Code::canceled, Scope::peer, "over"));
    demand(out->result.ended && in->result.ended && group.is_closed(), "a batch that never ends");
    in.reset();
    out.reset();
  }

 private:
  std::uint64_t address() const { return reinterpret_cast<std::uintptr_t>(memory_.data()); }
  void check(const std::vector<Extent>& extents, std::uint64_t bytes) const {
    for (const Extent& extent : extents) {
      demand(extent.bytes != 0 && extent.here >= address() &&
                 memory::fits(extent.here - address(), extent.bytes, kBytes),
             "outside the region");
      bytes -= extent.bytes;
    }
    demand(bytes == 0, "another number of bytes");
  }
  void send(ConnectionGroup& group) const {
    while (const auto chunk = group.next_chunk()) {
      check(chunk->extents, chunk->bytes);
      demand(head_bytes(encode(chunk->head)).ok(), "a frame of ours that is none");
      group.sent(*chunk, {});
    }
  }
  /// Returns false if the group is to fail, or no input is left.
  bool step(ConnectionGroup& group, std::span<const std::byte>& input) const {
    const auto size = head_bytes(input);
    if (!size.ok()) return refused(size.status());
    if (!*size || input.size() < **size) return false;
    auto head = decode(input.first(**size));
    if (!head.ok()) return refused(head.status());
    demand(encode(*head).size() == **size, "it does not come back");
    input = input.subspan(**size);
    if (head->serial % 2 == 1) {  // what no fuzzer guesses
      head->serial = key_.id.serial;
      head->token = key_.token;
    }
    if (head->type != tcp::FrameType::put && head->type != tcp::FrameType::data) {
      const Status status = group.on_frame(*head);
      return status.ok() || refused(status);
    }
    const auto destination = group.resolve_destination(*head);
    if (!destination.ok()) return refused(destination.status());
    demand(destination->bytes == head->data, "another length");
    if (!destination->extents.empty()) check(destination->extents, head->data);
    if (const auto answer = group.data_landed(*destination->of, head->data, {}))
      demand(answer->head.type == tcp::FrameType::ended && answer->head.id == head->id,
             "another answer");
    return true;
  }
  static bool refused(const Status& status) {
    demand(status.code() == Code::corrupt && !status.what().empty(), "another code");
    return false;
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(kBytes);
  memory::Registry registry_{kUs, nullptr};
  WireRegionTable table_{nullptr};
  std::shared_ptr<const memory::Registration> region_;
  WireKey key_;
};

}  // namespace
}  // namespace linkspan::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static linkspan::fuzz::World world;
  world.run({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
