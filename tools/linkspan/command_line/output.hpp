// tools/linkspan/command_line/output.hpp - writes the text, JSON and SVG of a verb, and shows its
// progress.
//
// With JSON on stdout ("-") the text goes to stderr.
// Threads: the main thread.
#pragma once

#include <cstddef>
#include <string>

#include "linkspan/status.hpp"

namespace linkspan::tool {

class Output {
 public:
  /// Checks that the files can be written, before the work starts. `json` is a file, "-", or empty
  /// for none; `svg` is a file or empty. invalid_argument: a file cannot be written.
  static Result<Output> open(std::string json, std::string svg = {});

  /// Writes the text, and the JSON and SVG if they were requested.
  Status write(const std::string& text, const std::string& json, const std::string& svg = {}) const;

 private:
  Output(std::string json, std::string svg) : json_(std::move(json)), svg_(std::move(svg)) {}
  std::string json_, svg_;
};

/// Shows "[3/20] what", or any line, in place on stderr if that is a terminal.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void show(std::size_t index, std::size_t count, const std::string& what) const;
  void show(const std::string& line) const;

 private:
  const bool terminal_;
};

}  // namespace linkspan::tool
