// tests/support/nccl_net_plugin/no_table.cpp - a module that is no network plugin.
extern "C" __attribute__((visibility("default"))) int linkspan_no_table();
int linkspan_no_table() { return 0; }
