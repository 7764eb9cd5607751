// tools/linkspan/output.hpp - where a verb's text and JSON go, and the line that shows progress.
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
  /// `json`: a file, "-", or empty for none. invalid_argument: it cannot be written, which is told
  /// before the work and not after it.
  static Result<Output> open(std::string json);

  /// `json` is not looked at if none is wanted.
  Status write(const std::string& text, const std::string& json) const;

 private:
  explicit Output(std::string json) : json_(std::move(json)) {}
  std::string json_;
};

/// "[3/20] what" on stderr, in place, if that is a terminal.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void show(std::size_t index, std::size_t count, const std::string& what) const;

 private:
  const bool terminal_;
};

}  // namespace linkspan::tool
