#include <linkspan/engine.hpp>

#include <cstdio>
#include <vector>

int main() {
  auto engine = linkspan::Engine::open({});
  if (!engine.ok()) {
    std::printf("open: %s\n", engine.status().to_string().c_str());
    return 1;
  }
  std::vector<unsigned char> memory(1 << 16);
  auto region = engine->register_memory(memory.data(), memory.size(), {});
  if (!region.ok()) {
    std::printf("register_memory: %s\n", region.status().to_string().c_str());
    return 1;
  }
  std::puts("ok");
  return 0;
}
