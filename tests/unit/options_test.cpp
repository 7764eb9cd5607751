#include "base/options.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/nccl_net/options.hpp"
#include "transport/registry.hpp"
#include "transport/tcp/options.hpp"

namespace linkspan::base {

namespace options_test {

using namespace std::chrono_literals;
using transport::nccl_net::NcclNetSettings, transport::nccl_net::Unpack;
using transport::tcp::TcpSettings;

/// Sets the variable, or removes it if null. No other thread runs here.
void set(const char* name, const char* value) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe)
  EXPECT_EQ(value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1), 0);
}

/// Without any of our variables; afterwards they are as they were.
class OptionsTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const OptionInfo& option : transport::option_table()) take_away(option.variable);
    take_away("XDG_RUNTIME_DIR");
  }
  void TearDown() override {
    for (const auto& [name, value] : before_) set(name, value ? value->c_str() : nullptr);
  }
  static Options read() {
    Result<Options> options = Options::from_environment();
    EXPECT_TRUE(options.ok()) << options.status().to_string();
    return options.ok() ? *options : Options();
  }

 private:
  void take_away(const char* name) {
    const char* value = environment(name);
    before_.emplace_back(name, value != nullptr ? std::optional<std::string>(value) : std::nullopt);
    set(name, nullptr);
  }

  std::vector<std::pair<const char*, std::optional<std::string>>> before_;
};

TEST_F(OptionsTest, HasFallbacks) {
  const Options options = read();
  EXPECT_EQ(options.socket_dir, "/tmp/linkspan-" + std::to_string(::getuid()));
  EXPECT_EQ(options.cuda_library, "libcuda.so.1");
  EXPECT_EQ(options.log_level, Level::warning);
  EXPECT_GE(options.cpu_threads, 1u);
  EXPECT_LE(options.cpu_threads, 16u);
  EXPECT_FALSE(options.copy_ctas.has_value());
  EXPECT_EQ(options.relay_gpus, 0u);
  EXPECT_FALSE(options.calibrate);
  EXPECT_FALSE(options.security.has_value());
  EXPECT_FALSE(NcclNetSettings::read(options)->unpack.has_value());
  EXPECT_EQ(NcclNetSettings::read(options)->plugin, "");
  EXPECT_GE(TcpSettings::read(options)->connections, 1u);
  EXPECT_LE(TcpSettings::read(options)->connections, 8u);
  EXPECT_EQ(options.staging, std::size_t{128} << 20);
  EXPECT_EQ(options.transfer_deadline, 30s);
  EXPECT_EQ(options.connect_deadline, 10s);
  set("XDG_RUNTIME_DIR", "/run/user/7");
  EXPECT_EQ(read().socket_dir, "/run/user/7/linkspan");
}

TEST_F(OptionsTest, ReadsWhatIsSet) {
  set("LINKSPAN_SOCKET_DIR", "/srv/here");
  set("LINKSPAN_CUDA_LIBRARY", "/lib/other.so");
  set("LINKSPAN_LOG_LEVEL", "debug");
  set("LINKSPAN_CPU_THREADS", "3");
  set("LINKSPAN_COPY_CTAS", "0");
  set("LINKSPAN_RELAY_GPUS", "3");
  set("LINKSPAN_CALIBRATE", "1");
  set("LINKSPAN_SECURITY", "encrypted");
  set("LINKSPAN_STAGING_MIB", "5");
  set("LINKSPAN_TRANSFER_DEADLINE_MS", "1500");
  set("LINKSPAN_CONNECT_DEADLINE_MS", "");  // not set
  const Options options = read();
  EXPECT_EQ(options.socket_dir, "/srv/here");
  EXPECT_EQ(options.cuda_library, "/lib/other.so");
  EXPECT_EQ(options.log_level, Level::debug);
  EXPECT_EQ(options.cpu_threads, 3u);
  EXPECT_EQ(options.copy_ctas, 0u);
  EXPECT_EQ(options.relay_gpus, 3u);
  EXPECT_TRUE(options.calibrate);
  EXPECT_EQ(options.security, Security::encrypted);
  EXPECT_EQ(options.staging, std::size_t{5} << 20);
  EXPECT_EQ(options.transfer_deadline, 1500ms);
  EXPECT_EQ(options.connect_deadline, 10s);
}

