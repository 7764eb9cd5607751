// base/fork.hpp - whether this process is a forked child of the one that made an object.
//
// In such a child none of the threads runs, and a lock that one of them held is held for ever: what
// notices it touches nothing and lets nothing go.
// Threads: any thread; costs a load.
#pragma once

namespace linkspan::base {

class ForkWatch {
 public:
  ForkWatch() noexcept;
  bool forked() const noexcept;

 private:
  unsigned generation_;
};

}  // namespace linkspan::base
