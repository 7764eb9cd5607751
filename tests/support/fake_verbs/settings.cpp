#include "tests/support/fake_verbs/settings.hpp"

#include <unistd.h>

#include <cctype>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string_view>
#include <thread>

namespace linkspan::transport::verbs::fake {
namespace {

void read(const char* name, std::atomic<std::int64_t>& into) {
  std::string variable = std::string("FAKE_VERBS_") + name;
  for (char& each : variable) each = static_cast<char>(std::toupper(each));
  const char* const text = std::getenv(variable.c_str());
  if (text != nullptr && *text != '\0') into = std::strtoll(text, nullptr, 0);
}

void read_all(Settings& into) {
#define FAKE_VERBS_READ(name, value) read(#name, into.name);
  FAKE_VERBS_SETTINGS(FAKE_VERBS_READ)
#undef FAKE_VERBS_READ
}

}  // namespace

Settings& settings() {
  static Settings* const all = [] {
    auto* const made = new Settings;  // never destroyed: threads of devices read it until the end
    read_all(*made);
    return made;
  }();
  return *all;
}

void read_settings() { read_all(settings()); }

bool set(const char* name, std::int64_t value) {
#define FAKE_VERBS_SET(each, initial)  \
  if (std::strcmp(name, #each) == 0) { \
    settings().each = value;           \
    return true;                       \
  }
  FAKE_VERBS_SETTINGS(FAKE_VERBS_SET)
#undef FAKE_VERBS_SET
  return false;
}

bool is_nth(std::atomic<std::int64_t>& setting) {
  std::int64_t left = setting.load();
  while (left > 0)
    if (setting.compare_exchange_weak(left, left - 1)) return left == 1;
  return false;
}

void wait_to_destroy() {
  std::this_thread::sleep_for(std::chrono::microseconds(settings().destroy_us.load()));
}

Counters& counters() {
  static auto* const all = new Counters;  // as settings()
  return *all;
}

std::string verbs_folder() {
  const char* const set = std::getenv("FAKE_VERBS_FOLDER");
  if (set != nullptr && *set != '\0') return set;
  return "/tmp/fake_verbs." + std::to_string(getuid());
}

std::mt19937_64 make_random(std::uint64_t which) {
  return std::mt19937_64(std::hash<std::string_view>()(FAKE_VERBS_BUILD) +
                         static_cast<std::uint64_t>(settings().seed.load()) * 1000003 + which);
}

}  // namespace linkspan::transport::verbs::fake
