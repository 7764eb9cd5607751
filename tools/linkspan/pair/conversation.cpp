#include "tools/linkspan/pair/conversation.hpp"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.hpp"
#include "tools/linkspan/command_line/output.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kWordsTag = 1;
constexpr Duration kWhole = 24h * 7;  // words may be waited for as long
constexpr Duration kRefusalIn = 2s, kSettledIn = 3s;
constexpr std::string_view kError = "error ";

base::Deadline after(Duration timeout) {
  return base::Deadline::after(base::Clock::steady(), timeout);
}

Status late(const char* what, Duration patience) {
  return {Code::timed_out, Scope::peer,
          std::string("waited in vain for ") + what + ": nothing came for " +
              std::to_string(patience / 1s) + " s (--timeout)"};
}

Status refusal_of(std::string_view words) {
  return {Code::canceled, Scope::peer,
          "the other side: " + printable(std::string(words.substr(kError.size())))};
}

bool is_under_way(const Transfer& one) { return one.id() != 0 && !one.done(); }

}  // namespace

Result<std::unique_ptr<Conversation>> Conversation::begin(Peer peer, Duration patience) {
  auto queue = CompletionQueue::create();
  if (!queue.ok()) return queue.status();
  std::unique_ptr<Conversation> out(new Conversation(std::move(peer), patience, *std::move(queue)));
  if (Status s = out->listen(); !s.ok()) return s;
  return out;
}

Conversation::~Conversation() {
  if (buffers_ != nullptr && !settle(kSettledIn)) (void)buffers_.release();
}

Status Conversation::listen() {
  auto heard = peer_.recv(kWordsTag, buffers_->heard.data(), kMaxWords, {.deadline = kWhole});
  if (!heard.ok()) return heard.status();
  heard_ = *std::move(heard);
  return queue_.add(heard_, 0);
}

Status Conversation::tell(std::string_view words) {
  if (is_under_way(told_)) return late("the other side to listen", patience_);
  words = words.substr(0, kMaxWords);
  std::copy(words.begin(), words.end(), buffers_->told.begin());
  auto told = peer_.send(kWordsTag, buffers_->told.data(), words.size(), {.deadline = patience_});
  if (!told.ok()) return told.status();
  told_ = *std::move(told);
  if (Status s = queue_.add(told_, 0); !s.ok()) return s;
  return until(told_, patience_, "the other side to listen");
}

Result<std::string> Conversation::hear(Duration more) {
  if (!hearing_.ok()) return hearing_;
  if (Status s = until(heard_, patience_ + more, "an answer"); !s.ok()) return s;
  std::string words(buffers_->heard.data(), heard_.bytes());
  hearing_ = listen();  // it may have been its last word
  if (words.starts_with(kError)) return refusal_of(words);
  return words;
}

/// Of what was heard and not yet taken.
Status Conversation::refusal() const {
  if (!heard_.done() || !heard_.status().ok()) return {};
  const std::string_view words(buffers_->heard.data(), heard_.bytes());
  return words.starts_with(kError) ? refusal_of(words) : Status();
}

void Conversation::refuse(const Status& why) {
  if (is_under_way(told_)) return;
  const std::string words = std::string(kError) + why.what();
  const std::size_t bytes = std::min(words.size(), kMaxWords);
  std::copy_n(words.begin(), bytes, buffers_->told.begin());
  auto told = peer_.send(kWordsTag, buffers_->told.data(), bytes, {.deadline = kRefusalIn});
  if (!told.ok()) return;
  told_ = *std::move(told);
  (void)told_.wait(kRefusalIn);
}

/// Sleeps until `one` is quiet, or the other side refuses, or it is late.
Status Conversation::until(const Transfer& one, Duration patience, const char* what) {
  const base::Deadline deadline = after(patience);
  while (!one.done()) {
    if (Status s = refusal(); !s.ok()) return s;
    if (deadline.passed()) return late(what, patience);
    pollfd look{.fd = queue_.fd(), .events = POLLIN, .revents = 0};
    (void)::poll(&look, 1, deadline.left_ms());
    (void)queue_.take();
  }
  const Status end = one.status();
  if (end.ok()) return {};
  if (Status s = refusal(); !s.ok()) return s;
  if (end.code() == Code::timed_out) return late(what, patience);
  return {end.code(), Scope::peer, end.what()};
}

bool Conversation::settle(Duration timeout) {
  const base::Deadline deadline = after(timeout);
  std::vector<Transfer> all{told_, heard_};
  std::erase_if(all, [](const Transfer& one) { return !is_under_way(one); });
  for (const Transfer& one : all) (void)one.cancel();
  bool quiet = true;
  for (const Transfer& one : all) {
    (void)one.wait(deadline.left());
    quiet = quiet && one.done();
  }
  return quiet;
}

}  // namespace linkspan::tool
