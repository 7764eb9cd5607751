#include "tools/linkspan/files.hpp"

#include <openssl/evp.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <limits>
#include <sstream>
#include <utility>

#include "tools/linkspan/output.hpp"
#include "tools/linkspan/shape.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view kPart = ".part";
constexpr std::size_t kMaxName = 255 - kPart.size();
constexpr std::uint64_t kMaxBytes = std::numeric_limits<off_t>::max();
constexpr std::uint64_t kReadAtOnce = kMiB;

Status system(const std::string& what, Where at = {}) {
  return base::Fd::from(what.c_str(), -1, at).status();
}

constexpr std::uint64_t kWeek = 604800;  // in seconds

/// What a side that reads or writes a whole file on its disk may take beside the usual patience.
Duration disk_time(std::uint64_t bytes) {
  return std::chrono::seconds(std::min<std::uint64_t>(bytes / (16 * kMiB), kWeek));
}

std::int64_t last_write(const struct stat& facts) {
  return facts.st_mtim.tv_sec * std::int64_t{1'000'000'000} + facts.st_mtim.tv_nsec;
}

Status read_all(int fd, std::uint64_t offset, std::span<std::byte> into) {
  while (!into.empty()) {
    const ssize_t got = ::pread(fd, into.data(), into.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system("read");
    if (got == 0)
      return {Code::corrupt, Scope::request, "the file has become shorter while it was read"};
    into = into.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return {};
}

Status add_prefix(Checksum& sum, int fd, std::uint64_t bytes) {
  std::vector<std::byte> buffer(std::min(bytes, kReadAtOnce));
  for (std::uint64_t at = 0; at < bytes;) {
    const auto part = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), bytes - at));
    if (Status s = read_all(fd, at, part); !s.ok()) return s;
    if (Status s = sum.add(part); !s.ok()) return s;
    at += part.size();
  }
  return {};
}

Status not_understood(const std::string& words, Where at = {}) {
  return {Code::corrupt, Scope::request,
          "not understood: \"" + printable(words) + "\"; both sides must be of one release", at};
}

}  // namespace

Status parse_words(const std::string& words, const char* word, std::uint64_t* number,
                   std::string* text) {
  std::istringstream in(words);
  std::string first;
  if (!(in >> first) || first != word || (number != nullptr && !(in >> *number)) ||
      (text != nullptr && !(in >> *text)))
    return not_understood(words);
  return {};
}

namespace {

std::uint64_t chunk_bytes(std::uint64_t at, std::uint64_t bytes) {
  return std::min(Conversation::kChunk, bytes - at);
}

}  // namespace

Status check_name(std::string_view name) {
  const auto bad = [](char c) {
    return static_cast<unsigned char>(c) < 32 || c == 127 || c == '/';
  };
  if (!name.empty() && name.size() <= kMaxName && name.front() != '.' && !name.ends_with(kPart) &&
      std::none_of(name.begin(), name.end(), bad))
    return {};
  return {Code::invalid_argument, Scope::request,
          '"' + printable(std::string(name.substr(0, kMaxName))) +
              "\" is no name for a file there: at most 250 bytes, no '/', no control character, no "
              "'.' before and no \".part\" behind it (--as names another)"};
}

Result<Checksum> Checksum::create() {
  Context context(::EVP_MD_CTX_new(), &::EVP_MD_CTX_free);
  if (context == nullptr || ::EVP_DigestInit_ex(context.get(), ::EVP_sha256(), nullptr) != 1)
    return Status(Code::internal, Scope::request, "OpenSSL has no SHA-256");
  return Checksum(std::move(context));
}

Status Checksum::add(std::span<const std::byte> bytes) {
  if (::EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1) return {};
  return {Code::internal, Scope::request, "OpenSSL's SHA-256 failed"};
}

Result<std::string> Checksum::hex() const {
  const Context copy(::EVP_MD_CTX_new(), &::EVP_MD_CTX_free);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned bytes = 0;
  if (copy == nullptr || ::EVP_MD_CTX_copy_ex(copy.get(), context_.get()) != 1 ||
      ::EVP_DigestFinal_ex(copy.get(), digest.data(), &bytes) != 1)
    return Status(Code::internal, Scope::request, "OpenSSL's SHA-256 failed");
  std::string out;
  for (unsigned i = 0; i < bytes; ++i) {
    out += "0123456789abcdef"[digest.at(i) >> 4];
    out += "0123456789abcdef"[digest.at(i) & 15];
  }
  return out;
}

