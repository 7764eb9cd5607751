// tools/linkspan/pair/helper_process.hpp - the second process of demo, bench and doctor: the peer
// that owns the far memories.
//
// What the parent asks of it, in words that are separated by spaces (numbers are decimal):
//   hello                                   nothing but the answer            -> ok
//   probe                                   a word of the second process       -> ok ADDRESS WORD
//   peek PID ADDRESS                        that process's word, read across   -> ok WORD
//   open ADDRESS                            an Engine that listens there      -> ok
//   memory PLACE BYTES                      allocated, published as PLACE     -> ok ADDRESS [IPC]
//   fill PLACE OFFSET BYTES SEED FROM                                         -> ok
//   check PLACE OFFSET BYTES SEED FROM                                        -> ok
//   arrived PLACE BASE SENT BEFORE SHAPE    a transfer of that shape          -> ok
//   meet PLACE                              looks up what the parent published -> ok
//   echo PLACE COUNT OFFSET BYTES LOW       so many notifications, each answered by a write of
//                                           BYTES bytes from OFFSET on, one behind the other -> ok
//   ping FILE PLACE MEMORY                  bare code's way back: a page of both processes, from
//                                           PLACE to the parent's MEMORY, as `memory` answers -> ok
//   pong COUNT OFFSET BYTES                 the same as echo by bare code     -> ok
// IPC is the CUDA IPC handle in hex and the region's offset in it, for the bare code's own mapping.
// Threads: the child's main thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "cuda/handles.hpp"
#include "linkspan/status.hpp"
#include "tools/linkspan/pair/memories.hpp"

namespace linkspan::tool {

/// argv[1] of the second process.
inline constexpr std::string_view kHelperVerb = "--far-end";

/// The 8 bytes at `address` of another process, by process_vm_readv.
Result<std::uint64_t> read_u64(pid_t pid, std::uint64_t address);

/// Until the parent is gone; the exit code.
int run_helper_process();

/// "VERB PLACE NUMBER ..."
std::string target_request(const char* command, Place place,
                           std::initializer_list<std::uint64_t> numbers);

/// What `memory` answers.
struct ExportedMemory {
  std::uint64_t address = 0;  ///< In the process that it is of.
  bool exported = false;      ///< What follows is set: it is a GPU's.
  cuda::IpcHandle handle{};
  std::uint64_t allocation_offset = 0;

  static Result<ExportedMemory> of(const Memory& memory);
  std::string encode() const;
  static Result<ExportedMemory> decode(const std::string& text);
};

}  // namespace linkspan::tool
