#include "tools/linkspan/measure/report.hpp"

namespace linkspan::tool {

std::string title(const std::string& from, const std::string& to, Op op) {
  return from + " -> " + to + (op == Op::read ? " (read)" : "");
}

Report Report::of_machine(const Gpus& gpus) {
  Report out;
  out.machine = bare::describe_machine(gpus.topology());
  if (gpus.count() == 0) out.no_gpu = gpus.why().what();
  return out;
}

}  // namespace linkspan::tool
