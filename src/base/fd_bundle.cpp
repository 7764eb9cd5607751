#include "base/fd_bundle.hpp"

#include <sys/socket.h>

#include <array>
#include <cstring>

namespace linkspan::base {
namespace {

/// Room for the fds of one sendmsg (SCM_MAX_FD). With room for fewer the kernel closes the rest on
/// the receiving thread.
constexpr std::size_t kControlBytes = CMSG_SPACE(253 * sizeof(int));
static_assert(FdBundle::kBatch <= 253);

Status corrupt(const char* what) { return {Code::corrupt, Scope::request, what}; }

}  // namespace

Result<FdBundle> FdBundle::create() {
  std::array<int, 2> ends{};
  const int made = ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data());
  if (made != 0) return Fd::from("socketpair", made).status();
  return FdBundle(Fd(ends[0]), Fd(ends[1]));
}

Status FdBundle::put(Fd fd, std::uint64_t number) {
  batch_.push_back({std::move(fd), number});
  return batch_.size() == kBatch ? send_batch() : Status();
}

Result<Fd> FdBundle::seal() {
  if (Status status = send_batch(); !status.ok()) return status;
  in_ = Fd();
  return std::move(out_);
}

Status FdBundle::send_batch() {
  if (batch_.empty()) return {};
  std::array<std::uint64_t, kBatch> numbers{};
  alignas(cmsghdr) std::array<std::byte, kControlBytes> control{};
  iovec part{numbers.data(), batch_.size() * sizeof numbers[0]};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(batch_.size() * sizeof(int));
  cmsghdr* rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(batch_.size() * sizeof(int));
  for (std::size_t i = 0; i < batch_.size(); ++i) {
    numbers[i] = batch_[i].number;
    const int raw = batch_[i].fd.get();
    std::memcpy(CMSG_DATA(rights) + i * sizeof raw, &raw, sizeof raw);
  }
  if (::sendmsg(in_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno != ETOOMANYREFS && errno != EAGAIN && errno != ENOBUFS)
      return Fd::from("sendmsg", -1).status();
    return {Code::no_resource, Scope::request,
            "the system has no room for " + std::to_string(sent_ + batch_.size()) +
                " file descriptors under way to a peer: raise the limit of open files (ulimit -n), "
                "or register the memory in parts"};
  }
  sent_ += batch_.size();
  batch_.clear();
  return {};
}

Result<std::vector<NumberedFd>> FdBundle::pop_batch(const Fd& sealed) {
  std::array<std::uint64_t, kBatch> numbers{};
  alignas(cmsghdr) std::array<std::byte, kControlBytes> control{};
  iovec part{numbers.data(), sizeof numbers};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  std::vector<NumberedFd> batch;
  batch.reserve(kBatch);  // what throws between recvmsg and the last Fd would leak the others
  const ssize_t got = ::recvmsg(sealed.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) return corrupt("not a parcel of file descriptors, or one that is not closed");
  bool too_many = false;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = CMSG_LEN(0); at + sizeof(int) <= c->cmsg_len; at += sizeof(int)) {
      int raw = -1;
      std::memcpy(&raw, reinterpret_cast<std::byte*>(c) + at, sizeof raw);
      Fd received(raw);
      received.close_by(sealed.sink());
      too_many |= batch.size() == kBatch;
      if (!too_many) batch.push_back({std::move(received), 0});
    }
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0)
    return Status(Code::no_resource, Scope::request,
                  "no room in our table for the file descriptors of a parcel: raise the limit of "
                  "open files (ulimit -n)");
  if (too_many || (message.msg_flags & MSG_TRUNC) != 0 ||
      static_cast<std::size_t>(got) != batch.size() * sizeof numbers[0])
    return corrupt("a malformed parcel of file descriptors");
  for (std::size_t i = 0; i < batch.size(); ++i) batch[i].number = numbers[i];
  return batch;
}

}  // namespace linkspan::base
