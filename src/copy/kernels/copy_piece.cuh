// copy/kernels/copy_piece.cuh - one contiguous copy by the 32 lanes of a warp.
//
// GUARANTEE: ordinary loads and stores, no fence: what the caller's kernel says of its order holds.
// No alignment is asked for; 16 bytes a lane move where source and destination are congruent modulo
// 16.
#pragma once

struct LinkspanPiece {
  unsigned long long to, from, bytes;
};

namespace {

constexpr unsigned kThreads = 512;
constexpr unsigned kWarp = 32;

/// Copies runs of N words a lane, as many as fit into the words from `done` to `count`, and
/// advances `done`. All loads of a run precede its stores, so N loads are in flight.
template <unsigned N, class Word>
__device__ void copy_runs(Word* to, const Word* from, unsigned long long count,
                          unsigned long long& done, unsigned lane) {
  for (; count - done >= N * kWarp; done += N * kWarp) {
    Word words[N];
#pragma unroll
    for (unsigned k = 0; k < N; ++k) words[k] = from[done + k * kWarp + lane];
#pragma unroll
    for (unsigned k = 0; k < N; ++k) to[done + k * kWarp + lane] = words[k];
  }
}

/// Copies with one warp. `to` and `from` must be congruent modulo the size of a Word.
template <class Word>
__device__ void copy_words(unsigned long long to, unsigned long long from, unsigned long long bytes,
                           unsigned lane) {
  unsigned long long head = (0 - to) % sizeof(Word);
  if (head > bytes) head = bytes;
  const unsigned long long count = (bytes - head) / sizeof(Word);
  const unsigned long long tail = (bytes - head) % sizeof(Word);
  auto* out = reinterpret_cast<unsigned char*>(to);
  const auto* in = reinterpret_cast<const unsigned char*>(from);
  if (lane < head) out[lane] = in[lane];
  if (lane < tail) out[bytes - tail + lane] = in[bytes - tail + lane];
  auto* out_words = reinterpret_cast<Word*>(out + head);
  const auto* in_words = reinterpret_cast<const Word*>(in + head);
  unsigned long long done = 0;
  copy_runs<8>(out_words, in_words, count, done, lane);
  copy_runs<4>(out_words, in_words, count, done, lane);
  copy_runs<2>(out_words, in_words, count, done, lane);
  copy_runs<1>(out_words, in_words, count, done, lane);
  if (done + lane < count) out_words[done + lane] = in_words[done + lane];
}

__device__ void copy_piece(const LinkspanPiece& piece, unsigned lane) {
  const unsigned long long apart = piece.to ^ piece.from;
  if (apart % 16 == 0)
    copy_words<uint4>(piece.to, piece.from, piece.bytes, lane);
  else if (apart % 8 == 0)
    copy_words<unsigned long long>(piece.to, piece.from, piece.bytes, lane);
  else if (apart % 4 == 0)
    copy_words<unsigned>(piece.to, piece.from, piece.bytes, lane);
  else
    copy_words<unsigned char>(piece.to, piece.from, piece.bytes, lane);
}

}  // namespace