Result<LeavingFile> LeavingFile::open(int folder, const std::string& name, bool follow_links) {
  // O_NONBLOCK: a pipe is refused, and not waited for.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | (follow_links ? 0 : O_NOFOLLOW);
  auto fd = base::Fd::from(name.c_str(), ::openat(folder, name.c_str(), flags));
  if (!fd.ok()) return fd.status();
  struct stat facts {};
  if (::fstat(fd->get(), &facts) != 0) return system(name);
  if (!S_ISREG(facts.st_mode))
    return Status(Code::invalid_argument, Scope::request, name + " is no regular file");
  return LeavingFile{*std::move(fd), static_cast<std::uint64_t>(facts.st_size), last_write(facts)};
}

Status LeavingFile::is_as_it_was() const {
  struct stat facts {};
  if (::fstat(fd.get(), &facts) != 0) return system("fstat");
  if (static_cast<std::uint64_t>(facts.st_size) == bytes && last_write(facts) == written_ns)
    return {};
  return {Code::corrupt, Scope::request,
          "the file has changed while it was read: run it again when nobody writes to it"};
}

Result<ArrivingFile> ArrivingFile::open(int folder, const std::string& name) {
  const std::string part = name + std::string(kPart);
  auto fd = base::Fd::from(
      part.c_str(),
      ::openat(folder, part.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600));
  if (!fd.ok()) return fd.status();
  struct stat facts {
  }, named{};
  if (::fstat(fd->get(), &facts) != 0) return system(part);
  if (!S_ISREG(facts.st_mode) || facts.st_uid != ::geteuid() || facts.st_nlink > 1)
    return Status(Code::permission_denied, Scope::request,
                  part + " is there, and is no file of ours alone: remove it");
  // Who had it before may have renamed it between the two calls.
  if (::flock(fd->get(), LOCK_EX | LOCK_NB) != 0 ||
      ::fstatat(folder, part.c_str(), &named, AT_SYMLINK_NOFOLLOW) != 0 ||
      named.st_ino != facts.st_ino || ::fstat(fd->get(), &facts) != 0 ||
      ::fchmod(fd->get(), 0600) != 0)
    return Status(Code::busy, Scope::request,
                  "somebody else writes " + part + ", or did until just now: try again in 10 s");
  return ArrivingFile(folder, name, *std::move(fd), static_cast<std::uint64_t>(facts.st_size));
}

Status ArrivingFile::cut(std::uint64_t bytes) {
  return ::ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0 ? Status() : system(name_);
}

Status ArrivingFile::write(std::uint64_t offset, std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t put = ::pwrite(fd_.get(), data.data(), data.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      const std::string why = std::generic_category().message(errno);
      return {Code::system, Scope::request,
              name_ + std::string(kPart) + ": " + why + " after " + std::to_string(offset) +
                  " bytes, which stay: make room there, then run it again"};
    }
    data = data.subspan(static_cast<std::size_t>(put));
    offset += static_cast<std::uint64_t>(put);
  }
  return {};
}

Status ArrivingFile::complete() {
  if (::fsync(fd_.get()) != 0) return system(name_);
  const std::string part = name_ + std::string(kPart);
  if (::renameat(folder_, part.c_str(), folder_, name_.c_str()) != 0) return system(name_);
  // The name too; not all file systems can (EINVAL).
  return ::fsync(folder_) == 0 || errno == EINVAL ? Status() : system(name_);
}

void ArrivingFile::discard() { (void)::unlinkat(folder_, (name_ + std::string(kPart)).c_str(), 0); }

