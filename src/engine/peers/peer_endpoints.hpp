// engine/peers/peer_endpoints.hpp - the Endpoints of one peer, one for each transport that both
// sides have.
//
// On the path of a byte: post() goes to one of them, progress() to all.
// Threads: externally synchronised (the peer's mutex).
// Invariants: a Channel outlives its Endpoint.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/no_memory.hpp"
#include "transport/transport.hpp"

namespace linkspan::engine {

class PeerEndpoints {
 public:
  using When = transport::PollHint::When;

  explicit PeerEndpoints(std::size_t transports) : all_(transports) {}

  /// Adds the Endpoint of the transport with that index.
  void add(std::size_t transport, std::unique_ptr<transport::Channel> channel,
           std::unique_ptr<transport::Endpoint> endpoint) {
    all_[transport] = {std::move(channel), std::move(endpoint)};
  }
  /// Returns null if the peer lacks that transport.
  transport::Endpoint* at(std::size_t transport) const noexcept {
    return all_[transport].endpoint.get();
  }

  /// Calls `act(index, endpoint)` for each Endpoint.
  template <class Act>
  void for_each(Act act) const {
    for (std::size_t i = 0; i < all_.size(); ++i)
      if (all_[i].endpoint != nullptr) act(i, *all_[i].endpoint);
  }

  /// Calls progress() of each. One that has no memory is called again by the next progress().
  void progress(transport::CompletionSink& sink) const noexcept {
    for_each([&](std::size_t, transport::Endpoint& each) {
      (void)base::or_no_memory([&] {
        each.progress(sink);
        return Status();
      });
    });
  }
  /// Returns the earliest hint of all.
  transport::PollHint poll_hint() const {
    transport::PollHint next;
    for_each([&](std::size_t, const transport::Endpoint& each) {
      next = transport::earlier(next, each.poll_hint());
    });
    return next;
  }
  bool idle() const { return poll_hint().when == When::idle; }
  void stop_serving() const {
    for_each([](std::size_t, transport::Endpoint& each) { each.stop_serving(); });
  }
  void close() const {
    for_each([](std::size_t, transport::Endpoint& each) { each.close(); });
  }
  void peer_terminated() const {
    for_each([](std::size_t, transport::Endpoint& each) { each.peer_terminated(); });
  }
  /// Returns whether no byte of the peer is written any more, after peer_terminated().
  bool drained() const {
    return std::ranges::all_of(all_, [](const TransportLink& each) {
      return each.endpoint == nullptr || each.endpoint->drained();
    });
  }
  /// Lists what the peer does on regions of this side.
  std::vector<transport::Served> served() const {
    std::vector<transport::Served> all;
    for_each([&](std::size_t, const transport::Endpoint& each) {
      for (const transport::Served& one : each.served()) all.push_back(one);
    });
    return all;
  }

 private:
  struct TransportLink {
    std::unique_ptr<transport::Channel> channel;
    std::unique_ptr<transport::Endpoint> endpoint;  // null: the peer lacks the transport
  };

  std::vector<TransportLink> all_;  // by the transports' order
};

}  // namespace linkspan::engine
