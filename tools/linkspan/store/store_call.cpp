#include "tools/linkspan/store/store_call.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

namespace linkspan::tool {
namespace {

using nlohmann::json;

/// Lists the operations. Parameters: k a key, v a value, n a number; * repeats the one before it.
struct Operation {
  std::string_view name, parameters, usage;
};
constexpr std::int64_t kMinNumber = std::numeric_limits<std::int64_t>::min(),
                       kMaxNumber = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMaxMilliseconds = std::numeric_limits<std::int32_t>::max();
constexpr std::array<Operation, 14> kOperations = {{
    {"set", "kv", "KEY VALUE"},
    {"get", "k", "KEY"},
    {"add", "kn", "KEY NUMBER"},
    {"wait", "k*", "KEY..."},
    {"check", "k*", "KEY..."},
    {"delete", "k", "KEY"},
    {"compare_set", "kvv", "KEY EXPECTED DESIRED"},
    {"append", "kv", "KEY VALUE"},
    {"multi_get", "k*", "KEY..."},
    {"multi_set", "kv*", "KEY VALUE [KEY VALUE...]"},
    {"num_keys", "", ""},
    {"queue_push", "kv", "QUEUE VALUE"},
    {"queue_pop", "k", "QUEUE"},
    {"queue_length", "k", "QUEUE"},
}};

Status wrong(const std::string& what) { return {Code::invalid_argument, Scope::request, what}; }

Result<Operation> operation_of(std::string_view name) {
  std::string all;
  for (const Operation& each : kOperations) {
    if (each.name == name) return each;
    all += (all.empty() ? "" : ", ") + std::string(each.name);
  }
  return wrong("\"" + std::string(name) + "\" is no operation of a store: " + all);
}

/// Returns the number of that name. invalid_argument: it is not whole, or out of range.
Result<std::int64_t> number_of(const json& document, const char* name, std::int64_t fallback,
                               std::int64_t least, std::int64_t most) {
  const auto found = document.find(name);
  if (found == document.end()) return fallback;
  const bool fits = found->is_number_unsigned()
                        ? found->get<std::uint64_t>() <= static_cast<std::uint64_t>(kMaxNumber)
                        : found->is_number_integer();
  if (fits && found->get<std::int64_t>() >= least && found->get<std::int64_t>() <= most)
    return found->get<std::int64_t>();
  return wrong("\"" + std::string(name) + "\": " + found->dump().substr(0, 64) +
               " is no whole number from " + std::to_string(least) + " to " + std::to_string(most));
}

std::string to_hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const char each : bytes) {
    out += kDigits[static_cast<unsigned char>(each) >> 4];
    out += kDigits[static_cast<unsigned char>(each) & 15];
  }
  return out;
}

std::optional<std::string> from_hex(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    unsigned value = 0;
    const auto read = std::from_chars(text.data() + i, text.data() + i + 2, value, 16);
    if (read.ec != std::errc() || read.ptr != text.data() + i + 2) return std::nullopt;
    out.push_back(static_cast<char>(value));
  }
  return text.size() % 2 == 0 ? std::optional(std::move(out)) : std::nullopt;
}

template <class T>
Result<StoreAnswer> answer_of(Result<T> result) {
  if (!result.ok()) return result.status();
  StoreAnswer answer;
  if constexpr (std::is_same_v<T, std::string>) {
    answer.values.push_back(*std::move(result));
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    answer.values = *std::move(result);
  } else {
    answer.has_number = true;
    answer.number = *result;
  }
  return answer;
}

Result<StoreAnswer> answer_of(const Status& status) {
  if (!status.ok()) return status;
  return StoreAnswer{};
}

}  // namespace

