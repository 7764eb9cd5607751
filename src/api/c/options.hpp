// api/c/options.hpp - the structs of linkspan.h as the C++ API has them.
//
// A caller was compiled against an earlier or a later release than this one: each struct says how
// long it is, what it lacks has its default, and what we do not know has to be zero.
// Threads: any thread.
#pragma once

#include <span>

#include "api/c/handles.hpp"

namespace linkspan::c {

// Null: all defaults. unsupported: a later release's, with something set that this one does not
// know. invalid_argument names the field.
Result<EngineOptions> engine_options(const linkspan_engine_options* given);
Result<ConnectOptions> connect_options(const linkspan_connect_options* given);
Result<RegionOptions> region_options(const linkspan_region_options* given);
/// What it points to stays the caller's.
Result<TransferOptions> transfer_options(const linkspan_transfer_options* given);
Result<Op> op_of(int op);

/// One of the three that a linkspan_shape may be; points to what the caller's does.
struct Shape {
  std::vector<Block> blocks;
  Pages pages;
  Strides strides;
  enum class Form : std::uint8_t { blocks, pages, strides } form = Form::blocks;

  /// `f` of the one that it is.
  template <class F>
  auto visit(const F& f) const {
    if (form == Form::pages) return f(pages);
    if (form == Form::strides) return f(strides);
    return f(std::span<const Block>(blocks));
  }
};
Result<Shape> shape_of(const linkspan_shape& given);

}  // namespace linkspan::c
