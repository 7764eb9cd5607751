#include "transport/verbs/incoming_links.hpp"

#include <algorithm>
#include <utility>

#include "base/schema/verbs_generated.h"

namespace linkspan::transport::verbs {
namespace {

constexpr std::uint32_t kMax24 = 0xffffff;
constexpr std::size_t kMaxReason = 512;

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
  link.epoch = wire->epoch();
  link.question = Question{.epoch = wire->epoch(),
                           .from = wire->from_rail(),
                           .to = wire->to_rail(),
                           .psn = wire->psn(),
                           .queue_pair = wire->queue_pair(),
                           .reads = wire->reads()};
  advance();
  return {};
}

/// Destroys the queue pair of the former epoch, then makes that of the question.
void IncomingLinks::begin(IncomingLink& link) {
  const Question question = *std::exchange(link.question, std::nullopt);
  const RailAddress& there = there_[question.from];
  const QueuePairRoute route{.queue_pair = question.queue_pair,
                             .psn = question.psn,
                             .gid = there.gid,
                             .lid = there.lid,
                             .mtu = there.mtu,
                             .reads = question.reads};
  link.begun = question;
  link.call = DeviceCall::start(
      executor_, [former = std::exchange(link.queue_pair, nullptr), rail = here_[question.to],
                  route, settings = settings_](DeviceCall& call) {
        if (former != nullptr)
          if (Status status = former->destroy(); !status.ok()) return status;
        if (route.queue_pair == 0) return Status();  // a fence alone
        auto made = QueuePair::create(rail, 1);
        if (!made.ok()) return made.status();
        if (Status status = (*made)->answer(route, settings); !status.ok()) return status;
        call.queue_pair = *std::move(made);
        return Status();
      });
}

void IncomingLinks::answer(IncomingLink& link) {
  const Question question = *std::exchange(link.begun, std::nullopt);
  flatbuffers::FlatBufferBuilder out;
  const Status& status = link.call->status;
  const auto what = out.CreateString(status.what().substr(0, kMaxReason));
  const QueuePair* const made = link.call->queue_pair.get();
  out.Finish(schema::CreateVerbsOpened(out, question.epoch, question.from,
                                       made != nullptr ? made->number() : 0,
                                       made != nullptr ? made->max_answered_reads() : 1,
                                       static_cast<std::uint8_t>(status.code()), what));
  messages_.send(VerbsMessage::opened, out);
}

void IncomingLinks::advance() {
  for (IncomingLink& link : links_) {
    if (link.call != nullptr) {
      if (!link.call->is_done()) continue;
      if (link.begun) {
        answer(link);
        link.queue_pair = link.call->queue_pair;
      }
      link.call = nullptr;
    }
    if (link.fencing && link.queue_pair != nullptr)
      link.call = DeviceCall::destroy(executor_, std::exchange(link.queue_pair, nullptr));
    link.fencing = link.fencing && link.call != nullptr;
    if (link.call == nullptr && link.question) begin(link);
  }
}

void IncomingLinks::fence() noexcept {
  for (IncomingLink& link : links_)
    link.fencing = link.queue_pair != nullptr || link.call != nullptr;
}

bool IncomingLinks::fenced() const noexcept {
  return std::ranges::none_of(links_, [](const IncomingLink& each) { return each.fencing; });
}

bool IncomingLinks::has_queue_pairs() const noexcept {
  return std::ranges::any_of(links_, [](const IncomingLink& each) {
    return each.queue_pair != nullptr || each.call != nullptr;
  });
}

bool IncomingLinks::is_changing() const noexcept {
  return std::ranges::any_of(
      links_, [](const IncomingLink& each) { return each.fencing || each.call != nullptr; });
}

}  // namespace linkspan::transport::verbs
