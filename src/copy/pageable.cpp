#include "copy/pageable.hpp"

#include <utility>

namespace linkspan::copy {

Status PageableCopies::copy(const cuda::Device& device, std::span<const Piece> pieces) {
  auto scope = device.enter();
  if (!scope.ok()) return scope.status();
  auto stream = stream_of(device, *scope);
  if (!stream.ok()) return stream.status();
  Status first;
  for (const Piece& piece : pieces) {
    first = (*stream)->copy(*scope, piece.to, piece.from, piece.bytes);
    if (!first.ok()) break;
  }
  const Status end = (*stream)->synchronize(*scope);  // after an error too: quiet
  return first.ok() ? end : first;
}

Result<cuda::Stream*> PageableCopies::stream_of(const cuda::Device& device,
                                                const cuda::DeviceScope& scope) {
  for (Entry& entry : streams_)
    if (entry.device == &device) return &entry.stream;
  auto stream = cuda::Stream::create(scope);
  if (!stream.ok()) return stream.status();
  streams_.push_back({&device, *std::move(stream)});
  return &streams_.back().stream;
}

}  // namespace linkspan::copy
