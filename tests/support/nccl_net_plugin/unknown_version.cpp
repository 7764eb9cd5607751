// tests/support/nccl_net_plugin/unknown_version.cpp - a module with a table of version 4 only,
// which must not be called.
extern "C" __attribute__((visibility("default"))) const void* const ncclNetPlugin_v4[16];
const void* const ncclNetPlugin_v4[16] = {"linkspan-test"};
