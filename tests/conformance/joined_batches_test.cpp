// Tests small batches that wait for each other and are joined: the path that each reports.
#include "tests/support/fake_cuda/controls.hpp"
#include "tests/support/transport_fixture.hpp"

namespace linkspan::test {

TEST_P(TransportConformance, ABatchThatWentWithOthersTellsTheirWay) {
  if (GetParam().name != "local_device") return;  // only there batches wait for a GPU
  const FakeCuda fake = FakeCuda::find();
  if (!fake) return;  // only there a GPU can be held
  constexpr std::uint64_t kBytes = 4096;
  link->here->fill(1);
  link->there->fill(2);
  std::vector<std::uint64_t> cookies(8);
  const auto path = [&](std::size_t i) { return std::string(link->paths.at(cookies[i]).path); };
  FakeCudaHold held(fake, 0);
  for (std::size_t i = 0; i < cookies.size(); ++i) {
    const Block block{i * kBytes, i * kBytes, kBytes};
    const Batch batch = link->batch(std::span(&block, 1));
    cookies[i] = batch.cookie;
    EXPECT_EQ(link->post(batch).to_string(), "ok") << i;
    EXPECT_EQ(path(i), "cuda_ipc+copy_engine") << i;
  }
  link->progress();
  held.release();
  EXPECT_TRUE(link->drain());
  for (const auto& [cookie, status] : link->done) EXPECT_EQ(status.to_string(), "ok") << cookie;
  const bool kernel = take(topology()->activate(topology()->devices()[0].uuid))->kernels().ok();
  for (std::size_t i = 0; i < cookies.size(); ++i)
    EXPECT_EQ(path(i), i > 0 && kernel ? "cuda_ipc+sm_kernel" : "cuda_ipc+copy_engine") << i;
  link->there->expect(0, *link->here, 0, cookies.size() * kBytes);
  link->there->check();
}

}  // namespace linkspan::test
