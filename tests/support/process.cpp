#include "tests/support/process.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "base/process.hpp"
#include "tests/support/take.hpp"

namespace linkspan::test {
namespace {

constexpr const char* kVerb = "--helper=";
constexpr const char* kHello = "hello";
constexpr std::uint16_t kRequest = 1, kAnswer = 2;  // ops of frames with an id; messages have none

std::map<std::string, HelperMain>& helpers() {
  static std::map<std::string, HelperMain> known;
  return known;
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// Returns a line for each thread of a process: its name, state and times, and where in the kernel
/// it waits.
std::string describe_threads(pid_t pid) {
  std::string all;
  std::error_code gone;
  for (const auto& thread :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", gone)) {
    std::string stat, wchan;
    std::getline(std::ifstream(thread.path() / "stat"), stat);
    std::getline(std::ifstream(thread.path() / "wchan"), wchan);
    all += stat.substr(0, 90) + "... " + wchan + '\n';
  }
  return all;
}

Json parsed(const base::Frame& frame) {
  const auto* text = reinterpret_cast<const char*>(frame.payload.data());
  return Json::parse(text, text + frame.payload.size());
}

}  // namespace

Status Line::queue(const base::FrameHeader& header, std::span<const std::byte> payload,
                   std::span<base::Fd> fds) {
  Status status = channel_.queue(header, payload, fds);
  return status.ok() ? pump() : status;
}

Status Line::pump() {
  const Status flushed = channel_.flush();
  while (true) {
    auto frame = channel_.receive();
    if (!frame.ok()) return frame.status();
    if (!*frame) break;
    base::Frame& came = **frame;
    if (came.header.id == 0)
      messages_.push_back(std::move(came));
    else if (came.header.op == kRequest)
      requests_.push_back(std::move(came));
    else
      answers_[came.header.id] = std::move(came);
  }
  return flushed.code() == Code::no_resource ? Status() : flushed;
}

void Line::wait(int milliseconds) {
  pollfd entry{};
  {
    const base::MutexLock lock(mutex_);
    if (!requests_.empty() || !messages_.empty()) return;
    entry = {channel_.fd(), static_cast<short>(channel_.wants_write() ? POLLIN | POLLOUT : POLLIN),
             0};
  }
  ::poll(&entry, 1, milliseconds);
}

Result<Answer> Line::call(const Json& request, std::vector<base::Fd> fds) {
  const auto limit = base::Deadline::after(base::Clock::steady(), 30s);
  std::uint64_t id = 0;
  {
    const base::MutexLock lock(mutex_);
    id = ++calls_;
    const std::string text = request.dump();
    if (Status status = queue({.op = kRequest, .id = id}, bytes_of(text), fds); !status.ok())
      return status;
  }
  while (true) {
    {
      const base::MutexLock lock(mutex_);
      const Status status = pump();
      if (auto found = answers_.extract(id)) {
        const Json answer = parsed(found.mapped());
        const auto code = static_cast<Code>(answer.at("code").get<int>());
        if (code == Code::ok) return Answer{answer.at("value"), std::move(found.mapped().fds)};
        return Status(code, Scope::request, answer.at("what").get<std::string>());
      }
      if (!status.ok()) return status;
      if (limit.passed())
        return Status(Code::timed_out, Scope::peer, "no answer: " + request.dump());
    }
    wait(1);  // another thread may take our answer from the socket
  }
}

Status Line::tell(std::uint16_t op, std::span<const std::byte> bytes, std::span<base::Fd> fds) {
  const base::MutexLock lock(mutex_);
  return queue({.op = op, .id = 0}, bytes, fds);
}

void Line::hear(base::Frame message) {
  const base::MutexLock lock(mutex_);
  messages_.push_back(std::move(message));
}

std::optional<base::Frame> Line::next() {
  const base::MutexLock lock(mutex_);
  if (messages_.empty()) (void)pump();  // the caller learns of an end
  if (messages_.empty()) return std::nullopt;
  base::Frame first = std::move(messages_.front());
  messages_.pop_front();
  return first;
}

void Line::serve(const std::function<Result<Answer>(const Json&, std::vector<base::Fd>)>& handle,
                 const std::function<bool()>& idle) {
  while (true) {
    std::optional<base::Frame> request;
    {
      const base::MutexLock lock(mutex_);
      const Status status = pump();
      if (!requests_.empty()) {
        request = std::move(requests_.front());
        requests_.pop_front();
      } else if (!status.ok()) {
        return;
      }
    }
    if (!request) {
      if (!idle()) wait(1);
      continue;
    }
    Result<Answer> answer = Status(Code::internal, Scope::request, "not handled");
    try {
      const Json call = parsed(*request);
      answer = call.at("do") == kHello ? Answer{"ok", {}} : handle(call, std::move(request->fds));
    } catch (const std::exception& error) {  // of Json, of take()
      answer = Status(Code::internal, Scope::request, error.what());
    }
    Json json = {{"code", static_cast<int>(answer.status().code())}};
    if (answer.ok())
      json["value"] = answer->value;
    else
      json["what"] = answer.status().what();
    const std::string text = json.dump();
    std::vector<base::Fd> none;
    const base::MutexLock lock(mutex_);
    if (!queue({.op = kAnswer, .id = request->header.id}, bytes_of(text),
               answer.ok() ? answer->fds : none)
             .ok())
      return;
  }
}

void Line::hang_up() {
  const base::MutexLock lock(mutex_);
  ::shutdown(channel_.fd(), SHUT_RDWR);
}

Result<std::unique_ptr<Child>> Child::spawn(const std::string& helper,
                                            const std::vector<std::string>& environment) {
  auto sockets = base::socket_pair();
  if (!sockets.ok()) return sockets.status();
  auto [ours, theirs] = *std::move(sockets);

  auto process = tool::SpawnedProcess::start(kVerb + helper, std::move(theirs), environment);
  if (!process.ok()) return process.status();
  std::unique_ptr<Child> child(new Child(*std::move(process), std::move(ours)));
  auto hello = child->line_.call({{"do", kHello}});
  if (!hello.ok()) return hello.status();
  if (hello->value != "ok") return Status(Code::internal, Scope::peer, "the child did not say ok");
  return child;
}

Child::~Child() {
  if (ended_) return;
  line_.hang_up();
  const auto status = stopped_ ? std::nullopt : process_->wait(20s);
  EXPECT_TRUE(stopped_ || status) << "a helper does not end:\n" << describe_threads(pid());
  EXPECT_EQ(status.value_or(0), 0) << "a helper failed at its end, or a sanitizer has reported";
}

void Child::signal(int number) {
  stopped_ = number == SIGSTOP || (stopped_ && number != SIGCONT);
  ::kill(pid(), number);
  if (number != SIGSTOP) return;
  siginfo_t stands{};
  ::waitid(P_PID, static_cast<id_t>(pid()), &stands, WSTOPPED | WNOWAIT);
}

bool add_helper(const char* name, HelperMain main) { return helpers().emplace(name, main).second; }

std::optional<int> run_helper(int argc, char** argv) {
  if (argc < 2 || std::strncmp(argv[1], kVerb, std::strlen(kVerb)) != 0) return std::nullopt;
  const auto found = helpers().find(argv[1] + std::strlen(kVerb));
  if (found == helpers().end()) {
    std::fprintf(stderr, "%s: no such helper in this program\n", argv[1]);
    return 2;
  }
  Line line{tool::SpawnedProcess::take_socket()};
  found->second(line);
  return 0;
}

std::string file_beside_this_program(const std::string& name) {
  std::array<char, 4096> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  const std::string self(path.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
  return self.substr(0, self.rfind('/') + 1) + name;
}

}  // namespace linkspan::test
