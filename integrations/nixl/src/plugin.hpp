// integrations/nixl/src/plugin.hpp - what libplugin_LINKSPAN.so calls. A wheel has these functions
// in liblinkspan.so.0, and its libplugin_LINKSPAN.so is entry.cpp alone.
//
// Threads: any.
#pragma once

#include "integrations/nixl/src/abi.hpp"
#include "linkspan/status.hpp"

extern "C" {
/// Returns what NIXL asks of a plugin whose backends `create` makes.
LINKSPAN_API linkspan::nixl::abi::Plugin linkspan_nixl_plugin(
    decltype(linkspan::nixl::abi::Plugin::create) create);

/// Returns a new backend, or null and a line in the log that says why. `file` is the path by which
/// NIXL loaded the plugin: its name is the backend's.
LINKSPAN_API linkspan::nixl::abi::Backend* linkspan_nixl_create(
    const linkspan::nixl::abi::StartArguments* start, const char* file);
}
