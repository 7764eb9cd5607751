#include "integrations/nixl/src/metadata.hpp"

#include <cstring>
#include <initializer_list>

namespace linkspan::nixl {
namespace {

// "LSNX", the kind of the text and the version; then each field as 32 bits of length and its bytes.
constexpr std::string_view kMark = "LSNX";
constexpr char kVersion = 1;
constexpr std::size_t kHead = kMark.size() + 2;
constexpr std::size_t kMaxField = std::size_t{1} << 16, kMaxMessage = std::size_t{1} << 16;
constexpr std::size_t kSize = sizeof(std::uint32_t);

std::string text_of(char kind, std::initializer_list<std::string_view> fields) {
  std::string out(kMark);
  out += kind;
  out += kVersion;
  for (std::string_view field : fields) {
    const auto size = static_cast<std::uint32_t>(field.size());
    char bytes[kSize];
    std::memcpy(bytes, &size, kSize);
    out.append(bytes, kSize).append(field);
  }
  return out;
}

std::string_view bytes_of(const std::uint64_t& number) {
  return {reinterpret_cast<const char*>(&number), sizeof number};
}

bool read_number(const std::string& field, std::uint64_t& into) {
  if (field.size() != sizeof into) return false;
  std::memcpy(&into, field.data(), sizeof into);
  return true;
}

Status corrupt(const char* what) {
  return {Code::corrupt, Scope::request,
          std::string(what) +
              " is not of linkspan's plugin, or was cut: both agents need the "
              "backend LINKSPAN, and metadata must arrive unchanged"};
}

Status read_fields(std::string_view text, char kind, const char* what,
                   std::initializer_list<std::string*> fields) {
  if (text.size() < kHead || text.substr(0, kMark.size()) != kMark || text[kMark.size()] != kind)
    return corrupt(what);
  if (const char version = text[kHead - 1]; version != kVersion)
    return {Code::unsupported, Scope::request,
            std::string(what) + " has version " +
                std::to_string(static_cast<unsigned char>(version)) +
                " of its format and this plugin reads version " + std::to_string(kVersion) +
                ": use one release of linkspan on both sides"};
  text.remove_prefix(kHead);
  for (std::string* field : fields) {
    std::uint32_t size = 0;
    if (text.size() < kSize) return corrupt(what);
    std::memcpy(&size, text.data(), kSize);
    text.remove_prefix(kSize);
    if (size > text.size() || size > kMaxField) return corrupt(what);
    field->assign(text.substr(0, size));
    text.remove_prefix(size);
  }
  return text.empty() ? Status() : corrupt(what);
}

}  // namespace

std::string AgentAddress::serialize() const {
  return text_of('A', {addresses, engine, secret, host});
}

Result<AgentAddress> AgentAddress::parse(std::string_view text) {
  AgentAddress out;
  Status read = read_fields(text, 'A', "the agent's connection info",
                            {&out.addresses, &out.engine, &out.secret, &out.host});
  if (!read.ok()) return read;
  return out;
}

std::string MemoryAddress::serialize() const {
  return text_of('M', {published, bytes_of(address), bytes_of(bytes)});
}

Result<MemoryAddress> MemoryAddress::parse(std::string_view text) {
  MemoryAddress out;
  std::string address, bytes;
  Status read =
      read_fields(text, 'M', "the metadata of a memory", {&out.published, &address, &bytes});
  if (!read.ok()) return read;
  if (!read_number(address, out.address) || !read_number(bytes, out.bytes))
    return corrupt("the metadata of a memory");
  return out;
}

Result<std::vector<std::byte>> AgentMessage::serialize(std::string_view agent,
                                                       std::string_view text) {
  if (agent.size() + text.size() + kHead + 2 * kSize > kMaxMessage)
    return Status(Code::invalid_argument, Scope::request,
                  "a notification of " + std::to_string(text.size()) +
                      " bytes, and the agent's name of " + std::to_string(agent.size()) +
                      ": together at most " + std::to_string(kMaxMessage - kHead - 2 * kSize));
  const std::string whole = text_of('N', {agent, text});
  const auto* begin = reinterpret_cast<const std::byte*>(whole.data());
  return std::vector<std::byte>(begin, begin + whole.size());
}

Result<AgentMessage> AgentMessage::parse(std::span<const std::byte> bytes) {
  AgentMessage out;
  Status read = read_fields({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, 'N',
                            "a notification", {&out.agent, &out.text});
  if (!read.ok()) return read;
  return out;
}

}  // namespace linkspan::nixl
