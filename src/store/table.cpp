#include "store/table.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

namespace linkspan::store {
namespace {

std::string number(std::int64_t value) {
  std::string out;
  put_number(out, static_cast<std::uint64_t>(value), 8);
  return out;
}

std::string text(std::string_view value) {
  std::string out;
  put_text(out, value);
  return out;
}

std::size_t cost_of(const std::string& name, const std::string& value) {
  return heap_of(name) + heap_of(value) + kEntry;
}

/// Parses a number as torch does: allows spaces and a sign before it, and any text after it.
std::optional<std::int64_t> number_of(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\n\v\f\r"), text.size()));
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  std::int64_t value = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  return read.ec == std::errc() ? std::optional(value) : std::nullopt;
}

}  // namespace

bool changes(Op op) noexcept {
  switch (op) {
    case Op::set:
    case Op::compare_set:
    case Op::add:
    case Op::delete_key:
    case Op::append:
    case Op::multi_set:
    case Op::queue_push:
    case Op::queue_pop:
      return true;
    default:
      return false;
  }
}

bool Table::has(const std::string& name) const {
  return values_.contains(name) || queues_.contains(name);
}

Result<std::string> Table::apply(Request request) {
  const auto done = [](const Status& status) -> Result<std::string> {
    return status.ok() ? Result<std::string>(std::string()) : status;
  };
  switch (request.op) {
    case Op::set:
      return done(put(request.keys[0], std::move(request.values[0])));
    case Op::compare_set:
      return compare_set(request);
    case Op::get:
      return text(value_of(request.keys[0]));
    case Op::add:
      return add(request.keys[0], request.number);
    case Op::check: {
      const bool all =
          std::all_of(request.keys.begin(), request.keys.end(),
                      [this](const std::string& key) { return has(key) || key == kOurServer; });
      return std::string(1, static_cast<char>(all ? kReady : kNotReady));
    }
    case Op::num_keys:
      return number(static_cast<std::int64_t>(values_.size()));
    case Op::delete_key:
      return number(erase(request.keys[0]) ? 1 : 0);
    case Op::append:
      return done(append(request.keys[0], std::move(request.values[0])));
    case Op::multi_get:
      return list(request.keys);
    case Op::multi_set:
      return done(put_all(request));
    case Op::ping: {
      std::string out;
      put_number(out, static_cast<std::uint64_t>(request.number), 4);
      return out;
    }
    case Op::queue_push:
      return done(push(request.keys[0], std::move(request.values[0])));
    case Op::queue_pop:
      return pop(request.keys[0]);
    case Op::queue_length: {
      const auto found = queues_.find(request.keys[0]);
      return number(found == queues_.end() ? 0 : static_cast<std::int64_t>(found->second.size()));
    }
    case Op::list_keys:
      return list_all();
    case Op::validate:
    case Op::wait:
    case Op::cancel_wait:
      break;
  }
  return Status(Code::internal, Scope::request, "not a request to a table");
}

Status Table::room_for(std::size_t entries, std::size_t bytes) const {
  if (entries > limits_->entries - entries_)
    return {Code::no_resource, Scope::request,
            "the store has " + std::to_string(entries_) + " of its " +
                std::to_string(limits_->entries) + " entries"};
  if (bytes > limits_->stored - stored_)
    return {Code::no_resource, Scope::request,
            "the store holds " + std::to_string(stored_) + " of its " +
                std::to_string(limits_->stored) + " bytes"};
  return {};
}

Status Table::put(const std::string& key, std::string value) {
  const auto found = values_.find(key);
  const std::size_t before = found == values_.end() ? 0 : cost_of(key, found->second);
  const std::size_t after = cost_of(key, value);
  if (Status full = room_for(before == 0 ? 1 : 0, after > before ? after - before : 0); !full.ok())
    return full;
  stored_ = stored_ - before + after;
  if (found != values_.end()) {
    found->second.swap(value);  // an assignment of a short value would keep the old memory
  } else {
    values_.emplace(key, std::move(value));
    ++entries_;
  }
  return {};
}

Status Table::put_all(Request& request) {
  // Counts replaced values twice, so that either all values are stored or none.
  std::size_t entries = 0, bytes = 0;
  for (std::size_t i = 0; i < request.keys.size(); ++i) {
    entries += values_.contains(request.keys[i]) ? 0 : 1;
    bytes += cost_of(request.keys[i], request.values[i]);
  }
  Status status = room_for(entries, bytes);
  for (std::size_t i = 0; status.ok() && i < request.keys.size(); ++i)
    status = put(request.keys[i], std::move(request.values[i]));
  return status;
}

Result<std::string> Table::add(const std::string& key, std::int64_t amount) {
  const auto found = values_.find(key);
  std::int64_t sum = 0;
  if (found != values_.end()) {
    const auto before = number_of(found->second);
    if (!before) return Status(Code::invalid_argument, Scope::request, "add to what is no number");
    sum = *before;
  }
  if (__builtin_add_overflow(sum, amount, &sum))
    return Status(Code::invalid_argument, Scope::request, "a sum beyond 64 bits");
  if (Status full = put(key, std::to_string(sum)); !full.ok()) return full;
  return number(sum);
}

Result<std::string> Table::compare_set(Request& request) {
  const std::string &key = request.keys[0], &expected = request.values[0];
  const auto found = values_.find(key);
  if (found == values_.end() && !expected.empty()) return text(expected);
  if (found != values_.end() && found->second != expected) return text(found->second);
  std::string answer = text(request.values[1]);
  if (Status full = put(key, std::move(request.values[1])); !full.ok()) return full;
  return answer;
}

Status Table::append(const std::string& key, std::string value) {
  const auto found = values_.find(key);
  if (found == values_.end()) return put(key, std::move(value));
  if (value.size() > limits_->value - std::min(found->second.size(), limits_->value))
    return {Code::no_resource, Scope::request,
            "a value of more than " + std::to_string(limits_->value) + " bytes"};
  const std::size_t before = heap_of(found->second), size = found->second.size() + value.size();
  // Predicts the growth of std::string, which doubles, so that many small appends do not copy the
  // value each time.
  const std::size_t grown =
      size <= found->second.capacity() ? before : std::max(size, 2 * found->second.capacity()) + 1;
  if (Status full = room_for(0, grown - before); !full.ok()) return full;
  found->second += value;
  stored_ += heap_of(found->second) - before;
  return {};
}

Status Table::push(const std::string& queue, std::string value) {
  const std::size_t cost = cost_of(queue, value);
  if (Status full = room_for(1, cost); !full.ok()) return full;
  queues_[queue].push_back(std::move(value));
  stored_ += cost;
  ++entries_;
  return {};
}

std::string Table::pop(const std::string& queue) {
  const auto found = queues_.find(queue);
  if (found == queues_.end()) return number(0);
  std::string out = number(static_cast<std::int64_t>(found->second.size()));
  put_text(out, found->second.front());
  stored_ -= cost_of(queue, found->second.front());
  --entries_;
  found->second.pop_front();
  if (found->second.empty()) queues_.erase(found);
  return out;
}

Result<std::string> Table::list(const std::vector<std::string>& keys) const {
  std::string out;
  for (const std::string& key : keys) {
    put_text(out, value_of(key));
    if (out.size() > limits_->message)
      return Status(Code::no_resource, Scope::request,
                    "an answer of more than " + std::to_string(limits_->message) + " bytes");
  }
  return out;
}

Result<std::string> Table::list_all() const {
  std::string out;
  put_number(out, values_.size(), 8);
  for (const auto& [key, value] : values_) {
    put_text(out, key);
    if (out.size() > limits_->message)
      return Status(Code::no_resource, Scope::request,
                    "an answer of more than " + std::to_string(limits_->message) + " bytes");
  }
  return out;
}

const std::string& Table::value_of(const std::string& key) const {
  static const std::string none;
  const auto found = values_.find(key);
  return found == values_.end() ? none : found->second;
}

bool Table::erase(const std::string& key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  stored_ -= cost_of(key, found->second);
  --entries_;
  values_.erase(found);
  return true;
}

}  // namespace linkspan::store
