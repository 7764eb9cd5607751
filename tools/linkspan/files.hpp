// tools/linkspan/files.hpp - a file from one host to another: what both sides of push and pull do.
//
// The receiver begins. It has so much of NAME.part, with this SHA-256; the sender goes on behind it
// if its file begins so, else at 0:
//   receiver: have BYTES SHA256    sender: from BYTES, then the chunks, then: sum SHA256
//   receiver: done SHA256, when the file is on the disk under its name
// Who fails says "error WHY" instead. NAME.part stays, unless its checksum was wrong at the end.
// Threads: externally synchronised.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/fd.hpp"
#include "tools/linkspan/conversation.hpp"

struct evp_md_ctx_st;

namespace linkspan::tool {

/// A plain name of at most 250 bytes, as the files of a folder that is served may have: no '/', no
/// control character, no '.' before it, no ".part" behind it. Else invalid_argument.
Status check_name(std::string_view name);

/// "WORD NUMBER TEXT" without what is null; else corrupt.
Status parse_words(const std::string& words, const char* word, std::uint64_t* number,
                   std::string* text);

/// SHA-256.
class Checksum {
 public:
  static Result<Checksum> create();
  Status add(std::span<const std::byte> bytes);
  Result<std::string> hex() const;  ///< Of all so far; more may follow.

 private:
  using Context = std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)>;
  explicit Checksum(Context context) : context_(std::move(context)) {}
  Context context_;
};

/// A regular file that is read.
struct LeavingFile {
  base::Fd fd;
  std::uint64_t bytes = 0;
  std::int64_t written_ns = 0;  ///< When it was written to last, before it was read.

  /// `folder` is an fd, or AT_FDCWD. Below a folder that is served no link is followed.
  static Result<LeavingFile> open(int folder, const std::string& name, bool follow_links);
  /// corrupt: somebody has written to it since, and what was read is of no one time.
  Status is_as_it_was() const;
};

/// NAME.part of a folder, which nobody else writes meanwhile; NAME as soon as it is complete.
class ArrivingFile {
 public:
  /// The folder stays the caller's. busy: somebody writes it.
  static Result<ArrivingFile> open(int folder, const std::string& name);

  std::uint64_t bytes() const noexcept { return bytes_; }  ///< Of NAME.part, when it was opened.
  int fd() const noexcept { return fd_.get(); }
  Status cut(std::uint64_t bytes);
  Status write(std::uint64_t offset, std::span<const std::byte> data);
  Status complete();
  void discard();

 private:
  ArrivingFile(int folder, std::string name, base::Fd fd, std::uint64_t bytes)
      : folder_(folder), name_(std::move(name)), fd_(std::move(fd)), bytes_(bytes) {}
  int folder_;
  std::string name_;
  base::Fd fd_;
  std::uint64_t bytes_;
};

/// A folder's fd.
Result<base::Fd> open_folder(const std::string& path);

struct Moved {
  std::uint64_t bytes = 0, resumed_at = 0;
  std::string sha256{};
};
using Told = std::function<void(std::uint64_t bytes)>;  ///< How many are there.

/// Both with a ring. A failure of this side was told to the other when they return.
Result<Moved> send_file(Conversation& talk, const LeavingFile& file, const Told& told = {});
Result<Moved> receive_file(Conversation& talk, ArrivingFile& file, std::uint64_t bytes,
                           const Told& told = {});

}  // namespace linkspan::tool
