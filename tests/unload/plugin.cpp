// A module that a program loads for a while: it uses the library and leaves nothing of its own.
#include <linkspan/engine.hpp>

using namespace std::chrono_literals;

/// Returns 0, or the step that failed.
extern "C" __attribute__((visibility("default"))) int work() {
  auto server = linkspan::Engine::open({.name = "server"});
  auto client = linkspan::Engine::open({.name = "client"});
  if (!server.ok() || !client.ok()) return 1;
  if (!server->listen().ok()) return 2;
  auto here = client->allocate_shared(1u << 20), there = server->allocate_shared(1u << 20);
  if (!here.ok() || !there.ok() || !server->publish("there", *there).ok()) return 3;
  auto peer = client->connect(server->address());
  if (!peer.ok()) return 4;
  auto remote = peer->lookup("there");
  if (!remote.ok()) return 5;
  const linkspan::Block all{0, 0, 1u << 20};
  auto moved = peer->write(*here, *remote, std::span(&all, 1));
  if (!moved.ok() || !moved->wait(10s).ok()) return 6;
  return client->close(5s).ok() && server->close(5s).ok() ? 0 : 7;
}
