// base/fork.hpp - detects that this process is a forked child of the one that created an object.
//
// None of the threads runs in such a child, and a lock that one of them owned stays locked for
// ever. Code that detects a fork touches nothing and releases nothing. Threads: any thread; costs a
// load.
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
