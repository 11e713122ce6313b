/* test_reasoning.c - where a prompt leaves a thought, and what of an answer is one: templates of
 * several families, new answers, continued ones, and those of which thinking is switched off. */
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "engine/request/channels.h"
#include "engine/template/template.h"
#include "server/api/conversation/prompt_end.h"
#include "server/api/conversation/reasoning.h"
#include "tests/server/fake_engine.h"
#include "tests/test.h"

/* ---- splitting ---- */

static void check_split(struct thought first, const char *text, const char *reasoning,
                        const char *answer) {
    for (size_t piece = 1; piece <= strlen(text) + 1; piece++) {
        struct reasoning_split split = {.thought = first};
        struct buffer thought = {0}, said = {0};
        for (size_t i = 0; i < strlen(text); i += piece) {
            const size_t left = strlen(text) - i;
            reasoning_add(&split, text + i, left < piece ? left : piece, &thought, &said);
        }
        reasoning_end(&split, &thought, &said);
        assert_string_equal(thought.data ? thought.data : "", reasoning);
        assert_string_equal(said.data ? said.data : "", answer);
        buffer_fini(&thought);
        buffer_fini(&said);
        reasoning_split_fini(&split);
    }
}

TEST(reasoning_is_split_off) {
    const struct thought before = {.place = THOUGHT_BEFORE}, inside = {.place = THOUGHT_INSIDE},
                         fresh = {.place = THOUGHT_INSIDE, .is_fresh = true}, behind = {0};
    check_split(before, "<think>\na\n</think>\n\nb", "a\n", "b");
    check_split(before, " \n<think>a</think>b</think>c", "a", "b</think>c");
    check_split(before, "b <think>a</think>", "", "b <think>a</think>");
    check_split(before, "<thin", "", "<thin");
    check_split(before, "<thinner>", "", "<thinner>");
    check_split(before, " \n\tb", "", " \n\tb");
    check_split(before, "  <thinner>", "", "  <thinner>");
    check_split(before, " \n", "", " \n");
    check_split(inside, "a</think>b", "a", "b");
    check_split(inside, " a</think> b", " a", " b");
    check_split(inside, "a<</think>b", "a<", "b");
    check_split(inside, "a</thin</think>", "a</thin", "");
    check_split(inside, "a</think", "a</think", "");
    check_split(inside, "\na</think>\r\nb", "\na", "b");
    check_split(fresh, "\na</think>b", "a", "b");
    check_split(behind, "<think>a</think>b", "", "<think>a</think>b");
    check_split(behind, "\n\nb", "", "\n\nb");
}

TEST(other_marks_than_think_split_reasoning_off) {
    const struct thought cohere = {.place = THOUGHT_BEFORE, .form = THOUGHT_COHERE_TAGS},
                         seed = {.place = THOUGHT_INSIDE, .form = THOUGHT_SEED_TAGS},
                         gemma = {.place = THOUGHT_BEFORE, .form = THOUGHT_GEMMA_TAGS};
    check_split(cohere, "<|START_THINKING|>\na</think><|END_THINKING|>\nb", "a</think>", "b");
    check_split(cohere, "<think>a</think>b", "", "<think>a</think>b");
    check_split(seed, "a</think></seed:think>b", "a</think>", "b");
    check_split(gemma, "<|channel>thought\na<channel|>b", "a", "b");
    check_split(gemma, "<|channel>thought\n<channel|>b", "", "b");
    check_split(gemma, "<|channel>other\nb", "", "<|channel>other\nb");
}

#define C CHANNEL_NAME
#define M CHANNEL_MESSAGE
#define NEXT CHANNEL_END CHANNEL_START "assistant"

TEST(messages_are_split_by_their_channels) {
    struct thought begin = channels_begin(), calls = begin;
    calls.has_calls = true;
    check_split(begin, C "analysis" M "a" NEXT C "final" M "b", "a", "b");
    check_split(begin, C "analysis" M " a\n" NEXT C "analysis" M "b" NEXT C "final" M "\nc",
                " a\nb", "\nc");
    check_split(begin, C "analysi" M "a" NEXT C "analysiss" M "b" NEXT C "commentary" M "c", "",
                "abc");
    check_split(begin, C "analysis " CHANNEL_CONSTRAIN "x" M "a", "a", "");
    check_split(begin, C "final" M "<|end|><|start|>x</think>", "", "<|end|><|start|>x</think>");
    check_split(begin, "plain <|channel|>analysis", "", "plain <|channel|>analysis");
    check_split(begin, " to=nobody", "", " to=nobody");
    check_split(begin, C "analysis" M "a" NEXT C "fin", "a", "");
    check_split(begin, C "commentary to=functions.f" M "{}", "", "{}");
    check_split(calls, C "commentary to=functions.f" M "{}" NEXT C "final" M "a", "",
                M C "commentary to=functions.f{}" CHANNEL_END "a");
    check_split(calls, " to=functions.f" C "commentary" M "{}", "",
                M " to=functions.f" C "commentary{}");
    check_split(calls, C "analysis to=python" M "1+1", "1+1", "");
    check_split(calls, C "analysis to=functions.f" M "{}", "", M C "analysis to=functions.f{}");
}

