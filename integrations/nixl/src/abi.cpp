#include "integrations/nixl/src/abi.hpp"

#include <cstring>

namespace linkspan::nixl::abi {
namespace {

constexpr std::size_t kInside = 15;  // characters that std::string has in itself
constexpr std::size_t kMaxName = std::size_t{1} << 20;

struct StringWords {
  const char* data;
  std::size_t size;
  char inside[kInside + 1];
};
static_assert(sizeof(StringWords) == sizeof(std::string));

StringWords words_of(const char* at) noexcept {
  StringWords words{};
  std::memcpy(&words, at, sizeof words);
  return words;
}

}  // namespace

bool is_known(const StartArguments* start, const std::string& name) noexcept {
  if (start == nullptr || name.empty() || name.size() > kInside) return false;
  const auto* bytes = reinterpret_cast<const char*>(start);
  const char* at_agent = bytes + offsetof(StartArguments, agent);
  const char* at_type = bytes + offsetof(StartArguments, type);
  const StringWords agent = words_of(at_agent), type = words_of(at_type);
  const bool agent_inside = agent.data == at_agent + offsetof(StringWords, inside);
  if (agent.data == nullptr || agent.size > kMaxName || agent_inside != (agent.size <= kInside))
    return false;
  if (type.data != at_type + offsetof(StringWords, inside) || type.size != name.size() ||
      std::memcmp(type.inside, name.data(), name.size()) != 0)
    return false;
  return start->parameters != nullptr;
}

}  // namespace linkspan::nixl::abi
