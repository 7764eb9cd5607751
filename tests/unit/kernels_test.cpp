#include "cuda/kernels.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <vector>

#include "tests/unit/cuda_fixture.hpp"

namespace linkspan::cuda {
namespace kernels_test {

linkspan_image image(int sm) { return {nullptr, nullptr, sm}; }

int chosen(std::span<const linkspan_image> images, int sm) {
  const linkspan_image* found = choose_image(images, sm);
  return found != nullptr ? found->sm : -1;
}

TEST(ChooseImage, TakesTheSameMajorAndTheHighestMinorThatIsNotAbove) {
  const std::array images = {image(80), image(0), image(86), image(90), image(100)};
  EXPECT_EQ(chosen(images, 80), 80);
  EXPECT_EQ(chosen(images, 86), 86);
  EXPECT_EQ(chosen(images, 89), 86);
  EXPECT_EQ(chosen(images, 90), 90);
  EXPECT_EQ(chosen(images, 103), 100);
  EXPECT_EQ(chosen(images, 120), 0);
  EXPECT_EQ(chosen(images, 75), 0);
}

TEST(ChooseImage, HasNoneWhereNoneSuits) {
  const std::array images = {image(86), image(90)};
  EXPECT_EQ(chosen(images, 80), -1);
  EXPECT_EQ(chosen(images, 100), -1);
  EXPECT_EQ(chosen({}, 90), -1);
}

class KernelsOnDevice : public OnDevice {
 protected:
  struct Piece {
    std::uint64_t to, from, bytes;
  };
  static constexpr std::size_t kBytes = 6u << 20;

  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (!device->kernels().ok() && device->kernels().code() == Code::unsupported)
      GTEST_SKIP() << "needs a GPU or the simulated driver, and a build with kernels: "
                   << device->kernels().to_string();
    ASSERT_TRUE(device->kernels().ok()) << device->kernels().to_string();
    keep(stream, Stream::create(*scope));
    keep(from, DeviceBuffer::create(*scope, kBytes));
    keep(to, DeviceBuffer::create(*scope, kBytes));
    keep(host, PinnedBuffer::create(*scope, kBytes));
    keep(list, PinnedBuffer::create(*scope, kMax * sizeof(Piece)));
    keep(abort, DeviceBuffer::create(*scope, 64));
    keep(aborted, PinnedBuffer::create(*scope, 64));
    ASSERT_TRUE(stream && from && to && host && list && abort && aborted);
    std::memset(aborted->data(), 0, aborted->bytes());
    set_abort(*stream, 0);
  }

  template <class T>
  static void keep(std::optional<T>& member, Result<T> made) {
    if (made.ok()) member.emplace(*std::move(made));
  }

  void upload(CUdeviceptr target, unsigned seed) {
    for (std::size_t i = 0; i < kBytes; ++i) host->data()[i] = pattern(i, seed);
    copy(target, host->device_address());
  }
  void copy(CUdeviceptr target, CUdeviceptr source) {
    ASSERT_EQ(device->driver().cuMemcpyAsync(target, source, kBytes, stream->get()), CUDA_SUCCESS);
    finish(*stream);
  }

  void set_abort(const Stream& on, unsigned char value) {
    ASSERT_EQ(device->driver().cuMemsetD8Async(abort->address(), value, 4, on.get()), CUDA_SUCCESS);
    finish(on);
  }
  unsigned was_aborted() const {
    return std::atomic_ref(*reinterpret_cast<unsigned*>(aborted->data())).load();
  }

  /// Offsets into `to` and `from` become addresses; the list is read from mapped host memory.
  void launch(const std::vector<Piece>& pieces, unsigned ctas) {
    ASSERT_LE(pieces.size(), kMax);
    auto* out = reinterpret_cast<Piece*>(list->data());
    for (const Piece& p : pieces)
      *out++ = {to->address() + p.to, from->address() + p.from, p.bytes};
    CUdeviceptr pointers = list->device_address();
    auto count = static_cast<unsigned>(pieces.size());
    CUdeviceptr stop = abort->address(), stopped = aborted->device_address();
    std::array<void*, 4> parameters{&pointers, &count, &stop, &stopped};
    ASSERT_EQ(device->driver().cuLaunchKernel(device->copy_blocks(), ctas, 1, 1, 512, 1, 1, 0,
                                              stream->get(), parameters.data(), nullptr),
              CUDA_SUCCESS);
  }
  void run(const std::vector<Piece>& pieces, unsigned ctas) {
    launch(pieces, ctas);
    finish(*stream);
  }

