#include "transport/verbs/library.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>

#include "tests/support/process.hpp"

namespace linkspan::transport::verbs {
namespace verbs_library_test {

TEST(VerbsLibrary, SaysInWordsThatThereIsNone) {
  testing::internal::CaptureStderr();
  const auto none = Library::load("/nonexistent/libibverbs.so.1");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), Code::unsupported);
  EXPECT_NE(none.status().what().find("no libibverbs: /nonexistent/libibverbs.so.1"),
            std::string::npos)
      << none.status().what();
}

TEST(VerbsLibrary, SaysWhatALibraryLacks) {
  const auto other = Library::load("libm.so.6");
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().what().find("libm.so.6 lacks ibv_get_device_list"), std::string::npos)
      << other.status().what();
}

TEST(VerbsLibrary, FillsAPortWhole_WhereTheSymbolDoesNot) {
  const auto ibv = Library::load(test::file_beside_this_program("libfake_verbs.so").c_str());
  ASSERT_TRUE(ibv.ok()) << ibv.status().to_string();
  IbvDevice** const list = ibv->get_device_list(nullptr);
  ASSERT_NE(list, nullptr);
  IbvContext* const context = ibv->open_device(list[0]);
  ibv->free_device_list(list);
  ASSERT_NE(context, nullptr);
  IbvPortAttr port{};
  EXPECT_EQ(ibv->query_port(context, 1, port), 0);
  EXPECT_EQ(port.state, kPortActive);
  EXPECT_EQ(port.port_cap_flags2, 1);
  EXPECT_EQ(ibv->query_port(context, 2, port), EINVAL);
  context->abi_compat = nullptr;  // as a library before IBVERBS_1.1's extension
  EXPECT_EQ(ibv->query_port(context, 1, port), 0);
  EXPECT_EQ(port.state, kPortActive);
  EXPECT_EQ(port.port_cap_flags2, 0);
  context->abi_compat = reinterpret_cast<void*>(UINTPTR_MAX);
  EXPECT_EQ(ibv->close_device(context), 0);
}

TEST(VerbsLibrary, DescribesAnError) {
  EXPECT_EQ(describe_error("ibv_reg_mr", ENOMEM), "ibv_reg_mr: Cannot allocate memory (errno 12)");
}

}  // namespace verbs_library_test
}  // namespace linkspan::transport::verbs