Result<StoreCall> call_of(const std::vector<std::string>& arguments, Duration timeout) {
  StoreCall call{.operation = arguments.front(), .timeout = timeout};
  auto operation = operation_of(call.operation);
  if (!operation.ok()) return operation.status();
  const bool repeated = operation->parameters.ends_with('*');
  const auto parameters =
      operation->parameters.substr(0, operation->parameters.size() - (repeated ? 1 : 0));
  const std::size_t given = arguments.size() - 1;
  if (repeated ? given == 0 || given % parameters.size() != 0 : given != parameters.size())
    return wrong("as: " + call.operation + " " + std::string(operation->usage));
  for (std::size_t i = 0; i < given; ++i) {
    const std::string& argument = arguments[i + 1];
    switch (parameters[i % parameters.size()]) {
      case 'k':
        call.keys.push_back(argument);
        break;
      case 'v':
        call.values.push_back(argument);
        break;
      default: {
        const auto [end, error] =
            std::from_chars(argument.data(), argument.data() + argument.size(), call.number);
        if (error != std::errc() || end != argument.data() + argument.size())
          return wrong("\"" + argument + "\" is no whole number");
      }
    }
  }
  return call;
}

Result<StoreCall> call_of_json(const std::string& line, Duration timeout) {
  const json document = json::parse(line, nullptr, false);
  if (!document.is_object() || !document.contains("op")) return wrong("no {\"op\": ...}: " + line);
  StoreCall call;
  try {
    call.operation = document.at("op").get<std::string>();
    call.keys = document.value("keys", call.keys);
    for (const std::string& each : document.value("values", std::vector<std::string>())) {
      auto bytes = from_hex(each);
      if (!bytes) return wrong("\"" + each.substr(0, 64) + "\" is no hex");
      call.values.push_back(*std::move(bytes));
    }
  } catch (const json::exception& error) {
    return wrong(error.what());
  }
  const auto number = number_of(document, "number", 0, kMinNumber, kMaxNumber);
  if (!number.ok()) return number.status();
  call.number = *number;
  const auto milliseconds = number_of(document, "timeout_ms", -1, 0, kMaxMilliseconds);
  if (!milliseconds.ok()) return milliseconds.status();
  call.timeout = *milliseconds < 0 ? timeout : std::chrono::milliseconds(*milliseconds);
  auto operation = operation_of(call.operation);
  if (!operation.ok()) return operation.status();
  const bool many = operation->parameters.ends_with('*');
  const auto of = [&](char kind) {
    return static_cast<std::size_t>(
        std::count(operation->parameters.begin(), operation->parameters.end(), kind));
  };
  if (!many && (call.keys.size() != of('k') || call.values.size() != of('v')))
    return wrong("as: " + call.operation + " " + std::string(operation->usage));
  return call;
}

Result<StoreAnswer> run(Store& store, const StoreCall& call) {
  const std::string& operation = call.operation;
  const auto value = [&](std::size_t at) -> const std::string& { return call.values.at(at); };
  if (operation == "wait") return answer_of(store.wait(call.keys, call.timeout));
  if (operation == "check") return answer_of(store.check(call.keys));
  if (operation == "multi_get") return answer_of(store.multi_get(call.keys, call.timeout));
  if (operation == "multi_set") return answer_of(store.multi_set(call.keys, call.values));
  if (operation == "num_keys") return answer_of(store.num_keys());
  const std::string& key = call.keys.at(0);
  if (operation == "set") return answer_of(store.set(key, value(0)));
  if (operation == "get") return answer_of(store.get(key, call.timeout));
  if (operation == "add") return answer_of(store.add(key, call.number));
  if (operation == "delete") return answer_of(store.delete_key(key));
  if (operation == "compare_set") return answer_of(store.compare_set(key, value(0), value(1)));
  if (operation == "append") return answer_of(store.append(key, value(0)));
  if (operation == "queue_push") return answer_of(store.queue_push(key, value(0)));
  if (operation == "queue_pop") return answer_of(store.queue_pop(key, call.timeout));
  return answer_of(store.queue_length(key));
}

std::string to_json(const Result<StoreAnswer>& answer) {
  json document = {{"code", name_of(answer.status().code())}, {"what", answer.status().what()}};
  if (answer.ok()) {
    document["values"] = json::array();
    for (const std::string& value : answer->values) document["values"].push_back(to_hex(value));
    if (answer->has_number) document["number"] = answer->number;
  }
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace linkspan::tool
