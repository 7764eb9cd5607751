#include "integrations/nccl/src/link.hpp"

#include <array>
#include <utility>

namespace linkspan::nccl {
namespace {

constexpr Duration kMeet = std::chrono::seconds(60);  // a process may be slow to start its threads
constexpr std::size_t kMaxRegions = 4096;             // then those of the past are looked up again

}  // namespace

Link::Link(Engine& engine, const std::string& address, Region mailbox, const Duration& timeout)
    : timeout_(timeout),
      mailbox_(std::move(mailbox)),
      meeting_(engine.connect_async(address, {.timeout = kMeet})) {}

Link::~Link() {
  meeting_.cancel();
  if (peer_.valid()) (void)peer_.close({});
}

Result<bool> Link::connected() {
  if (!peer_.valid()) {
    if (!meeting_.done()) return false;
    auto met = meeting_.wait({});
    if (!met.ok()) return met.status();
    peer_ = *std::move(met);
    mailbox_there_ = peer_.lookup_async(kMailbox, kMeet);
  }
  if (!mailbox_there_.done()) return false;
  const auto found = mailbox_there_.wait({});
  return found.ok() ? Result<bool>(true) : found.status();
}

Status Link::alive() const {
  if (peer_.state() == PeerState::up) return {};
  return {Code::disconnected, Scope::peer, "the process " + peer_.name() + " is gone"};
}

bool Link::has_ended() const {
  if (!peer_.valid()) return meeting_.done() && !meeting_.wait({}).ok();
  return peer_.state() != PeerState::up || (mailbox_there_.done() && !mailbox_there_.wait({}).ok());
}

TransferOptions Link::options(std::span<const std::byte> notification) const {
  TransferOptions options;
  options.deadline = timeout_;
  options.notification = notification;
  return options;
}

Result<Transfer> Link::send_small(const Frame& frame, std::span<const std::byte> message) {
  std::array<std::byte, kMaxNotification> all;  // NOLINT(*-member-init): only what is set is sent
  std::memcpy(all.data(), &frame, sizeof frame);
  if (!message.empty()) std::memcpy(all.data() + sizeof frame, message.data(), message.size());
  const auto there = mailbox_there_.wait({});
  if (!there.ok()) return there.status();
  const Block block{0, 0, mailbox_.bytes()};
  return peer_.write(mailbox_, *there, std::span(&block, 1),
                     options(std::span(all).first(sizeof frame + message.size())));
}

Result<Transfer> Link::write(const Region& local, std::uint64_t offset, const Frame& room,
                             const Frame& landed) {
  if (regions_.size() > kMaxRegions) regions_.clear();
  const auto [region, is_new] = regions_.try_emplace(room.region);
  if (is_new) region->second = peer_.lookup_async(name_of(room.region), kMeet);
  if (!region->second.done())
    return Status(Code::pending, Scope::request, "the region is looked up");
  const auto there = region->second.wait({});
  if (!there.ok()) return there.status();
  const Block block{offset, room.offset, landed.bytes};
  return peer_.write(local, *there, std::span(&block, 1), options(bytes_of(landed)));
}

}  // namespace linkspan::nccl
