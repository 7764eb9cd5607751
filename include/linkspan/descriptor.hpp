// linkspan/descriptor.hpp - says where to find what an Engine published, as bytes for a metadata
// channel.
//
//   auto bytes = decode.describe("kv").value().serialize();               // send these anywhere
//   auto found = prefill.lookup(Descriptor::parse(bytes).value()).value();  // connects, imports
//
// Off the path of a byte.
// Threads: values.
// Invariants: a Descriptor has no key: the Engine at its address must admit the process that uses
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "linkspan/peer.hpp"
#include "linkspan/region.hpp"
#include "linkspan/status.hpp"
#include "linkspan/types.hpp"

namespace linkspan {

/// The size and kind of a region, as its owner describes it to others.
struct DescribedRegion {
  std::uint64_t bytes = 0;
  MemoryKind kind = MemoryKind::host;
  friend bool operator==(const DescribedRegion&, const DescribedRegion&) = default;
};

/// Made by Engine::describe(), used by Engine::lookup(). Ends with the Engine that made it.
struct LINKSPAN_API Descriptor {
  std::string address;        ///< Engine::addresses().
  std::string engine;         ///< EngineOptions::name.
  std::string name;           ///< The published name.
  std::uint64_t version = 0;  ///< Version of a set. 0: one region, published without a version.
  std::vector<DescribedRegion> regions;  ///< In the order in which they were published.

  /// Returns bytes that every language and every machine reads, at most 40 KiB.
  std::vector<std::byte> serialize() const;
  /// Parses what serialize() returned. The bytes may come from anyone. corrupt: they are something
  /// else, were cut or changed, or pass a limit. unsupported: another release's format.
  static Result<Descriptor> parse(std::span<const std::byte> bytes);

  friend bool operator==(const Descriptor&, const Descriptor&) = default;
};

/// The result of Engine::lookup(). `regions` has version 0 if one region was described.
struct LookupResult {
  Peer peer;
  RegionSet regions;
};

}  // namespace linkspan