TEST_F(OptionsTest, NamesVariableValueAndRemedy) {
  for (const auto& [variable, value] :
       {std::pair("LINKSPAN_SOCKET_DIR", "here"),
        std::pair("LINKSPAN_LOG_LEVEL", "LOUD"),
        std::pair("LINKSPAN_CPU_THREADS", "0"),
        std::pair("LINKSPAN_CPU_THREADS", "257"),
        std::pair("LINKSPAN_COPY_CTAS", "65536"),
        std::pair("LINKSPAN_COPY_CTAS", "few"),
        std::pair("LINKSPAN_SECURITY", "tls"),
        std::pair("LINKSPAN_SECURITY", "Insecure"),
        std::pair("LINKSPAN_INSECURE", "yes"),
        std::pair("LINKSPAN_TLS", "1"),
        std::pair("LINKSPAN_RELAY_GPUS", "16"),
        std::pair("LINKSPAN_STAGING_MIB", "0"),
        std::pair("LINKSPAN_STAGING_MIB", "64M"),
        std::pair("LINKSPAN_TRANSFER_DEADLINE_MS", "-1"),
        std::pair("LINKSPAN_TRANSFER_DEADLINE_MS", "30s"),
        std::pair("LINKSPAN_UNPACK", "gpu"),
        std::pair("LINKSPAN_TCP_STREAMS", "65"),
        std::pair("UCCL_TCPX_UNPACK_IMPL", "Kernel"),
        std::pair("LINKSPAN_CONNECT_DEADLINE_MS", "1e99"),
        std::pair("LINKSPAN_CONNECT_DEADLINE_MS", "99999999999999999999")}) {
    set(variable, value);
    const auto options = Options::from_environment();
    const Status status = options.ok() ? transport::check_options(*options) : options.status();
    EXPECT_EQ(status.code(), Code::invalid_argument) << variable << "=" << value;
    EXPECT_NE(status.what().find(std::string(variable) + "=\"" + value + "\": set "),
              std::string::npos)
        << status.to_string();
    set(variable, nullptr);
  }
}

TEST_F(OptionsTest, NamesTheSecurity_WhenAVariableThatItReplacesIsSet) {
  struct {
    const char *variable, *value, *what;
  } const cases[] = {
      {"LINKSPAN_TLS", "1", "LINKSPAN_TLS=\"1\": set LINKSPAN_SECURITY=encrypted in its place"},
      {"LINKSPAN_INSECURE", "1",
       "LINKSPAN_INSECURE=\"1\": set LINKSPAN_SECURITY=insecure in its place, or authenticated "
       "with a secret"},
      {"LINKSPAN_TLS", "0",
       "LINKSPAN_TLS=\"0\": set LINKSPAN_SECURITY=loopback_only in its place, or authenticated "
       "with a secret"},
      {"LINKSPAN_INSECURE", "0",
       "LINKSPAN_INSECURE=\"0\": set LINKSPAN_SECURITY=loopback_only in its place, or "
       "authenticated with a secret"}};
  set("LINKSPAN_SECURITY", "authenticated");  // also beside it
  for (const auto& each : cases) {
    set(each.variable, each.value);
    const Status status = Options::from_environment().status();
    EXPECT_EQ(status.code(), Code::invalid_argument) << each.variable << "=" << each.value;
    EXPECT_EQ(status.what(), each.what);
    set(each.variable, nullptr);
  }
  set("LINKSPAN_TLS", "");  // not set
  EXPECT_EQ(read().security, Security::authenticated);
  set("LINKSPAN_TLS", nullptr);
}

TEST_F(OptionsTest, SecurityFollowsTheSecret_WhenItIsNotSet) {
  Options options = read();
  EXPECT_TRUE(options.resolve_security().ok());
  EXPECT_EQ(options.security, Security::loopback_only);
  set("LINKSPAN_SECRET_FILE", "/nowhere/secret");
  options = read();
  EXPECT_TRUE(options.resolve_security().ok()) << "does not read the file";
  EXPECT_EQ(options.security, Security::authenticated);
}

