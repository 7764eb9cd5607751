// tools/linkspan/command_line/output.hpp - where a verb's text, JSON and picture go, and the line
// that shows progress.
//
// JSON to stdout ("-") is alone there: the text for people moves to stderr.
// Threads: the main thread.
#pragma once

#include <cstddef>
#include <string>

#include "linkspan/status.hpp"

namespace linkspan::tool {

class Output {
 public:
  /// `json`: a file, "-", or empty for none; `svg`: a file, or none. invalid_argument: it cannot be
  /// written, which is told before the work and not after it.
  static Result<Output> open(std::string json, std::string svg = {});

  /// What is not wanted is not looked at.
  Status write(const std::string& text, const std::string& json, const std::string& svg = {}) const;

 private:
  Output(std::string json, std::string svg) : json_(std::move(json)), svg_(std::move(svg)) {}
  std::string json_, svg_;
};

/// "[3/20] what", or any line, on stderr, in place, if that is a terminal.
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

/// What another host has said, for a terminal: its control characters become '?'.
std::string printable(std::string text);

}  // namespace linkspan::tool
