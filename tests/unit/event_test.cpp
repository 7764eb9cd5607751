#include "cuda/event.hpp"

#include <gtest/gtest.h>

#include "tests/unit/cuda_fixture.hpp"

namespace linkspan::cuda {
namespace event_test {

using EventOnDevice = OnDevice;

TEST_F(EventOnDevice, IsDoneBeforeItIsRecordedAndAfterItsWork) {
  Result<Event> event = Event::create(*scope);
  Result<Stream> stream = Stream::create(*scope);
  Result<DeviceBuffer> buffer = DeviceBuffer::create(*scope, 1u << 20);
  ASSERT_TRUE(event.ok() && stream.ok() && buffer.ok());
  const Result<bool> fresh = event->done(*scope);
  ASSERT_TRUE(fresh.ok());
  EXPECT_TRUE(*fresh);
  ASSERT_EQ(device->driver().cuMemsetD8Async(buffer->address(), 1, 1u << 20, stream->get()),
            CUDA_SUCCESS);
  ASSERT_TRUE(event->record(*scope, stream->get()).ok());
  finish(*stream);
  const Result<bool> after = event->done(*scope);
  ASSERT_TRUE(after.ok());
  EXPECT_TRUE(*after);
}

TEST_F(EventOnDevice, AMoveMovesTheOwner) {
  Result<Event> created = Event::create(*scope);
  Result<Stream> stream = Stream::create(*scope);
  ASSERT_TRUE(created.ok() && stream.ok());
  const CUevent raw = created->get();
  Event moved = *std::move(created);
  EXPECT_EQ(moved.get(), raw);
  EXPECT_TRUE(moved.record(*scope, stream->get()).ok());
  finish(*stream);
}

}  // namespace event_test
}  // namespace linkspan::cuda