#undef C
#undef M
#undef NEXT

/* ---- where a prompt ends ---- */

TEST(a_header_is_open_at_the_end_of_a_prompt) {
    static const struct {
        const char *prompt;
        enum thought_place place;
    } cases[] = {{"<|start|>user<|message|>q<|end|><|start|>assistant", THOUGHT_HEADER},
                 {"<|start|>assistant<|channel|>final<|message|>", THOUGHT_BEHIND},
                 {"<|start|>assistant<|channel|>analysis<|message|>", THOUGHT_INSIDE}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char bytes[128];
        const size_t n = strlen(cases[i].prompt);
        struct byte_span all = {0, n};
        struct template_text text = {
            .bytes = strcpy(bytes, cases[i].prompt), .n_bytes = n, .trusted = &all, .n_trusted = 1};
        const struct thought got = prompt_end_read(&text, THOUGHT_CHANNELS, false, NULL);
        assert_int_equal(got.place, cases[i].place);
        text.n_trusted = 0; /* what a client writes opens nothing */
        assert_int_equal(prompt_end_read(&text, THOUGHT_CHANNELS, false, NULL).place,
                         THOUGHT_HEADER);
    }
}

/* Templates as families have them; <s> is a special token. */
#define HEAD "{% for m in messages %}<s>{{ m.role }}\n"
#define TAIL "{{ m.content }}<s>\n{% endfor %}{% if add_generation_prompt %}<s>assistant\n"
#define OFF "{% if enable_thinking is defined and not enable_thinking %}"

/* Writes no mark of its own. */
static const char plain[] = HEAD TAIL "{% endif %}{# </think> #}";
/* Begins every thought, and an empty one where thinking is off. */
static const char opens[] = HEAD TAIL OFF "<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
                                          "{% endif %}";
/* Begins the thought's text, too. */
static const char words[] = HEAD TAIL "<think>\nOkay, {% endif %}";
/* Tells the model about marks before each answer. */
static const char tells[] = "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}\nThink within "
                            "<think> and </think>.<s>\n{% endfor %}"
                            "{% if add_generation_prompt %}<s>assistant\n{% endif %}";
/* Ends the mark without a line end, in the manner of DeepSeek. */
static const char closes[] = HEAD TAIL "</think>{% endif %}";
/* Splits the thought of a message off, and writes it anew, in the manner of Qwen. */
static const char rewrites[] =
    HEAD "{% set c = m.content %}{% set t = m.reasoning_content or '' %}"
         "{% if '</think>' in c %}{% set t = c.split('</think>')[0].split('<think>')[-1] %}"
         "{% set c = c.split('</think>')[-1].lstrip('\n') %}{% endif %}"
         "{% if m.role == 'assistant' %}<think>\n{{ t.strip('\n') }}\n</think>\n\n{% endif %}"
         "{{ c }}<s>\n{% endfor %}{% if add_generation_prompt %}<s>assistant\n{% endif %}";
/* Has no special token. */
static const char bare[] = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
                           "{% if add_generation_prompt %}assistant: <think>\n{% endif %}";
static const char bare_tells[] =
    "Use <think> and </think>.\n{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}";

static struct template_text render(const char *source, const char *user, const char *answer,
                                   bool off) {
    struct template *compiled = NULL;
    struct template_text text = {0};
    json_t *variables = json_pack("{s:[{s:s, s:s}]}", "messages", "role", "user", "content", user);
    if (answer)
        json_array_append_new(json_object_get(variables, "messages"),
                              json_pack("{s:s, s:s}", "role", "assistant", "content", answer));
    json_object_set_new(variables, "add_generation_prompt", json_boolean(!answer));
    if (off) json_object_set_new(variables, "enable_thinking", json_false());
    const struct template_input input = {.variables = variables};
    assert_int_equal(template_compile(&compiled, source, strlen(source), NULL, NULL), 0);
    assert_int_equal(template_render(compiled, &input, NULL, &text, NULL), 0);
    template_destroy(compiled);
    json_decref(variables);
    return text;
}

