#include "transport/verbs/incoming_links.hpp"

#include <algorithm>
#include <utility>

#include "base/schema/verbs_generated.h"

namespace linkspan::transport::verbs {
namespace {

constexpr std::uint32_t kMax24 = 0xffffff;

Status corrupt_open(const char* what) { return {Code::corrupt, Scope::peer, what}; }

}  // namespace

Status IncomingLinks::on_open(std::span<const std::byte> bytes) {
  const auto* wire = verified<schema::VerbsOpen>(bytes);
  if (wire == nullptr) return corrupt_open("malformed open");
  if (wire->from_rail() >= there_.size() || wire->to_rail() >= here_.size())
    return corrupt_open("open of an unknown rail");
  if (wire->queue_pair() > kMax24 || wire->psn() > kMax24)
    return corrupt_open("open with a number beyond 24 bits");
  IncomingLink& link = links_[wire->from_rail()];
  if (wire->epoch() <= link.epoch) return corrupt_open("open of a former epoch");
  const RailAddress& there = there_[wire->from_rail()];
  Question question{.epoch = wire->epoch(),
                    .from = wire->from_rail(),
                    .to = wire->to_rail(),
                    .route = {.queue_pair = wire->queue_pair(),
                              .psn = wire->psn(),
                              .lid = wire->lid(),
                              .mtu = there.mtu,
                              .reads = wire->reads()}};
  if (!take_gid(wire->gid(), question.route.gid)) return corrupt_open("open with a malformed GID");
  link.epoch = wire->epoch();
  link.question = question;
  advance();
  return {};
}

/// Destroys the queue pair of the former epoch, then makes that of the question.
void IncomingLinks::begin(IncomingLink& link) {
  const Question& question = *link.question;
  link.call = DeviceCall::start(
      executor_, [former = link.queue_pair, rail = here_[question.to], route = question.route,
                  settings = settings_](DeviceCall& call) {
        if (former != nullptr)
          if (Status status = former->destroy(); !status.ok()) return status;
        if (route.queue_pair == 0) return Status();  // a fence alone
        const auto now = find_rail(rail.device, rail.port, settings);
        if (!now.ok()) return now.status();
        auto made = QueuePair::create(*now, 1);
        if (!made.ok()) return made.status();
        if (Status status = (*made)->answer(route, settings); !status.ok()) return status;
        call.queue_pair = *std::move(made);
        return Status();
      });
  link.queue_pair = nullptr;
  link.begun = std::exchange(link.question, std::nullopt);
}

void IncomingLinks::answer(const IncomingLink& link) {
  flatbuffers::FlatBufferBuilder out;
  const Status& status = link.call->status;
  const QueuePair* const made = link.call->queue_pair.get();
  const auto what = out.CreateString(status.what().substr(0, kMaxReason));
  const auto gid = vector_of(out, made != nullptr ? made->rail().gid : IbvGid{});
  out.Finish(schema::CreateVerbsOpened(
      out, link.begun->epoch, link.begun->from, made != nullptr ? made->number() : 0, gid,
      made != nullptr ? made->rail().lid : std::uint16_t{0},
      made != nullptr ? made->max_answered_reads() : std::uint8_t{1},
      static_cast<std::uint8_t>(status.code()), what));
  messages_.send(VerbsMessage::opened, out);
}

void IncomingLinks::advance() {
  for (IncomingLink& link : links_) {
    if (link.call != nullptr) {
      if (!link.call->is_done()) continue;
      if (link.begun) {
        answer(link);
        link.begun.reset();
        link.queue_pair = link.call->queue_pair;
      }
      link.call = nullptr;
    }
    if (ending_) {
      if (link.queue_pair == nullptr) continue;
      link.call = DeviceCall::destroy(executor_, link.queue_pair);
      link.queue_pair = nullptr;
    } else if (link.question) {
      begin(link);
    }
  }
}

void IncomingLinks::end() noexcept { ending_ = true; }

bool IncomingLinks::has_ended() const noexcept {
  return ending_ && std::ranges::none_of(links_, [](const IncomingLink& each) {
           return each.queue_pair != nullptr || each.call != nullptr;
         });
}

bool IncomingLinks::is_changing() const noexcept {
  return std::ranges::any_of(links_, [this](const IncomingLink& each) {
    return each.call != nullptr || (ending_ && each.queue_pair != nullptr);
  });
}

}  // namespace linkspan::transport::verbs