  /// Checks that `to` has pattern 2, except in the pieces, which have pattern 1 of their source.
  void expect_copied(const std::vector<Piece>& pieces) {
    copy(host->device_address(), to->address());
    std::vector<std::byte> expected(kBytes);
    for (std::size_t i = 0; i < kBytes; ++i) expected[i] = pattern(i, 2);
    for (const Piece& p : pieces)
      for (std::uint64_t i = 0; i < p.bytes; ++i) expected[p.to + i] = pattern(p.from + i, 1);
    EXPECT_EQ(std::memcmp(host->data(), expected.data(), kBytes), 0);
  }

  static constexpr std::size_t kMax = 20000;
  std::optional<Stream> stream;
  std::optional<DeviceBuffer> from, to, abort;
  std::optional<PinnedBuffer> host, list, aborted;
};

TEST_F(KernelsOnDevice, CopiesExactlyThePiecesWhateverTheirAlignment) {
  upload(from->address(), 1);
  std::vector<Piece> pieces;
  std::uint64_t at = 0;
  for (const std::uint64_t bytes : {0u, 1u, 15u, 16u, 17u, 255u, 4096u, 4097u, 5003u})
    for (std::uint64_t to_odd = 0; to_odd < 16; to_odd += 3)
      for (std::uint64_t from_odd = 0; from_odd < 17; ++from_odd) {
        pieces.push_back({at + to_odd, (at + 1536) / 16 * 16 + from_odd, bytes});
        at += bytes + 40;
      }
  ASSERT_LT(at + 8192, kBytes);
  for (const unsigned ctas : {1u, 7u, 132u}) {
    upload(to->address(), 2);
    run(pieces, ctas);
    expect_copied(pieces);
    EXPECT_EQ(was_aborted(), 0u);
  }
}

TEST_F(KernelsOnDevice, CopiesListsOfAnyLength) {
  upload(from->address(), 1);
  for (const std::size_t count : {0u, 1u, 2u, 511u, 513u, 20000u}) {
    std::vector<Piece> pieces;
    for (std::uint64_t i = 0; i < count; ++i) pieces.push_back({i * 304, i * 288 + 16, 256});
    for (const unsigned ctas : {1u, 3u, 264u}) {
      upload(to->address(), 2);
      run(pieces, ctas);
      expect_copied(pieces);
    }
  }
}

TEST_F(KernelsOnDevice, CopiesLargePieces) {
  upload(from->address(), 1);
  upload(to->address(), 2);
  const std::vector<Piece> pieces = {{16, 64, 1u << 20}, {(2u << 20) + 1, 3u << 20, 65536 + 5}};
  run(pieces, 16);
  expect_copied(pieces);
}

TEST_F(KernelsOnDevice, AnAbortBeforeTheStartCopiesNothingAndSaysSo) {
  upload(from->address(), 1);
  upload(to->address(), 2);
  set_abort(*stream, 1);
  run({{0, 0, 4096}, {8192, 8192, 4096}}, 4);
  EXPECT_EQ(was_aborted(), 1u);
  expect_copied({});
}

TEST_F(KernelsOnDevice, AnAbortWithNothingToDoIsNone) {
  set_abort(*stream, 1);
  run({}, 4);
  EXPECT_EQ(was_aborted(), 0u);
}

TEST_F(KernelsOnDevice, AnAbortWhileItRunsEndsItBeforeTheNextPiece) {
  // 20 GB through one CTA: 0.3 s on an H200, some microseconds with the abort.
  const std::vector<Piece> pieces(kMax, Piece{0, 0, 1u << 20});
  Result<Stream> second = Stream::create(*scope);
  ASSERT_TRUE(second.ok());
  launch(pieces, 1);
  set_abort(*second, 1);
  finish(*stream);
  EXPECT_EQ(was_aborted(), 1u);
}

}  // namespace kernels_test
}  // namespace linkspan::cuda
