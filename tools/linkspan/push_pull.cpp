// `linkspan push` and `linkspan pull`: a file to a `linkspan serve` of another host, or from it.
#include <array>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/clock.hpp"
#include "tools/linkspan/files.hpp"
#include "tools/linkspan/network_options.hpp"
#include "tools/linkspan/output.hpp"
#include "tools/linkspan/table.hpp"
#include "tools/linkspan/verb.hpp"

namespace linkspan::tool {
namespace {

using namespace std::chrono_literals;

constexpr Duration kConnectIn = 10s;  // or --timeout, if that is less
constexpr Duration kShownEach = 100ms;
constexpr double kGigabyte = 1e9;

double seconds(Duration time) { return std::chrono::duration<double>(time).count(); }

/// "[=====>    ]  53 %  1.2 of 2.3 GB, 1.1 GB/s", on a terminal.
class Bar {
 public:
  explicit Bar(std::uint64_t bytes) : bytes_(bytes) {}
  void show(std::uint64_t done) {
    const auto now = base::Clock::steady().now();
    if (begun_ && now - shown_ < kShownEach) return;
    if (!begun_) {
      begun_ = now;
      first_ = done;
    }
    shown_ = now;
    const double part = bytes_ == 0 ? 1 : static_cast<double>(done) / static_cast<double>(bytes_);
    const auto marks = static_cast<std::size_t>(part * kWidth);
    const double rate = static_cast<double>(done - first_) / seconds(now - *begun_ + 1ns);
    std::array<char, 96> text{};
    std::snprintf(text.data(), text.size(), "] %3.0f %%  %.2f of %.2f GB, %.2f GB/s", part * 100,
                  static_cast<double>(done) / kGigabyte, static_cast<double>(bytes_) / kGigabyte,
                  rate / kGigabyte);
    progress_.show('[' + std::string(marks, '=') + std::string(kWidth - marks, ' ') + text.data());
  }

 private:
  static constexpr std::size_t kWidth = 30;
  const std::uint64_t bytes_;
  const Progress progress_;
  std::optional<base::Time> begun_;
  base::Time shown_;
  std::uint64_t first_ = 0;
};

class FileVerb : public Verb {
 public:
  void define(Arguments& arguments) override {
    arguments.rest("what", words_, define_words(arguments),
                   "Which file, and where the other host serves");
    arguments.text("--json", json_, "FILE", "Also write what was moved; -: to stdout");
    staging_.define(arguments);
    network_.define(arguments);
  }

  int run(const std::string& command) override {
    if (words_.size() != 2)
      return refused(name(), {Code::invalid_argument, Scope::request, usage()});
    const auto output = Output::open(json_);
    if (!output.ok()) return refused(name(), output.status());
    if (Status s = prepare(words_[0]); !s.ok()) return failed(name(), s);
    const auto begin = base::Clock::steady().now();
    const auto moved = move();
    if (!moved.ok()) return failed(name(), with_remedy(moved.status()));
    const double took = seconds(base::Clock::steady().now() - begin);
    const double rate = static_cast<double>(moved->bytes - moved->resumed_at) / took / kGigabyte;
    std::string text = words_[0] + ": " + std::to_string(moved->bytes) + " bytes, " + number(rate) +
                       " GB/s, sha256 " + moved->sha256 + '\n';
    if (moved->resumed_at != 0)
      text += "resumed behind " + std::to_string(moved->resumed_at) + " bytes\n";
    const nlohmann::ordered_json told{{"what", name()},         {"command", command},
                                      {"bytes", moved->bytes},  {"resumed_at", moved->resumed_at},
                                      {"seconds", took},        {"GB_per_s", rate},
                                      {"sha256", moved->sha256}};
    const std::string json =
        told.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
    if (Status s = output->write(text, json); !s.ok()) return failed(name(), s);
    return kWell;
  }

 protected:
  virtual const char* define_words(Arguments& arguments) = 0;
  virtual const char* usage() const = 0;
  virtual Status prepare(const std::string& what) = 0;
  virtual Result<Moved> move_by(Conversation& talk) = 0;
  Gpus gpus_;
  StagingOption staging_;

