#include "memory/descriptor.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/schema/descriptor_generated.h"

namespace linkspan::memory {
namespace descriptor_test {

std::vector<std::byte> bytes_of(std::size_t count, unsigned seed) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7 + seed);
  return bytes;
}

Descriptor full() {
  Descriptor d;
  d.name = std::string(kMaxNameBytes, 'n');
  d.id = {~std::uint64_t{0}, 2, 3};
  d.kind = MemoryKind::device;
  d.peers = {.read = true, .write = false, .exclusive = true};
  d.gpu.fill(std::byte{0xab});
  d.bytes = std::uint64_t{1} << 40;
  for (unsigned i = 0; i < kMaxKeys; ++i)
    d.keys.push_back({"transport" + std::to_string(i), bytes_of(kMaxKeyBytes - i, i), i, i == 3});
  return d;
}

Code code_of(std::span<const std::byte> bytes) { return decode(bytes).status().code(); }

TEST(Descriptor, ComesBackAsItWas) {
  for (const Descriptor& d : {full(), Descriptor()}) {
    const Result<Descriptor> back = decode(encode(d));
    ASSERT_TRUE(back.ok()) << back.status().to_string();
    EXPECT_EQ(back->name, d.name);
    EXPECT_EQ(back->id, d.id);
    EXPECT_EQ(back->kind, d.kind);
    EXPECT_EQ(back->peers.read, d.peers.read);
    EXPECT_EQ(back->peers.write, d.peers.write);
    EXPECT_EQ(back->peers.exclusive, d.peers.exclusive);
    EXPECT_EQ(back->gpu, d.gpu);
    EXPECT_EQ(back->bytes, d.bytes);
    ASSERT_EQ(back->keys.size(), d.keys.size());
    for (std::size_t i = 0; i < d.keys.size(); ++i) {
      EXPECT_EQ(back->keys[i].transport, d.keys[i].transport);
      EXPECT_EQ(back->keys[i].bytes, d.keys[i].bytes);
      EXPECT_EQ(back->keys[i].fd_count, d.keys[i].fd_count);
      EXPECT_EQ(back->keys[i].bearer, d.keys[i].bearer);
    }
  }
}

TEST(Descriptor, DecodesAtAnyAlignment) {
  std::vector<std::byte> shifted = encode(full());
  shifted.insert(shifted.begin(), std::byte{0});
  EXPECT_EQ(code_of(std::span(shifted).subspan(1)), Code::ok);
}

TEST(Descriptor, RefusesWhatPassesALimit) {
  Descriptor d = full();
  d.name += 'n';
  EXPECT_EQ(code_of(encode(d)), Code::corrupt);
  d = full();
  d.keys.push_back({"one", {}, 0, false});
  EXPECT_EQ(code_of(encode(d)), Code::corrupt);
  d = full();
  d.keys[0].bytes.resize(kMaxKeyBytes + 1);
  EXPECT_EQ(code_of(encode(d)), Code::corrupt);
  d = full();
  d.keys[0].transport.resize(65, 'x');
  EXPECT_EQ(code_of(encode(d)), Code::corrupt);
  d = full();
  d.kind = static_cast<MemoryKind>(kMemoryKinds);
  EXPECT_EQ(code_of(encode(d)), Code::corrupt);
}

TEST(Descriptor, RefusesAUuidOfAnotherLength) {
  flatbuffers::FlatBufferBuilder builder;
  const auto gpu = builder.CreateVector(std::vector<std::uint8_t>(15, 1));
  const schema::RegionId id(1, 2, 3);
  builder.Finish(schema::CreateDescriptor(builder, 0, &id, 0, false, false, false, gpu));
  const auto* begin = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
  EXPECT_EQ(code_of({begin, builder.GetSize()}), Code::corrupt);
}

TEST(Descriptor, RefusesWhatIsCutShort) {
  Descriptor d = full();
  d.keys.resize(2);
  d.keys[0].bytes.resize(20);
  d.keys[1].bytes.resize(20);
  const std::vector<std::byte> bytes = encode(d);
  for (std::size_t n = 0; n + 3 < bytes.size(); ++n)  // up to 3 bytes at the end are padding
    EXPECT_EQ(code_of(std::span(bytes).first(n)), Code::corrupt) << n;
  EXPECT_EQ(code_of(std::vector<std::byte>(1 << 20)), Code::corrupt);
}

TEST(Descriptor, SurvivesAnyDamage) {  // what is not refused keeps the limits
  const std::vector<std::byte> good = encode(full());
  std::mt19937 random(7);  // NOLINT(cert-msc51-cpp): repeatable
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::byte> bytes = good;
    for (unsigned i = 0; i <= random() % 4; ++i)
      bytes[random() % (round % 2 == 0 ? bytes.size() : 200)] = static_cast<std::byte>(random());
    const Result<Descriptor> back = decode(bytes);
    if (!back.ok()) {
      EXPECT_EQ(back.status().code(), Code::corrupt);
      continue;
    }
    EXPECT_LE(back->name.size(), kMaxNameBytes);
    EXPECT_LE(back->keys.size(), kMaxKeys);
    for (const auto& key : back->keys) EXPECT_LE(key.bytes.size(), kMaxKeyBytes);
  }
}

}  // namespace descriptor_test
}  // namespace linkspan::memory