TEST_F(OptionsTest, SecurityThatNeedsASecretOrContradictsOneIsRefused) {
  for (const char* name : {"loopback_only", "insecure", "authenticated", "encrypted"}) {
    set("LINKSPAN_SECURITY", name);
    const bool needs = *parse_security(name) >= Security::authenticated;
    set("LINKSPAN_SECRET", nullptr);
    const Status without = read().resolve_security();
    set("LINKSPAN_SECRET", "nobody is to see this");
    const Status with = read().resolve_security();
    EXPECT_EQ(needs ? with.code() : without.code(), Code::ok) << name;
    const Status& refused = needs ? without : with;
    EXPECT_EQ(refused.code(), Code::invalid_argument) << name;
    EXPECT_EQ(refused.what(),
              "LINKSPAN_SECURITY=\"" + std::string(name) + "\": " +
                  (needs ? "needs a secret, and there is none: give both sides the same by "
                           "LINKSPAN_SECRET_FILE, EngineOptions::secret_file or "
                           "EngineOptions::secret"
                         : "contradicts the secret of LINKSPAN_SECRET: set authenticated or "
                           "encrypted, or remove the secret"));
  }
  set("LINKSPAN_SECURITY", "insecure");
  set("LINKSPAN_SECRET_FILE", "/nowhere/secret");
  EXPECT_NE(read().resolve_security().what().find("the secret of LINKSPAN_SECRET_FILE"),
            std::string::npos);
}

TEST_F(OptionsTest, TakesTheSeedsLogLevelUnlessOursIsSet) {
  for (const auto& [text, level] :
       {std::pair("INFO", Level::info), std::pair("warning", Level::warning),
        std::pair("WARN", Level::warning), std::pair("Error", Level::error),
        std::pair("DEBUG", Level::debug)}) {
    set("UCCL_P2P_LOG_LEVEL", text);
    EXPECT_EQ(read().log_level, level) << text;
    EXPECT_EQ(read().warning, "");
  }
  set("LINKSPAN_LOG_LEVEL", "OFF");
  EXPECT_EQ(read().log_level, Level::off);
  set("UCCL_P2P_LOG_LEVEL", "LOUD");
  EXPECT_EQ(read().warning, "") << "nobody asked it";
  set("LINKSPAN_LOG_LEVEL", nullptr);
  EXPECT_EQ(read().log_level, Level::warning);
  EXPECT_NE(read().warning.find("UCCL_P2P_LOG_LEVEL=\"LOUD\""), std::string::npos)
      << read().warning;
}

TEST_F(OptionsTest, TakesTheSeedsUnpackUnlessOursIsSet) {
  for (const Unpack way : {Unpack::d2d, Unpack::host, Unpack::kernel}) {
    set("UCCL_TCPX_UNPACK_IMPL", transport::nccl_net::name_of(way));
    EXPECT_EQ(NcclNetSettings::read(read())->unpack, way) << transport::nccl_net::name_of(way);
  }
  set("LINKSPAN_UNPACK", "d2d");
  EXPECT_EQ(NcclNetSettings::read(read())->unpack, Unpack::d2d);
  set("UCCL_TCPX_UNPACK_IMPL", "fast");
  EXPECT_EQ(NcclNetSettings::read(read())->unpack, Unpack::d2d) << "nobody asked it";
  set("LINKSPAN_UNPACK", nullptr);
  EXPECT_NE(transport::check_options(read()).what().find("d2d, host or kernel"), std::string::npos);
}

TEST_F(OptionsTest, TransportsTakeTheirKeyBeforeTheVariable) {
  set("LINKSPAN_TCP_STREAMS", "3");
  set("LINKSPAN_NCCL_NET_PLUGIN", "a");
  Options options = read();
  EXPECT_EQ(TcpSettings::read(options)->connections, 3u);
  options.transport = {
      {"tcp.connections", "5"}, {"nccl_net.plugin", ""}, {"nccl_net.unpack", "host"}};
  EXPECT_TRUE(transport::check_options(options).ok());
  EXPECT_EQ(TcpSettings::read(options)->connections, 5u);
  EXPECT_EQ(NcclNetSettings::read(options)->plugin, "a") << "an empty value is the default";
  EXPECT_EQ(NcclNetSettings::read(options)->unpack, Unpack::host);
}