 private:
  Result<Moved> move() {
    if (staging_.on_gpu()) gpus_ = Gpus::find();
    EngineOptions options = network_.engine(name());
    options.use_gpu = staging_.on_gpu();
    auto engine = Engine::open(options);
    if (!engine.ok()) return engine.status();
    auto moved = move_by(*engine);
    (void)engine->close(2s);
    return moved;
  }

  Result<Moved> move_by(Engine& engine) {
    auto peer = engine.connect(tcp_address(words_[1]), std::min(kConnectIn, network_.timeout()));
    if (!peer.ok()) return nobody_there(words_[1], peer.status());
    auto talk = Conversation::begin(*std::move(peer), network_.timeout());
    if (!talk.ok()) return talk.status();
    if (Status s = (*talk)->open_ring(engine, gpus_, staging_.place()); !s.ok()) return s;
    return move_by(**talk);
  }

  Status with_remedy(const Status& why) const {
    std::string text = words_[1] + ": " + why.what();
    if (why.code() == Code::timed_out || why.code() == Code::disconnected)
      text += "; run it again: it goes on behind what has arrived";
    return {why.code(), why.scope(), text};
  }

  std::vector<std::string> words_;
  std::string json_;
  NetworkOptions network_;
};

class PushVerb final : public FileVerb {
 public:
  const char* name() const override { return "push"; }
  const char* what() const override {
    return "Sends a file to a `linkspan serve` of another host; again, it goes on where it "
           "stopped.";
  }

 private:
  const char* define_words(Arguments& arguments) override {
    arguments.text("--as", as_, "NAME", "Its name there; else the one that it has here");
    return "FILE HOST:PORT";
  }
  const char* usage() const override { return "`linkspan push FILE HOST:PORT`"; }

  Status prepare(const std::string& path) override {
    if (as_.empty()) as_ = std::filesystem::path(path).filename().string();
    auto file = LeavingFile::open(AT_FDCWD, path, true);
    if (!file.ok()) return file.status();
    file_ = *std::move(file);
    return {};
  }

  Result<Moved> move_by(Conversation& talk) override {
    if (Status s = talk.tell("push " + std::to_string(file_.bytes) + ' ' + as_); !s.ok()) return s;
    Bar bar(file_.bytes);
    return send_file(talk, file_, [&bar](std::uint64_t done) { bar.show(done); });
  }

  std::string as_;
  LeavingFile file_;
};

class PullVerb final : public FileVerb {
 public:
  const char* name() const override { return "pull"; }
  const char* what() const override {
    return "Gets a file from a `linkspan serve` of another host; again, it goes on where it "
           "stopped.";
  }

 private:
  const char* define_words(Arguments& arguments) override {
    arguments.text("--to", to_, "FILE", "Where it goes; else NAME in this folder");
    return "NAME HOST:PORT";
  }
  const char* usage() const override { return "`linkspan pull NAME HOST:PORT`"; }

  Status prepare(const std::string& name) override {
    name_ = name;
    const std::filesystem::path to(to_.empty() ? name : to_);
    file_name_ = to.filename().string();
    if (file_name_.empty() || file_name_ == "." || file_name_ == ".." ||
        std::filesystem::is_directory(to))
      return {Code::invalid_argument, Scope::request,
              "--to: " + to.string() + " is no file's name"};
    auto folder = open_folder(to.has_parent_path() ? to.parent_path().string() : ".");
    if (!folder.ok()) return folder.status();
    folder_ = *std::move(folder);
    return {};
  }

  Result<Moved> move_by(Conversation& talk) override {
    if (Status s = talk.tell("pull " + name_); !s.ok()) return s;
    const auto answer = talk.hear();
    if (!answer.ok()) return answer.status();
    std::uint64_t bytes = 0;
    if (Status s = parse_words(*answer, "file", &bytes, nullptr); !s.ok()) return s;
    auto file = ArrivingFile::open(folder_.get(), file_name_);
    if (!file.ok()) {
      talk.refuse(file.status());
      return file.status();
    }
    Bar bar(bytes);
    return receive_file(talk, *file, bytes, [&bar](std::uint64_t done) { bar.show(done); });
  }

  std::string name_, to_, file_name_;
  base::Fd folder_;
};

}  // namespace

std::unique_ptr<Verb> push_verb() { return std::make_unique<PushVerb>(); }
std::unique_ptr<Verb> pull_verb() { return std::make_unique<PullVerb>(); }

}  // namespace linkspan::tool
