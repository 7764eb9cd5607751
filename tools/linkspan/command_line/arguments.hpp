// tools/linkspan/command_line/arguments.hpp - declares the options and arguments of a verb.
//
// Wraps CLI11, whose headers cost seconds of compile time a file. A wrong value is refused during
// parsing, with a text that names the option, the value and what is valid.
// Threads: the main thread.
// Invariants: the variable that an argument is read into outlives the parse.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "linkspan/status.hpp"

namespace CLI {
class App;
}

namespace linkspan::tool {

class Arguments {
 public:
  explicit Arguments(CLI::App& verb) : verb_(verb) {}

  void flag(const char* name, bool& into, const char* help);
  /// Declares a text. `shown` is the value in --help: "FILE".
  void text(const char* name, std::string& into, const char* shown, const char* help);
  /// Declares the arguments that belong to no option. Each is taken as it is.
  void rest(const char* name, std::vector<std::string>& into, const char* shown, const char* help);
  /// Declares an option with one value of `known`.
  void choice(const char* name, std::string& into, std::vector<std::string> known,
              const char* help);
  void number(const char* name, unsigned& into, unsigned least, unsigned most, const char* shown,
              const char* help);
  /// Declares a size, such as "64MiB"; see parse_size().
  void size(const char* name, std::uint64_t& into, const char* help);
  /// Declares a list of sizes: "8,4KiB,1MiB".
  void sizes(const char* name, std::vector<std::uint64_t>& into, const char* help);
  /// Declares a list of values of `known`, separated by commas.
  void choices(const char* name, std::vector<std::string>& into, std::vector<std::string> known,
               const char* help);

 private:
  CLI::App& verb_;
};

/// Parses "8", "8B", "4KiB", "1MiB", "2GiB"; K, KB and so on mean the same, in any case. From 1 B
/// to 64 GiB. invalid_argument: the text names the value and the remedy.
Result<std::uint64_t> parse_size(std::string_view text);

}  // namespace linkspan::tool
