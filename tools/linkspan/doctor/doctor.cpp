// `linkspan doctor`: what works on this machine, what does not, and what to do about it.
#include <unistd.h>

#include "base/options.hpp"
#include "tools/linkspan/command_line/output.hpp"
#include "tools/linkspan/command_line/verb.hpp"
#include "tools/linkspan/doctor/diagnosis.hpp"

namespace linkspan::tool {
namespace {

/// Removes the socket folder, which each Engine creates, at the end if it did not exist before.
class SocketFolderAsBefore {
 public:
  SocketFolderAsBefore() {
    const auto options = base::Options::from_environment();
    if (options.ok() && ::access(options->socket_dir.c_str(), F_OK) != 0)
      absent_ = options->socket_dir;
  }
  SocketFolderAsBefore(const SocketFolderAsBefore&) = delete;
  SocketFolderAsBefore& operator=(const SocketFolderAsBefore&) = delete;
  ~SocketFolderAsBefore() {
    if (!absent_.empty()) ::rmdir(absent_.c_str());  // fails if another process uses it now
  }

 private:
  std::string absent_;
};

class DoctorVerb final : public Verb {
 public:
  const char* name() const override { return "doctor"; }
  const char* what() const override {
    return "What works here, what does not, what to do. Exit code 1 if something FAILs.";
  }
  void define(Arguments& arguments) override {
    arguments.flag("--gpu", gpu_, "What a GPU lacks, or that there is none, is a failure");
    arguments.text("--json", json_, "FILE", "Also write the checks for programs; -: to stdout");
  }
  int run(const std::string& command) override {
    const auto output = Output::open(json_);
    if (!output.ok()) return refused(name(), output.status());
    const SocketFolderAsBefore folder;
    Diagnosis found(gpu_);
    const Gpus gpus = Gpus::find();
    check_settings(found);
    check_host(found);
    check_network(found);
    check_gpus(found, gpus);
    check_tcpx(found, gpus);
    check_two_processes(found, gpus);
    if (Status s = output->write(found.text(), found.json(command)); !s.ok())
      return failed(name(), s);
    return found.count(Level::fail) == 0 ? kSuccess : kFailed;
  }

 private:
  bool gpu_ = false;
  std::string json_;
};

}  // namespace

std::unique_ptr<Verb> doctor_verb() { return std::make_unique<DoctorVerb>(); }

}  // namespace linkspan::tool