static void check_new(const char *source, const char *user, bool off, enum thought_place place) {
    struct template_text text = render(source, user, NULL, off);
    const struct thought got = prompt_end_read(&text, THOUGHT_TAGS, false, fake_tokenizer());
    if (got.place != place) fail_msg("%s: %d, not %d", text.bytes, got.place, place);
    template_text_fini(&text);
}

/* end: what the prompt ends with; NULL: the message cannot be continued. */
static void check_continued(const char *source, const char *answer, const char *end,
                            enum thought_place place) {
    static const char *const users[] = {"q", "<think>", "</think>", "a <think> b", "", "a"};
    for (size_t i = 0; i < 6; i++) {
        struct template_text text = render(source, users[i], answer, false);
        const bool is_cut = prompt_end_cut(&text, THOUGHT_TAGS, answer, strlen(answer));
        if (is_cut != (end != NULL)) fail_msg("'%s' is cut: %d", text.bytes, is_cut);
        if (end) {
            const size_t n = strlen(end);
            const struct thought got = prompt_end_read(&text, THOUGHT_TAGS, true, fake_tokenizer());
            if (text.n_bytes < n || strcmp(text.bytes + text.n_bytes - n, end) != 0)
                fail_msg("'%s' does not end with '%s'", text.bytes, end);
            if (got.place != place) fail_msg("'%s': %d, not %d", text.bytes, got.place, place);
            assert_false(got.is_fresh);
            assert_int_equal(strlen(text.bytes), text.n_bytes);
        }
        template_text_fini(&text);
    }
}

TEST(new_answers_begin_where_the_template_leaves_them) {
    static const char *const users[] = {"q", "<think>", "</think>", "<s>assistant\n<think>\n", ""};
    for (size_t i = 0; i < 5; i++) {
        for (int off = 0; off < 2; off++) {
            check_new(plain, users[i], off, THOUGHT_BEFORE);
            check_new(opens, users[i], off, off ? THOUGHT_BEHIND : THOUGHT_INSIDE);
            check_new(words, users[i], off, THOUGHT_INSIDE);
            check_new(tells, users[i], off, THOUGHT_BEFORE);
            check_new(closes, users[i], off, THOUGHT_BEHIND);
            check_new(rewrites, users[i], off, THOUGHT_BEFORE);
            check_new(bare, users[i], off, THOUGHT_INSIDE);
            check_new(bare_tells, users[i], off, THOUGHT_BEFORE);
        }
    }
}

TEST(continued_answers_begin_where_the_message_ends) {
    static const char *const all[] = {plain, opens, words, closes, bare};
    for (size_t i = 0; i < 5; i++) {
        check_continued(all[i], "Hello", "Hello", THOUGHT_BEHIND);
        check_continued(all[i], "Hello ", "Hello ", THOUGHT_BEHIND);
        check_continued(all[i], "<think>\nFirst I", "<think>\nFirst I", THOUGHT_INSIDE);
        check_continued(all[i], "<think>", "<think>", THOUGHT_INSIDE);
        check_continued(all[i], "<think>\na\n</think>\n\n", "</think>\n\n", THOUGHT_BEHIND);
        check_continued(all[i], "<think>a</think>Then", "Then", THOUGHT_BEHIND);
        check_continued(all[i], "The mark <think> is", "<think> is", THOUGHT_BEHIND);
        check_continued(all[i], "a", "a", THOUGHT_BEHIND);
        check_continued(all[i], "</think>", "</think>", THOUGHT_BEHIND);
        check_continued(all[i], " \n", NULL, THOUGHT_BEHIND);
    }
    check_continued(rewrites, "Hello", "</think>\n\nHello", THOUGHT_BEHIND);
    check_continued(rewrites, "<think>a</think>Then", "a\n</think>\n\nThen", THOUGHT_BEHIND);
    check_continued(rewrites, "<think>\na\n</think>\n\n", "\na\n</think>\n\n", THOUGHT_BEHIND);
    check_continued(rewrites, "<think>\nFirst I", "<think>\nFirst I", THOUGHT_INSIDE);
}

TEST(a_mark_at_the_end_is_fresh) {
    struct template_text text = render("<s>{{ messages[0].content }}<think>", "q", NULL, false);
    assert_true(prompt_end_read(&text, THOUGHT_TAGS, false, fake_tokenizer()).is_fresh);
    template_text_fini(&text);
}