TEST_F(OptionsTest, TransportsNameKeyValueAndWhatIsAllowed) {
  Options options = read();
  const auto refused = [&](const char* key, const char* value, const std::string& text) {
    options.transport = {{key, value}};
    const Status status = transport::check_options(options);
    EXPECT_EQ(status.code(), Code::invalid_argument) << key << "=" << value;
    EXPECT_EQ(status.what(), text);
  };
  for (const char* value : {"65", "-1", "few", "1 "})
    refused("tcp.connections", value,
            "tcp.connections=\"" + std::string(value) + "\": set a whole number from 0 to 64");
  for (const char* key : {"tcp.peer_timeout", "tcp.stall_timeout"})
    for (const char* value : {"1", "86401", "soon"})
      refused(key, value,
              std::string(key) + "=\"" + value + "\": set a whole number from 2 to 86400");
  refused("nccl_net.unpack", "gpu", "nccl_net.unpack=\"gpu\": set d2d, host or kernel");
  for (const char* key : {"", "tcp", "tcp.interface", "interfaces", "nccl_net.unpack (seed)"})
    refused(
        key, "1",
        "EngineOptions::transport has no \"" + std::string(key) +
            "\"; known are verbs.devices, verbs.gid_index, verbs.traffic_class, "
            "verbs.sl, verbs.pkey, verbs.mtu, nccl_net.plugin, nccl_net.unpack, tcp.connections, "
            "tcp.interfaces, tcp.peer_timeout, tcp.stall_timeout");
  options.transport = {{"tcp.interfaces", "nowhere0"}};
  EXPECT_EQ(transport::interfaces(options).status().what().find(
                "tcp.interfaces (LINKSPAN_TCP_INTERFACES): interface \"nowhere0\" is not here"),
            0u);
}

TEST_F(OptionsTest, SecretIsOfTheFileThatNobodyElseReads) {
  char path[] = "/tmp/linkspan-secret-XXXXXX";
  const int made = ::mkstemp(path);
  ASSERT_GE(made, 0);
  const auto write = [&](std::string_view text) {
    ASSERT_EQ(::ftruncate(made, 0), 0);
    ASSERT_EQ(::pwrite(made, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  };
  const auto refused = [&](Code code, const std::string& word) {
    const Status status = read_secret(read()).status();
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_NE(status.what().find(word), std::string::npos) << status.what();
  };
  EXPECT_EQ(*read_secret(read()), "");
  set("LINKSPAN_SECRET", "of the environment");
  EXPECT_EQ(*read_secret(read()), "of the environment");
  set("LINKSPAN_SECRET", "too short");
  refused(Code::invalid_argument, "LINKSPAN_SECRET has 9 bytes");
  set("LINKSPAN_SECRET_FILE", path);
  write("sixteen bytes of\n");
  EXPECT_EQ(*read_secret(read()), "sixteen bytes of");
  write(std::string(4096, 'x') + "\r\n");
  EXPECT_EQ(read_secret(read())->size(), 4096u);
  write(std::string(4097, 'x'));
  refused(Code::invalid_argument, "more than 4096 bytes");
  write("fifteen bytes .\n");
  refused(Code::invalid_argument, "head -c 32 /dev/urandom");
  ASSERT_EQ(::chmod(path, 0640), 0);
  refused(Code::permission_denied, std::string("chmod 600 ") + path);
  ASSERT_EQ(::chmod(path, 0400), 0);
  if (::geteuid() == 0) {  // root may give a file away
    ASSERT_EQ(::chown(path, 65534, 65534), 0);
    refused(Code::permission_denied, "belongs to uid 65534");
  }
  ::close(made);
  ::unlink(path);
  ASSERT_EQ(::mkfifo(path, 0600), 0);
  refused(Code::invalid_argument, "is no regular file");  // and does not wait for a writer
  ::unlink(path);
  refused(Code::not_found, path);
  for (const char* odd : {"/dev/null", "/tmp"}) {
    set("LINKSPAN_SECRET_FILE", odd);
    refused(Code::invalid_argument, "is no regular file");
  }
}

TEST_F(OptionsTest, TableNamesEachOnce) {
  const auto table = transport::option_table();
  for (const OptionInfo& a : table) {
    EXPECT_TRUE(std::string(a.variable).rfind("LINKSPAN_", 0) == 0 ||
                std::string(a.variable).rfind("UCCL_", 0) == 0);
    for (const OptionInfo& b : table) {
      EXPECT_EQ(std::string(a.variable) == b.variable, &a == &b);
      EXPECT_EQ(std::string(a.name) == b.name, &a == &b);
    }
  }
}

}  // namespace options_test
}  // namespace linkspan::base
