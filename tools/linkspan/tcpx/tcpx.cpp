// `linkspan tcpx`: GPU memory between two processes through a network plugin of NCCL's.
#include <iostream>

#include "p2p/tcpx/tcpx_run.hpp"
#include "tools/linkspan/command_line/table.hpp"
#include "tools/linkspan/command_line/verb.hpp"

namespace linkspan::tool {
namespace {

class TcpxVerb final : public Verb {
 public:
  const char* name() const override { return "tcpx"; }
  const char* what() const override {
    return "Moves GPU memory between two processes through GPUDirect-TCPX or another network "
           "plugin of NCCL's, and verifies it: `tcpx transfer server` and `tcpx transfer "
           "SERVER_IP`; `tcpx connection` connects only. Nothing is authenticated.";
  }
  void define(Arguments& arguments) override {
    arguments.rest("what", words_, "transfer|connection server|SERVER_IP",
                   "Which, and who this is");
    arguments.size("--bytes", plan_.bytes,
                   "Of each iteration, the same on both sides; else the 23 bytes of p2p/tcpx");
    arguments.number("--iterations", plan_.iterations, 1, 1u << 20, "K", "The same on both sides");
    arguments.number("--port", plan_.port, 1, 65535, "PORT", "12345");
    arguments.number("--device", plan_.device, 0, 1023, "N", "The plugin's (0)");
    arguments.text("--plugin", plan_.plugin, "NAMES",
                   "As LINKSPAN_NCCL_NET_PLUGIN: names or paths, by comma");
    arguments.choice("--unpack", plan_.unpack, {"d2d", "host", "kernel"},
                     "How fragments reach their place (LINKSPAN_UNPACK, else d2d)");
    arguments.flag("--host-memory", plan_.host_memory, "Although the plugin takes GPU memory");
    arguments.number("--timeout", timeout_s_, 1, 86400, "SECONDS", "Of each wait (30)");
  }

  int run(const std::string& /*command*/) override {
    if (words_.size() != 2 || (words_[0] != "transfer" && words_[0] != "connection"))
      return refused(name(), Status(Code::invalid_argument, Scope::request,
                                    "`linkspan tcpx transfer|connection server|SERVER_IP`"));
    plan_.transfer = words_[0] == "transfer";
    plan_.server = words_[1] == "server";
    plan_.host = plan_.server ? "" : words_[1];
    plan_.timeout = std::chrono::seconds(timeout_s_);
    const auto figures =
        run_tcpx(plan_, [](const std::string& line) { std::cout << line + "\n"
                                                                << std::flush; });
    if (!figures.ok()) return failed(name(), figures.status());
    if (plan_.server && plan_.bytes != 0)
      std::cout << size_name(plan_.bytes) + " x " + std::to_string(plan_.iterations) + ": " +
                       number(figures->gb_per_s) + " GB/s, " + std::to_string(figures->fragments) +
                       " fragments, verified\n";
    return kSuccess;
  }

 private:
  std::vector<std::string> words_;
  TcpxPlan plan_;
  unsigned timeout_s_ = 30;
};

}  // namespace

std::unique_ptr<Verb> tcpx_verb() { return std::make_unique<TcpxVerb>(); }

}  // namespace linkspan::tool
