#include "tools/linkspan/command_line/arguments.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace linkspan::tool {
namespace {

constexpr std::uint64_t kMaxSize = std::uint64_t{64} << 30;
constexpr int kMaxRest = CLI::detail::expected_max_vector_size;

std::string joined(const std::vector<std::string>& choices) {
  std::string out;
  for (const std::string& choice_name : choices) out += (out.empty() ? "" : ", ") + choice_name;
  return out;
}

[[noreturn]] void refuse(const char* option, const std::string& why) {
  throw CLI::ValidationError(option, why);
}

std::uint64_t size_or_refuse(const char* option, const std::string& text) {
  const auto size = parse_size(text);
  if (!size.ok()) refuse(option, size.status().what());
  return *size;
}

std::string known_or_refuse(const char* option, const std::string& choice_name,
                            const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), choice_name) == known.end())
    refuse(option, "\"" + choice_name + "\" is none of " + joined(known));
  return choice_name;
}

}  // namespace

void Arguments::flag(const char* name, bool& into, const char* help) {
  verb_.add_flag(name, into, help);
}

void Arguments::text(const char* name, std::string& into, const char* shown, const char* help) {
  verb_.add_option(name, into, help)->option_text(shown);
}

void Arguments::rest(const char* name, std::vector<std::string>& into, const char* shown,
                     const char* help) {
  // CLI11 reads "[a,b]" as a list of two wherever further arguments may follow the expected ones.
  // So it expects more than there are, and takes fewer.
  verb_.add_option(name, into, help)
      ->option_text(shown)
      ->expected(kMaxRest, kMaxRest)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void Arguments::choice(const char* name, std::string& into, std::vector<std::string> known,
                       const char* help) {
  const std::string shown = joined(known);
  verb_
      .add_option_function<std::string>(
          name,
          [name, &into, known = std::move(known)](const std::string& choice_name) {
            into = known_or_refuse(name, choice_name, known);
          },
          help)
      ->option_text(shown);
}

void Arguments::number(const char* name, unsigned& into, unsigned least, unsigned most,
                       const char* shown, const char* help) {
  const auto read = [name, &into, least, most](const std::string& text) {
    unsigned value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < least || value > most)
      refuse(name, "\"" + text + "\" is no whole number from " + std::to_string(least) + " to " +
                       std::to_string(most));
    into = value;
  };
  verb_.add_option_function<std::string>(name, read, help)->option_text(shown);
}

void Arguments::size(const char* name, std::uint64_t& into, const char* help) {
  const auto read = [name, &into](const std::string& text) { into = size_or_refuse(name, text); };
  verb_.add_option_function<std::string>(name, read, help)->option_text("SIZE");
}

void Arguments::sizes(const char* name, std::vector<std::uint64_t>& into, const char* help) {
  const auto read = [name, &into](const std::vector<std::string>& texts) {
    into.clear();
    for (const std::string& text : texts) into.push_back(size_or_refuse(name, text));
  };
  verb_.add_option_function<std::vector<std::string>>(name, read, help)
      ->delimiter(',')
      ->option_text("SIZE,...");
}

void Arguments::choices(const char* name, std::vector<std::string>& into,
                        std::vector<std::string> known, const char* help) {
  const auto read = [name, &into,
                     known = std::move(known)](const std::vector<std::string>& choices) {
    into.clear();
    for (const std::string& choice_name : choices)
      into.push_back(known_or_refuse(name, choice_name, known));
  };
  verb_.add_option_function<std::vector<std::string>>(name, read, help)
      ->delimiter(',')
      ->option_text("WORD,...");
}

Result<std::uint64_t> parse_size(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(end, text.data() + text.size());
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  constexpr std::array kPrefixes = {"", "k", "m", "g"};
  for (unsigned i = 0; i < kPrefixes.size() && error == std::errc(); ++i) {
    const std::string prefix = kPrefixes[i];
    const bool same = unit == prefix || unit == prefix + "b" || (i != 0 && unit == prefix + "ib");
    const unsigned shift = 10 * i;
    if (same && number != 0 && number <= kMaxSize >> shift) return number << shift;
  }
  return Status(
      Code::invalid_argument, Scope::request,
      "\"" + std::string(text) + "\" is no size from 1 B to 64 GiB, such as 4KiB or 1GiB");
}

}  // namespace linkspan::tool
