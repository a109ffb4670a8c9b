#include <gtest/gtest.h>
#include "pages/page.h"

namespace braid {
namespace {

// RFC 4648, section 10.
TEST(Html, Base64) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foo"), "Zm9v");
  EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(base64("\xfb\xff"), "+/8=");
}

TEST(Html, TextCannotLeaveItsElement) {
  EXPECT_EQ(html_text("</b><script a='1' b=\"2\">&"), "&lt;/b&gt;&lt;script a=&#39;1&#39; b=&quot;2&quot;&gt;&amp;");
  EXPECT_EQ(html_text("a\n\x1b[2J\x7f\xff"), "a\n\\x1b[2J\\x7f\ufffd");
}

}  // namespace
}  // namespace braid
