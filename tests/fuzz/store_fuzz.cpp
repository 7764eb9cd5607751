// Fuzzes a store's client: passes the bytes of one connection, in pieces, to the parser and the
// table, whose limits are small here.
//
// Finds, beside what the sanitizers see: a limit that is passed, an answer that our own client does
// not understand, a request that encode() writes otherwise.
#include "store/protocol.hpp"
#include "store/table.hpp"
#include "tests/fuzz/support.hpp"

namespace linkspan::fuzz {
namespace {

using namespace store;
using store::Op;  // linkspan has one too

const Limits kLimits{
    .key = 64, .value = 256, .fields = 32, .message = 2048, .entries = 16, .stored = 3000};

bool is_for_a_table(Op op) { return op != Op::wait && op != Op::cancel_wait && op != Op::validate; }

void check(const Request& request, Dialect dialect) {
  const auto again = encode(request, dialect);
  demand(again.ok(), "a request that came cannot be written");
  RequestParser parser(kLimits, dialect);
  parser.feed(*again);
  auto read = parser.next();
  demand(read.ok() && *read && (*read)->op == request.op && (*read)->keys == request.keys &&
             (*read)->values == request.values,
         "a request that was written again reads otherwise");
}

void apply(Table& table, const Request& request) {
  const std::size_t keys = request.keys.size();
  const auto answer = table.apply(request);
  demand(table.entries() <= kLimits.entries && table.stored() <= kLimits.stored,
         "the table passes its limits");
  if (!answer.ok()) return;
  MessageReader reader = MessageReader::of_answer(request.op, keys, kLimits);
  Buffer buffer;
  buffer.append(*answer);
  const auto whole = reader.read(buffer);
  // Many values pass what a reader takes for one message, by what each costs it.
  if (whole.ok()) demand(*whole && buffer.size() == 0, "an answer does not read to its end");
}

}  // namespace
}  // namespace linkspan::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace linkspan::fuzz;
  Input input(data, size);
  const std::size_t piece = input.byte() % 64 + std::size_t{1};
  RequestParser parser(kLimits);
  Table table(kLimits);
  while (!input.empty()) {
    const auto some = input.take(piece);
    parser.feed({reinterpret_cast<const char*>(some.data()), some.size()});
    for (;;) {
      auto request = parser.next();
      if (!request.ok()) return 0;  // the server closes it
      if (!*request) break;
      check(**request, *parser.dialect());
      if (is_for_a_table((*request)->op)) apply(table, **request);
    }
    constexpr std::size_t kGrows = 2, kKept = std::size_t{256} << 10;  // as strings and lists do
    demand(parser.allocated() <=
               kGrows * (kLimits.message + kLimits.value + kLimits.key + piece) + kKept,
           "a request passes its limit");
  }
  return 0;
}