Result<base::Fd> open_folder(const std::string& path) {
  return base::Fd::from(path.c_str(), ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

namespace {

Result<Moved> send(Conversation& talk, const LeavingFile& file, const Told& told) {
  Moved out{.bytes = file.bytes};
  const auto have = talk.hear(disk_time(file.bytes));
  if (!have.ok()) return have.status();
  std::uint64_t at = 0;
  std::string theirs;
  if (Status s = parse_words(*have, "have", &at, &theirs); !s.ok()) return s;
  if (at > file.bytes) return not_understood(*have);
  auto sum = Checksum::create();
  if (!sum.ok()) return sum.status();
  if (Status s = add_prefix(*sum, file.fd.get(), at); !s.ok()) return s;
  auto ours = sum->hex();
  if (!ours.ok()) return ours.status();
  if (*ours != theirs) {
    at = 0;
    sum = Checksum::create();
    if (!sum.ok()) return sum.status();
  }
  out.resumed_at = at;
  if (Status s = talk.tell("from " + std::to_string(at)); !s.ok()) return s;
  for (std::uint64_t chunk = 0; at < file.bytes; ++chunk) {
    const auto room = talk.room(chunk);
    if (!room.ok()) return room.status();
    const auto bytes = room->first(chunk_bytes(at, file.bytes));
    if (Status s = read_all(file.fd.get(), at, bytes); !s.ok()) return s;
    if (Status s = sum->add(bytes); !s.ok()) return s;
    if (Status s = talk.send(chunk, bytes.size()); !s.ok()) return s;
    at += bytes.size();
    if (told) told(at);
  }
  if (Status s = talk.all_sent(); !s.ok()) return s;
  if (Status s = file.is_as_it_was(); !s.ok()) return s;
  ours = sum->hex();
  if (!ours.ok()) return ours.status();
  if (Status s = talk.tell("sum " + *ours); !s.ok()) return s;
  const auto done = talk.hear(disk_time(file.bytes));
  if (!done.ok()) return done.status();
  if (*done != "done " + *ours) return not_understood(*done);
  out.sha256 = *ours;
  return out;
}

Result<Moved> receive(Conversation& talk, ArrivingFile& file, std::uint64_t total,
                      const Told& told) {
  if (total > kMaxBytes) return not_understood(std::to_string(total) + " bytes");
  Moved out{.bytes = total};
  const std::uint64_t have = std::min(file.bytes(), total);
  auto sum = Checksum::create();
  if (!sum.ok()) return sum.status();
  if (Status s = add_prefix(*sum, file.fd(), have); !s.ok()) return s;
  auto ours = sum->hex();
  if (!ours.ok()) return ours.status();
  if (Status s = talk.tell("have " + std::to_string(have) + ' ' + *ours); !s.ok()) return s;
  const auto from = talk.hear(disk_time(have));
  if (!from.ok()) return from.status();
  if (Status s = parse_words(*from, "from", &out.resumed_at, nullptr); !s.ok()) return s;
  if (out.resumed_at != 0 && out.resumed_at != have) return not_understood(*from);
  if (out.resumed_at == 0) sum = Checksum::create();
  if (!sum.ok()) return sum.status();
  if (Status s = file.cut(out.resumed_at); !s.ok()) return s;

  std::uint64_t expected = out.resumed_at, at = out.resumed_at;
  for (std::uint64_t chunk = 0, posted = 0; at < total; ++chunk) {
    for (; expected < total && posted < chunk + Conversation::kSlots; ++posted) {
      const std::uint64_t bytes = chunk_bytes(expected, total);
      if (Status s = talk.expect(posted, bytes); !s.ok()) return s;
      expected += bytes;
    }
    const auto bytes = talk.take(chunk);
    if (!bytes.ok()) return bytes.status();
    if (Status s = sum->add(*bytes); !s.ok()) return s;
    if (Status s = file.write(at, *bytes); !s.ok()) return s;
    at += bytes->size();
    if (told) told(at);
  }
  const auto said = talk.hear(disk_time(Conversation::kChunk));
  if (!said.ok()) return said.status();
  std::string theirs;
  if (Status s = parse_words(*said, "sum", nullptr, &theirs); !s.ok()) return s;
  ours = sum->hex();
  if (!ours.ok()) return ours.status();
  if (*ours != theirs) {
    file.discard();
    return Status(Code::corrupt, Scope::request,
                  "wrong checksum: what arrived is not what was sent, and is thrown away; run it "
                  "again, and look at the network and the memory of both hosts if it stays so");
  }
  if (Status s = file.complete(); !s.ok()) return s;
  out.sha256 = *ours;
  // It is there under its name, whoever hears of it.
  if (Status s = talk.tell("done " + *ours); !s.ok()) return s;
  return out;
}

Result<Moved> told_of(Conversation& talk, Result<Moved> moved) {
  // What the other side has said or done it knows.
  if (!moved.ok() && moved.status().scope() != Scope::peer) talk.refuse(moved.status());
  return moved;
}

}  // namespace

Result<Moved> send_file(Conversation& talk, const LeavingFile& file, const Told& told) {
  return told_of(talk, send(talk, file, told));
}

Result<Moved> receive_file(Conversation& talk, ArrivingFile& file, std::uint64_t bytes,
                           const Told& told) {
  return told_of(talk, receive(talk, file, bytes, told));
}

}  // namespace linkspan::tool
