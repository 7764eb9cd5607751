// Lists every transport under the suite, with the kinds of memory of the near end and the far end.
#include "tests/conformance/subjects.hpp"

namespace linkspan::test {

const std::vector<Subject>& all_subjects() {
  static const std::vector<Subject> kSubjects = {
      {"loopback", open_loopback},
      {"local", open_in_two_processes, local_host, local_host},
      {"local_shared", open_in_two_processes, local_shared, local_shared},
      {"local_delegated", open_in_two_processes, local_shared, local_exclusive},
      {"local_device", open_in_two_processes, local_device, local_device},
      {"local_pinned", open_in_two_processes, local_device, local_pinned},
      {"local_bounced", open_in_two_processes, local_exclusive, local_exclusive},
      {"local_bounced_gpu", open_in_two_processes, local_exclusive_device, local_exclusive_device},
      {"local_bounced_mixed", open_in_two_processes, local_exclusive_device, local_exclusive},
      {"tcp", open_tcp, tcp_host, tcp_host},
      {"tcp_device", open_tcp, tcp_device, tcp_device},
      {"tcp_mixed", open_tcp, tcp_host, tcp_device},
      {"verbs", open_in_two_processes, verbs_host, verbs_host},
      {"verbs_device", open_in_two_processes, verbs_device, verbs_device},
      {"verbs_mixed", open_in_two_processes, verbs_device, verbs_host},
      {"nccl_net_v7", open_in_two_processes, nccl_net_v7_host, nccl_net_v7_host},
      {"nccl_net_v7_device", open_in_two_processes, nccl_net_v7_device, nccl_net_v7_device},
      {"nccl_net_v7_mixed", open_in_two_processes, nccl_net_v7_host, nccl_net_v7_device},
      {"nccl_net_newest", open_in_two_processes, nccl_net_newest_host, nccl_net_newest_host},
      {"nccl_net_newest_device", open_in_two_processes, nccl_net_newest_device,
       nccl_net_newest_device},
      {"nccl_net_newest_mixed", open_in_two_processes, nccl_net_newest_device,
       nccl_net_newest_host},
      {"nccl_net_staged", open_in_two_processes, nccl_net_staged_device, nccl_net_staged_device},
      {"nccl_net_staged_mixed", open_in_two_processes, nccl_net_staged_device,
       nccl_net_staged_host},
      {"nccl_net_staged_at_one_end", open_in_two_processes, nccl_net_newest_device,
       nccl_net_staged_device},
      {"nccl_net_exporter", open_in_two_processes, nccl_net_exporter_host, nccl_net_exporter_host},
  };
  return kSubjects;
}

}  // namespace linkspan::test
