// tools/linkspan/pair/helper_process.hpp - the second process of demo, bench and doctor: the peer
// that owns the remote memories.
//
// Requests of the parent are fields separated by spaces; numbers are decimal, PLACE is a name of
// Place::name():
//   hello                                   does nothing                      -> ok
//   probe                                   a value in the helper's memory    -> ok ADDRESS VALUE
//   peek PID ADDRESS                        that process's value, read across -> ok VALUE
//   open ADDRESS                            opens an Engine that listens      -> ok
//   memory PLACE BYTES                      allocates, publishes as PLACE     -> ok ADDRESS [IPC]
//   fill PLACE OFFSET BYTES SEED FROM                                         -> ok
//   check PLACE OFFSET BYTES SEED FROM                                        -> ok
//   arrived PLACE BASE SENT BEFORE SHAPE    checks a transfer of that shape   -> ok
//   meet PLACE                              looks up what the parent published -> ok
//   echo PLACE COUNT OFFSET BYTES LOW       answers COUNT notifications, each by a write of BYTES
//                                           bytes, from OFFSET on             -> ok
//   ping FILE PLACE MEMORY                  prepares pong: a page of both processes, and a path
//                                           from PLACE to the parent's MEMORY, which is in the
//                                           format of `memory`'s reply        -> ok
//   pong COUNT OFFSET BYTES                 echo by bare code                 -> ok
// IPC is the CUDA IPC handle in hex and the region's offset in it, for the bare code's own mapping.
// Threads: the helper's main thread.
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

/// argv[1] of the helper process.
inline constexpr std::string_view kHelperVerb = "--far-end";

/// Reads the 8 bytes at `address` of another process by process_vm_readv.
Result<std::uint64_t> read_u64(pid_t pid, std::uint64_t address);

/// Executes requests until the parent closes its socket. Returns the exit code.
int run_helper_process();

/// Returns the request "COMMAND PLACE NUMBER ...".
std::string target_request(const char* command, Place place,
                           std::initializer_list<std::uint64_t> numbers);

/// The reply to `memory`: where the memory is, for bare copies.
struct ExportedMemory {
  std::uint64_t address = 0;  ///< In the helper process.
  bool exported = false;      ///< True for memory of a GPU: the members below are set.
  cuda::IpcHandle handle{};
  std::uint64_t allocation_offset = 0;

  static Result<ExportedMemory> of(const Memory& memory);
  std::string encode() const;
  static Result<ExportedMemory> decode(const std::string& text);
};

}  // namespace linkspan::tool
