#include "tests/support/nccl_net_plugin/settings.hpp"

#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <thread>
#include <vector>

#include "base/environment.hpp"

namespace linkspan::nccl_test {
namespace {

constexpr const char* kFaults[] = {"none", "short", "lost", "overlap", "outside", "beyond"};

template <class Number>
bool read(std::string_view text, Number& into) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), into);
  return error == std::errc() && end == text.data() + text.size();
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t colon = text.find(':');
    parts.push_back(text.substr(0, colon));
    if (colon == std::string_view::npos) return parts;
    text.remove_prefix(colon + 1);
  }
}

const char* variable(const std::string& name) {
  const char* const value = base::environment(("LINKSPAN_TEST_PLUGIN_" + name).c_str());
  return value == nullptr || *value == '\0' ? nullptr : value;
}

bool read_failure(std::string_view text, Settings& s) {
  const auto parts = split(text);
  if (parts.size() != 3) return false;
  s.failing = parts[0];
  return read(parts[1], s.failing_at) && read(parts[2], s.failing_result);
}

bool read_stall(std::string_view text, Settings& s) {
  const auto parts = split(text);
  if (parts.size() != 2) return false;
  s.stalling = parts[0];
  s.stalls_while = parts[1];
  return true;
}

bool read_list(std::string_view text, Settings& s) {
  const auto parts = split(text);
  if (parts.size() != 2 || !read(parts[1], s.list_at)) return false;
  for (std::size_t i = 0; i < std::size(kFaults); ++i)
    if (parts[0] == kFaults[i]) s.list = static_cast<ListFault>(i);
  return s.list != ListFault::none;
}

}  // namespace

Result<Settings> Settings::from_environment() {
  Settings s;
  std::string wrong;
  const auto take = [&wrong](const char* name, const auto& into) {
    if (const char* const text = variable(name); text != nullptr && !into(text))
      wrong += std::string(" LINKSPAN_TEST_PLUGIN_") + name + "=" + text;
  };
  const auto number = [](std::uint64_t& into, std::uint64_t most = UINT64_MAX) {
    return [&into, most](const char* text) {
      return read(std::string_view(text), into) && into <= most;
    };
  };
  take("ADDRESS", [&s](const char* text) { return s.address = text, true; });
  take("SEED", number(s.seed));
  take("FRAGMENT", number(s.fragment, 4096));
  std::uint64_t delay = 0, call = 0;
  take("DELAY_US", number(delay, 60'000'000));
  take("CALL_US", number(call, 1'000'000));
  s.delay = std::chrono::microseconds(delay);
  s.call = std::chrono::microseconds(call);
  take("NULL_PERCENT", number(s.null_percent, 99));
  take("NULL_COMMS", number(s.null_comms));
  take("FAIL", [&s](const char* text) { return read_failure(text, s); });
  take("STALL", [&s](const char* text) { return read_stall(text, s); });
  take("LIST", [&s](const char* text) { return read_list(text, s); });
  take("CORRUPT", number(s.corrupt));
  take("DIE_AFTER", number(s.die_after));
  if (s.fragment == 0) wrong += " LINKSPAN_TEST_PLUGIN_FRAGMENT=0";
  if (wrong.empty()) return s;
  return Status(Code::invalid_argument, Scope::process, "not understood:" + wrong);
}

void Failures::stall(const Settings& settings) {
  if (!std::filesystem::exists(settings.stalls_while)) return;
  std::ofstream(settings.stalls_while + ".in");
  while (std::filesystem::exists(settings.stalls_while))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace linkspan::nccl_test
