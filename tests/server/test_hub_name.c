/* test_hub_name.c - names of the hub: each form is read, paths are none, and what breaks the rules
 * is refused. */
#include <string.h>

#include "engine/base/error.h"
#include "server/hub/name.h"
#include "tests/test.h"

static void check(const char *text, const char *repository, const char *quant,
                  const char *revision) {
    struct hub_name name;
    struct error err = {0};
    if (hub_name_read(&name, text, &err)) fail_msg("%s: %s", text, err.text);
    assert_string_equal(name.repository, repository);
    assert_string_equal(name.quant, quant);
    assert_string_equal(name.revision, revision);
}

TEST(every_form_of_a_name_is_read) {
    check("o/n", "o/n", "", "main");
    check("Some-Org/a.model_2", "Some-Org/a.model_2", "", "main");
    check("o/n@v1.0", "o/n", "", "v1.0");
    check("hf:o/n:Q4_K_M", "o/n", "Q4_K_M", "main");
    check("hf:o/n:Q8_0/m-00001-of-00002.gguf@refs/pr/1", "o/n", "Q8_0/m-00001-of-00002.gguf",
          "refs/pr/1");
    check("o/n:q4@main", "o/n", "q4", "main");
    check("https://huggingface.co/o/n", "o/n", "", "main");
    check("HTTPS://HuggingFace.co/o/n/", "o/n", "", "main");
    check("hf.co/o/n/tree/v2/", "o/n", "", "v2");
    check("https://hf.co/models/o/n", "o/n", "", "main");
}

static void check_code(const char *text, int code) {
    struct hub_name name;
    struct error err = {0};
    if (hub_name_read(&name, text, &err) != code) fail_msg("%s: %s", text, err.text);
    if (err.code != code) fail_msg("%s: code %d", text, err.code);
}

TEST(paths_and_other_texts_are_no_names) {
    static const char *const texts[] = {
        "",       "o",    "/o/n",  "./o/n", "../n",   "o/n/m",
        "o/n/",   "o//n", ".o/n",  "o/.n",  "o--p/n", "o/n..m",
        "-o/n",   "o/n-", "o n/m", "~/n",   "o/n m",  "https://example.com/o/n",
        "name:7b"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) check_code(texts[i], ERR_NOT_FOUND);
}

TEST(names_that_break_the_rules_are_refused) {
    static const char *const texts[] = {"hf:",
                                        "hf:o",
                                        "hf:../n",
                                        "hf:o/n/m",
                                        "o/n@",
                                        "o/n@../x",
                                        "o/n@a//b",
                                        "o/n@/a",
                                        "o/n@a/",
                                        "o/n@a..b",
                                        "o/n:",
                                        "o/n:..",
                                        "o/n:a b",
                                        "hf.co/o",
                                        "hf.co/o/n/blob/main/x",
                                        "hf.co/o/n/tree/",
                                        "hf.co/o/n/tree/.."};
    char longest[512] = "hf:o/";
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) check_code(texts[i], ERR_INVALID);
    memset(longest + strlen(longest), 'n', 97);
    check_code(longest, ERR_INVALID);
    longest[strlen(longest) - 1] = 0;
    check_code(longest, 0);
}
