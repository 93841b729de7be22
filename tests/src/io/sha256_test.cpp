// SHA-256 against FIPS 180-4's examples, NIST's long message and digests that coreutils' sha256sum printed.
#include "io/sha256.h"

#include "scratch.h"
#include "support/catch.h"

namespace qattn::io {
namespace {

using namespace testing;

TEST_CASE("SHA-256 gives the digests of the standard's examples") {
  CHECK(sha256("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(
      sha256("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrst"
             "nopqrstu") == "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  CHECK(sha256("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("SHA-256 does not depend on how the bytes are cut, at every length around the block borders") {
  for (std::size_t length = 0; length <= 200; ++length) {
    std::string text;
    for (std::size_t i = 0; i < length; ++i) text += static_cast<char>(i * 37 + length);
    const auto bytes = std::as_bytes(std::span(text));
    for (const std::size_t cut : {std::size_t{0}, length / 3, length / 2, length}) {
      Sha256 hash;
      hash.update(bytes.subspan(0, cut));
      hash.update(bytes.subspan(cut));
      REQUIRE(hash.finish() == sha256(text));
    }
  }
}

TEST_CASE("SHA-256 of real files is what sha256sum prints") {
  CHECK(sha256_file(real_dump("kwt1_qkv.h5")) == "de028d062dafeb44db75d4cdc1004ae814e52143676fa4698e6a15ac6e04b069");
  CHECK(sha256_file(real_dump("smollm2_1.h5")) == "09ffb59dbeac2abded3af2346a93b2babc668f528efc185569d1ef00f3a32d88");
  CHECK(contains(message_of([] { sha256_file("/nonexistent/file"); }), "/nonexistent/file: cannot be opened: No such"));
}

}  // namespace
}  // namespace qattn::io
