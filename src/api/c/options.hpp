// api/c/options.hpp - converts the structs of linkspan.h to those of the C++ API.
//
// On the path of a byte: before the submission.
// Threads: any thread.
// Invariants: a caller may be compiled against an earlier or a later release. Each struct has its
// length; a missing field has its default, and a field unknown here has to be zero.
#pragma once

#include <span>

#include "api/c/handles.hpp"

namespace linkspan::c {

/// These convert options; null means all defaults. unsupported: a field that this release does not
/// know is set. invalid_argument: the text names the field.
Result<EngineOptions> engine_options(const linkspan_engine_options* given);
Result<ConnectOptions> connect_options(const linkspan_connect_options* given);
Result<RegionOptions> region_options(const linkspan_region_options* given);
/// The result points to the caller's memory.
Result<TransferOptions> transfer_options(const linkspan_transfer_options* given);
Result<CaptureOptions> capture_options(const linkspan_capture_options* given);
Result<StreamOrder> stream_of(const linkspan_stream& given);
Result<Op> op_of(int op);
/// Checks a count of pairs of regions, before room is made for them.
Status check_pairs(std::size_t count);

/// A linkspan_shape. Owns its blocks; page lists are the caller's.
struct OwnedShape {
  std::vector<Block> blocks;
  Shape shape;
};
Result<OwnedShape> shape_of(const linkspan_shape& given);

}  // namespace linkspan::c
