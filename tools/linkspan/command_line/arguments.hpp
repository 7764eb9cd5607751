// tools/linkspan/command_line/arguments.hpp - what a verb takes on the command line.
//
// CLI11 stands behind this: its headers cost seconds a file. A wrong value is refused while the
// line is parsed, with a text that names the option, the value and what would be right.
// Threads: the main thread.
// Invariants: what an argument is read into outlives the parse.
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
  /// `shown` stands for the value in --help: "FILE".
  void text(const char* name, std::string& into, const char* shown, const char* help);
  /// All words that no option takes.
  void rest(const char* name, std::vector<std::string>& into, const char* shown, const char* help);
  /// One of `known`.
  void choice(const char* name, std::string& into, std::vector<std::string> known,
              const char* help);
  void number(const char* name, unsigned& into, unsigned least, unsigned most, const char* shown,
              const char* help);
  /// "64MiB"; see parse_size().
  void size(const char* name, std::uint64_t& into, const char* help);
  /// "8,4KiB,1MiB"
  void sizes(const char* name, std::vector<std::uint64_t>& into, const char* help);
  /// Words between commas, each of which `known` names.
  void choices(const char* name, std::vector<std::string>& into, std::vector<std::string> known,
               const char* help);

 private:
  CLI::App& verb_;
};

/// "8", "8B", "4KiB", "1MiB", "2GiB"; K, KB and so on mean the same, in any case. From 1 B to
/// 64 GiB. invalid_argument: names the text and the remedy.
Result<std::uint64_t> parse_size(std::string_view text);

}  // namespace linkspan::tool
