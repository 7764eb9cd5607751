#include "transport/nccl_net/tcpx/rx_cmsg_parser.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace linkspan::transport::nccl_net::tcpx {
namespace {

constexpr std::size_t kHeader = CMSG_LEN(0);
constexpr std::uint64_t kMax = ~std::uint64_t{0};

/// Has the layout that the kernels write.
struct TcpxFragment {
  std::uint32_t offset, size, token;
};
struct UpstreamFragment {
  std::uint64_t offset;
  std::uint32_t size, token, dmabuf, flags;
};
static_assert(sizeof(TcpxFragment) == 12 && sizeof(UpstreamFragment) == 24);

template <class T>
T read(std::span<const std::byte> bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

/// Names the position of a control message, for errors.
struct CmsgPosition {
  std::size_t number, offset;

  Status corrupt(const std::string& what, Where at = {}) const {
    return {Code::corrupt, Scope::peer,
            "control message " + std::to_string(number) + ", at byte " + std::to_string(offset) +
                ": " + what,
            at};
  }
};

const char* name_of(RxKernel kernel) {
  return kernel == RxKernel::tcpx ? "GPUDirect-TCPX's kernel" : "the upstream kernel";
}

RxKernel kernel_of(int type) {
  if (type == kScmDevmemHeader || type == kScmDevmemOffset) return RxKernel::tcpx;
  if (type == kScmDevmemLinear || type == kScmDevmemDmabuf) return RxKernel::upstream;
  return RxKernel::none;
}

RxPiece piece_of(RxKernel kernel, std::span<const std::byte> data) {
  if (kernel == RxKernel::tcpx) {
    const auto said = read<TcpxFragment>(data);
    return {.src_off = said.offset, .bytes = said.size, .token = said.token};
  }
  const auto said = read<UpstreamFragment>(data);
  return {.src_off = said.offset, .bytes = said.size, .token = said.token, .dmabuf = said.dmabuf};
}

/// Adds one control message to `found`, which knows what came before it.
Status add(const CmsgPosition& place, const cmsghdr& header, std::span<const std::byte> data,
           RxMessage& found) {
  const int type = header.cmsg_type;
  const auto of_type = [type] { return "type " + std::to_string(type); };
  if (header.cmsg_level != SOL_SOCKET)
    return place.corrupt("its level is " + std::to_string(header.cmsg_level) +
                         ", not SOL_SOCKET (" + std::to_string(SOL_SOCKET) + ")");
  const RxKernel kernel = kernel_of(type);
  if (kernel == RxKernel::none)
    return place.corrupt(of_type() + " tells of no fragment (known: 78, 79 and 98, 99)");
  if (found.kernel != RxKernel::none && kernel != found.kernel)
    return place.corrupt(of_type() + " is of " + name_of(kernel) + ", those before it are of " +
                         name_of(found.kernel));
  const std::size_t size =
      kernel == RxKernel::tcpx ? sizeof(TcpxFragment) : sizeof(UpstreamFragment);
  if (data.size() != size)
    return place.corrupt(of_type() + " has " + std::to_string(data.size()) +
                         " bytes of data, not " + std::to_string(size));
  RxPiece piece = piece_of(kernel, data);
  if (piece.bytes == 0) return place.corrupt("a piece of 0 bytes");
  if (piece.bytes > kMax - found.bytes)
    return place.corrupt("a piece of " + std::to_string(piece.bytes) + " bytes behind " +
                         std::to_string(found.bytes));
  const bool linear = type == kScmDevmemHeader || type == kScmDevmemLinear;
  if (!linear && piece.bytes > kMax - piece.src_off)
    return place.corrupt("a fragment of " + std::to_string(piece.bytes) + " bytes at " +
                         std::to_string(piece.src_off) + " passes the end of all offsets");
  found.kernel = kernel;
  piece.dst_off = found.bytes;
  found.bytes += piece.bytes;
  if (linear) {  // its other fields have no meaning
    found.linear.push_back(
        {.dst_off = piece.dst_off, .src_off = found.linear_bytes, .bytes = piece.bytes});
    found.linear_bytes += piece.bytes;
    return {};
  }
  found.fragments.push_back(piece);
  RxTokens* const last = found.tokens.empty() ? nullptr : &found.tokens.back();
  if (last != nullptr && piece.token != 0 && piece.token == last->first + last->count)
    ++last->count;
  else
    found.tokens.push_back({piece.token, 1});
  return {};
}

}  // namespace

Status parse_control(std::span<const std::byte> control, int flags, RxMessage& into) {
  if ((flags & MSG_CTRUNC) != 0)
    return {Code::truncated, Scope::peer,
            "the kernel had more control messages than the " + std::to_string(control.size()) +
                " bytes of room for them (MSG_CTRUNC)"};
  RxMessage found{into.kernel, into.bytes, into.linear_bytes, {}, {}, {}};
  CmsgPosition place{0, 0};
  while (place.offset < control.size()) {
    const auto rest = control.subspan(place.offset);
    if (rest.size() < kHeader)
      return place.corrupt("truncated: " + std::to_string(rest.size()) +
                           " bytes are left, a header has " + std::to_string(kHeader));
    const auto header = read<cmsghdr>(rest);
    const std::size_t length = header.cmsg_len;
    if (length < kHeader || length > rest.size())
      return place.corrupt("its length is " + std::to_string(length) + ", where " +
                           std::to_string(kHeader) + " to " + std::to_string(rest.size()) +
                           " can be");
    Status added = add(place, header, rest.subspan(kHeader, length - kHeader), found);
    if (!added.ok()) return added;
    // The last one may lack padding.
    place = {place.number + 1, place.offset + std::min(CMSG_ALIGN(length), rest.size())};
  }
  const auto append = [](auto& to, const auto& more) {
    to.insert(to.end(), more.begin(), more.end());
  };
  append(into.fragments, found.fragments);
  append(into.linear, found.linear);
  append(into.tokens, found.tokens);
  into.kernel = found.kernel;
  into.bytes = found.bytes;
  into.linear_bytes = found.linear_bytes;
  return {};
}

}  // namespace linkspan::transport::nccl_net::tcpx
