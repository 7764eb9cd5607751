#include "cuda/stream.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "cuda/event.hpp"
#include "tests/unit/cuda_fixture.hpp"

namespace linkspan::cuda {
namespace stream_test {

class StreamOnDevice : public OnDevice {
 protected:
  static std::uint64_t load(PinnedBuffer& words, std::size_t index) {
    return std::atomic_ref(reinterpret_cast<std::uint64_t*>(words.data())[index])
        .load(std::memory_order_acquire);
  }
};

TEST_F(StreamOnDevice, WritesTheWordAfterTheWorkBeforeIt) {
  constexpr std::size_t kBytes = 4u << 20;
  Result<Stream> stream = Stream::create(*scope);
  Result<PinnedBuffer> data = PinnedBuffer::create(*scope, kBytes);
  Result<PinnedBuffer> back = PinnedBuffer::create(*scope, kBytes);
  Result<PinnedBuffer> words = PinnedBuffer::create(*scope, 64);
  Result<DeviceBuffer> buffer = DeviceBuffer::create(*scope, kBytes);
  ASSERT_TRUE(stream.ok() && data.ok() && back.ok() && words.ok() && buffer.ok());
  for (unsigned round = 1; round <= 4; ++round) {
    for (std::size_t i = 0; i < kBytes; ++i) data->data()[i] = pattern(i, round);
    const Driver& driver = device->driver();
    ASSERT_EQ(
        driver.cuMemcpyAsync(buffer->address(), data->device_address(), kBytes, stream->get()),
        CUDA_SUCCESS);
    ASSERT_EQ(
        driver.cuMemcpyAsync(back->device_address(), buffer->address(), kBytes, stream->get()),
        CUDA_SUCCESS);
    ASSERT_TRUE(stream->write_value(*scope, words->device_address() + 8, round).ok());
    while (load(*words, 1) != round) {
      const Status status = stream->query(*scope);
      ASSERT_TRUE(status.ok() || status.code() == Code::pending) << status.to_string();
    }
    EXPECT_TRUE(std::equal(data->data(), data->data() + kBytes, back->data())) << round;
  }
  finish(*stream);
}

TEST_F(StreamOnDevice, AFreshStreamIsIdleAndCapturesNothing) {
  for (const int priority : {0, -1, 1, -1000}) {
    Result<Stream> stream = Stream::create(*scope, priority);
    ASSERT_TRUE(stream.ok()) << stream.status().to_string();
    EXPECT_TRUE(stream->query(*scope).ok());
    const Result<bool> capturing = is_capturing(*scope, stream->get());
    ASSERT_TRUE(capturing.ok());
    EXPECT_FALSE(*capturing);
  }
}

TEST_F(StreamOnDevice, AnErrorNamesTheCall) {
  Result<Stream> stream = Stream::create(*scope);
  ASSERT_TRUE(stream.ok());
  const Status odd = stream->write_value(*scope, 3, 1);
  ASSERT_FALSE(odd.ok());
  EXPECT_NE(odd.what().find("cuStreamWriteValue64"), std::string::npos);
}

TEST_F(StreamOnDevice, WaitsForTheEventOfAnother) {
  constexpr std::size_t kBytes = 8u << 20;
  Result<Stream> first = Stream::create(*scope), second = Stream::create(*scope);
  Result<PinnedBuffer> words = PinnedBuffer::create(*scope, 64);
  Result<DeviceBuffer> buffer = DeviceBuffer::create(*scope, 2 * kBytes);
  Result<Event> event = Event::create(*scope);
  ASSERT_TRUE(first.ok() && second.ok() && words.ok() && buffer.ok() && event.ok());
  for (std::uint64_t round = 1; round <= 8; ++round) {
    ASSERT_EQ(device->driver().cuMemcpyAsync(buffer->address(), buffer->address() + kBytes, kBytes,
                                             first->get()),
              CUDA_SUCCESS);
    ASSERT_TRUE(first->write_value(*scope, words->device_address(), round).ok());
    ASSERT_TRUE(event->record(*scope, first->get()).ok());
    ASSERT_TRUE(second->wait_for(*scope, *event).ok());
    ASSERT_TRUE(second->write_value(*scope, words->device_address() + 8, round).ok());
    while (load(*words, 1) != round) ASSERT_NE(second->query(*scope).scope(), Scope::process);
    EXPECT_EQ(load(*words, 0), round);  // the other's word was there before ours
  }
  finish(*first);
  finish(*second);
}

}  // namespace stream_test
}  // namespace linkspan::cuda
