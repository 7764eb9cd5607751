#include "store/request_store.hpp"

#include <poll.h>

#include <utility>

namespace linkspan {

Store::~Store() = default;

namespace store {
namespace {

/// Pause before a wait begins again after another connection took what had come.
constexpr int kLostRaceMs = 1;
/// A text that compare_set() returns for an absent key, and stores nowhere.
constexpr const char* kAbsent = "linkspan: this key is absent";

Status refused(const char* what, std::size_t size, std::size_t limit) {
  return {Code::invalid_argument, Scope::request,
          std::string(what) + " of " + std::to_string(size) + " bytes: a store takes " +
              std::to_string(limit)};
}

/// Returns timed_out with the missing keys: "/a", or the first one and how many more.
Status not_there(const Store::Keys& keys) {
  std::string which = keys.empty() ? "" : "\"" + keys.front().substr(0, 256) + "\"";
  if (keys.size() > 1) which += " and " + std::to_string(keys.size() - 1) + " more";
  return {Code::timed_out, Scope::request, "waited for " + which};
}

}  // namespace

Result<Request> RequestStore::make(Op op, const Keys& keys, std::vector<std::string> values) const {
  Request request;
  request.op = op;
  std::size_t bytes = 0;
  if (keys.size() > limits_.fields)
    return Status(Code::invalid_argument, Scope::request,
                  std::to_string(keys.size()) + " keys: a store takes " +
                      std::to_string(limits_.fields) + " at a time");
  for (const std::string& key : keys) {
    const std::size_t most = limits_.key - prefix_.size();
    if (key.size() > most) return refused("a key", key.size(), most);
    request.keys.push_back(prefix_ + key);
    bytes += request.keys.back().size() + kText;
  }
  for (const std::string& value : values) {
    if (value.size() > limits_.value) return refused("a value", value.size(), limits_.value);
    bytes += value.size() + kText;
  }
  if (bytes > limits_.message) return refused("keys and values", bytes, limits_.message);
  request.values = std::move(values);
  return request;
}

Result<Message> RequestStore::ask(Op op, std::string_view key, std::vector<std::string> values,
                                  std::int64_t number) {
  auto request = make(op, {std::string(key)}, std::move(values));
  if (!request.ok()) return request.status();
  request->number = number;
  return exchange(*request, answer_deadline());
}

Status RequestStore::set(std::string_view key, std::string_view value) {
  return ask(Op::set, key, {std::string(value)}).status();
}

Result<std::string> RequestStore::get(std::string_view key, Duration timeout) {
  auto request = make(Op::get, {std::string(key)});
  if (!request.ok()) return request.status();
  auto values = read(*request, timeout);
  if (!values.ok()) return values.status();
  return std::move(values->at(0));
}

Result<std::vector<std::string>> RequestStore::read(const Request& request, Duration timeout) {
  const auto deadline = base::Deadline::in(timeout);
  for (;;) {
    auto there = await(request.keys, deadline);
    if (!there.ok()) return there.status();
    if (!*there) return not_there(request.keys);
    auto answer = exchange(request, answer_deadline());
    if (!answer.ok()) return answer.status();
    std::vector<std::string>& values = answer->values;
    // An absent key reads as an empty value, and another client may have deleted it by now.
    bool all = true;
    for (std::size_t i = 0; all && i < values.size(); ++i) {
      if (!values[i].empty()) continue;
      Request look;
      look.op = Op::compare_set;
      look.keys = {request.keys[i]};
      look.values = {kAbsent, kAbsent};
      auto looked = exchange(look, answer_deadline());
      if (!looked.ok()) return looked.status();
      values[i] = std::move(looked->values.at(0));
      all = values[i] != kAbsent;
    }
    if (all) return std::move(values);
    if (deadline.passed()) return not_there(request.keys);
    ::poll(nullptr, 0, kLostRaceMs);
  }
}

Result<std::int64_t> RequestStore::add(std::string_view key, std::int64_t amount) {
  auto answer = ask(Op::add, key, {}, amount);
  if (!answer.ok()) return answer.status();
  return answer->number;
}

Status RequestStore::wait(const Keys& keys, Duration timeout) {
  auto request = make(Op::wait, keys);
  if (!request.ok()) return request.status();
  if (keys.empty()) return {};
  auto there = await(request->keys, base::Deadline::in(timeout));
  if (!there.ok()) return there.status();
  return *there ? Status() : not_there(request->keys);
}

Result<bool> RequestStore::check(const Keys& keys) {
  auto request = make(Op::check, keys);
  if (!request.ok()) return request.status();
  if (keys.empty()) return true;
  auto answer = exchange(*request, answer_deadline());
  if (!answer.ok()) return answer.status();
  return answer->number == kReady;
}

Result<bool> RequestStore::delete_key(std::string_view key) {
  auto answer = ask(Op::delete_key, key);
  if (!answer.ok()) return answer.status();
  return answer->number != 0;
}

Result<std::string> RequestStore::compare_set(std::string_view key, std::string_view expected,
                                              std::string_view desired) {
  auto answer = ask(Op::compare_set, key, {std::string(expected), std::string(desired)});
  if (!answer.ok()) return answer.status();
  return std::move(answer->values.at(0));
}

Status RequestStore::append(std::string_view key, std::string_view value) {
  return ask(Op::append, key, {std::string(value)}).status();
}

Result<std::vector<std::string>> RequestStore::multi_get(const Keys& keys, Duration timeout) {
  auto request = make(Op::multi_get, keys);
  if (!request.ok()) return request.status();
  if (keys.empty()) return std::vector<std::string>();
  return read(*request, timeout);
}

Status RequestStore::multi_set(const Keys& keys, const std::vector<std::string>& values) {
  if (keys.size() != values.size())
    return {
        Code::invalid_argument, Scope::request,
        std::to_string(keys.size()) + " keys with " + std::to_string(values.size()) + " values"};
  auto request = make(Op::multi_set, keys, values);
  if (!request.ok()) return request.status();
  if (keys.empty()) return {};
  return exchange(*request, answer_deadline()).status();
}

Result<std::int64_t> RequestStore::num_keys() {
  Request request;
  request.op = Op::num_keys;
  auto answer = exchange(request, answer_deadline());
  if (!answer.ok()) return answer.status();
  return answer->number;
}

Status RequestStore::queue_push(std::string_view queue, std::string_view value) {
  return ask(Op::queue_push, queue, {std::string(value)}).status();
}

Result<std::string> RequestStore::queue_pop(std::string_view queue, Duration timeout) {
  auto request = make(Op::queue_pop, {std::string(queue)});
  if (!request.ok()) return request.status();
  const auto deadline = base::Deadline::in(timeout);
  for (;;) {
    // Even where the wait was in vain there may be a value: a server wakes one client for each, and
    // that one may not pop it.
    if (timeout > Duration::zero())
      if (auto there = await(request->keys, deadline); !there.ok()) return there.status();
    auto answer = exchange(*request, answer_deadline());
    if (!answer.ok()) return answer.status();
    if (!answer->values.empty()) return std::move(answer->values.front());
    if (deadline.passed()) return not_there(request->keys);
    ::poll(nullptr, 0, kLostRaceMs);
  }
}

Result<std::int64_t> RequestStore::queue_length(std::string_view queue) {
  auto answer = ask(Op::queue_length, queue);
  if (!answer.ok()) return answer.status();
  return answer->number;
}

}  // namespace store
}  // namespace linkspan
