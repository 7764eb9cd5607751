#include "transport/tcp/sent_frame.hpp"

#include <array>

#include "memory/validate_allocation.hpp"

namespace linkspan::transport::tcp {
namespace {

constexpr std::array<std::byte, 64u << 10> kZeros{};

std::span<std::byte> zeros() {
  return {const_cast<std::byte*>(kZeros.data()), kZeros.size()};  // only read
}

void* source_pointer(std::uint64_t address) {
  return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

std::span<const std::byte> bytes_of(const iovec& part) {
  return {static_cast<const std::byte*>(part.iov_base), part.iov_len};
}

}  // namespace

void SentFrame::lay_out(std::vector<std::byte>& private_copy) {
  const std::size_t queued = head.size();
  if (chunk) {
    if (!status.ok() && chunk->head.type == FrameType::data) chunk->head.code = status.code();
    if (!status.ok()) chunk->head.notification.clear();
    const auto bytes = encode(chunk->head);
    head.insert(head.end(), bytes.begin(), bytes.end());
  }
  iovecs.push_back(head.data(), head.size());
  if (chunk && !status.ok()) {
    iovecs.repeat(zeros(), chunk->bytes);
  } else if (chunk && copied) {
    iovecs.push_back(private_copy.data(), chunk->bytes);
  } else if (chunk) {
    const auto& extents = chunk->extents;
    for (std::size_t i = 0; i < extents.size(); ++i) {
      void* const from = buffer != nullptr ? buffer->at(i) : source_pointer(extents[i].here);
      if (i == 0)
        iovecs.push_back(from, extents[i].bytes);  // not a part of the head, even if it follows it
      else
        iovecs.append(from, extents[i].bytes);
    }
  }
  data_end = iovecs.size();
  if (chunk && chunk->head.summed)
    for (const iovec& part : iovecs.left().subspan(1))
      add_to_sum(std::span(head).subspan(queued), bytes_of(part));
  if (!trailing.empty()) iovecs.push_back(trailing.data(), trailing.size());
}

Status SentFrame::seal_with(base::FrameAuthenticator& sealer) {
  for (const iovec& part : iovecs.left()) sealer.update(bytes_of(part));
  const auto made = sealer.finish();
  if (!made.ok()) return made.status();
  seal = *made;
  iovecs.push_back(seal.data(), seal.size());
  return {};
}

bool SentFrame::zero_rest() {
  if (!chunk || chunk->head.type != FrameType::put || buffer != nullptr || copied || !status.ok())
    return false;
  zero_data();
  status = memory::freed_early();
  return true;
}

void SentFrame::zero_data() { data_end = iovecs.replace(1, data_end, zeros()); }

}  // namespace linkspan::transport::tcp
