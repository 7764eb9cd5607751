// The program `linkspan`.
#include "tools/linkspan/command_line/tool.hpp"

int main(int argc, char** argv) { return linkspan_tool(argc, argv); }
