// Tests the keys of regions that peers reach over a wire.
#include "transport/wire_region.hpp"

#include <gtest/gtest.h>

#include "base/schema/flat.hpp"
#include "base/schema/wire_generated.h"

namespace linkspan::transport {
namespace wire_region_test {

const WireKey kKey{.id = {.incarnation = 7, .buffer = 2, .serial = 3},
                   .kind = MemoryKind::device,
                   .peers = {.read = true, .write = false},
                   .bytes = 12345,
                   .gpu = {std::byte{9}},
                   .token = {std::byte{5}, std::byte{6}}};

TEST(WireKey, BringsWhatTheOwnerHasSaid) {
  WireKey key = kKey;
  for (const bool joined : {false, true}) {
    if (joined) key.fabric = {.cluster = {std::byte{1}, std::byte{2}}, .clique = 70000};
    const auto read = decode_key(encode(key));
    ASSERT_TRUE(read.ok()) << read.status().to_string();
    EXPECT_EQ(read->id, key.id);
    EXPECT_EQ(read->kind, key.kind);
    EXPECT_TRUE(read->peers.read && !read->peers.write);
    EXPECT_EQ(read->bytes, key.bytes);
    EXPECT_EQ(read->gpu, key.gpu);
    EXPECT_EQ(read->token, key.token);
    EXPECT_EQ(read->fabric, key.fabric);
  }
}

TEST(WireKey, IsRefused_WhereItsClusterHasNotSixteenBytes) {
  for (const std::size_t bytes : {0u, 15u, 17u}) {
    flatbuffers::FlatBufferBuilder out;
    const auto gpu = schema::vector_of(out, kKey.gpu), token = schema::vector_of(out, kKey.token),
               cluster = schema::vector_of(out, std::vector<std::byte>(bytes));
    out.Finish(schema::CreateWireKey(out, 7, 2, 3, 0, true, true, 1, gpu, token, cluster, 1));
    const auto read = decode_key(schema::finished(out));
    EXPECT_EQ(read.status().code(), Code::corrupt) << bytes;
  }
}

}  // namespace wire_region_test
}  // namespace linkspan::transport
