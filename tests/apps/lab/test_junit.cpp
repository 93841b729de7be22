// JUnit XML: counts, escaping, and nothing that XML does not allow.
#include "lab/junit.h"
#include "src/io/scratch.h"
#include "support/catch.h"

using namespace qattn;
using io::testing::contains;

TEST_CASE("failures and errors are counted, texts are escaped") {
  const std::string xml = lab::junit_xml("a <suite>", {{"one", "group", {}, {}, {}},
                                                       {"two", "gr\"oup", "x < 3 & y > \"4\"\nsecond", {}, {}},
                                                       {"three", "group", {}, "unreadable", {}},
                                                       {"four", "group", {}, {}, "left out"}});
  CHECK(contains(xml, "tests=\"4\" failures=\"1\" errors=\"1\""));
  CHECK(contains(xml, "name=\"a &lt;suite&gt;\""));
  CHECK(contains(xml, "<testcase classname=\"group\" name=\"one\"/>"));
  CHECK(contains(xml, "classname=\"gr&quot;oup\""));
  CHECK(contains(xml, "message=\"x &lt; 3 &amp; y &gt; &quot;4&quot;&#10;second\""));
  CHECK(contains(xml, "<error message=\"unreadable\">unreadable</error>"));
  CHECK(contains(xml, "skipped=\"1\""));
  CHECK(contains(xml, "<skipped message=\"left out\">left out</skipped>"));
}

TEST_CASE("control characters and bytes that are no UTF-8 are replaced, other characters stay") {
  const std::string xml = lab::junit_xml("s", {{std::string("a\x01\x1b") + "b\xff\xc3z\xed\xa0\x80\xe2\x82",
                                                "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80",
                                                {},
                                                {},
                                                {}}});
  CHECK(contains(xml, "classname=\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\""));
  CHECK(contains(xml, "name=\"a??b??z?????\""));
  for (const char c : xml) CHECK((static_cast<unsigned char>(c) >= 0x20 || c == '\n'));
}

TEST_CASE("without a case the document is still whole") {
  const std::string xml = lab::junit_xml("s", {});
  CHECK(contains(xml, "tests=\"0\""));
  CHECK(contains(xml, "</testsuites>"));
}
