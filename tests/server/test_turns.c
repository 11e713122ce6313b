/* test_turns.c - conversations on templates that raise at some of their turns: what such a template
 * then gets, and that later turns leave the beginning of the prompt as it was.
 *
 * Messages are written with ' for ". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "engine/template/template.h"
#include "server/api/conversation/call_ids.h"
#include "server/api/conversation/request.h"
#include "server/api/conversation/turns.h"
#include "server/settings/chat_template.h"
#include "server/settings/template_probe.h"
#include "tests/server/api_rig.h"
#include "tests/test.h"

#define SHOW                                                                                       \
    "[{{ m.role }}{% if m.tool_call_id %} {{ m.tool_call_id }}{% endif %}: {{ m.content }}"        \
    "{% for c in m.tool_calls %} {{ c.id }}{% endfor %}]"
#define RAISE(text) "{{ raise_exception('" text "') }}"

/* Takes a system message in front alone. */
static const char in_front[] =
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}" RAISE(
        "at the beginning") "{% endif %}" SHOW "{% endfor %}";
/* Knows no system, and wants turns to alternate. */
static const char alternating[] = "{% if messages[0].role == 'system' %}" RAISE(
    "no system") "{% endif %}{% for m in messages %}"
                 "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}" RAISE(
                     "alternate") "{% endif %}" SHOW "{% endfor %}";
/* The same with a system message in front. */
static const char with_system[] =
    "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{% else %}{% set rest = "
    "messages "
    "%}{% endif %}{% for m in messages[:1] if m.role == 'system' %}" SHOW "{% endfor %}"
    "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}" RAISE(
        "alternate") "{% endif %}" SHOW "{% endfor %}";
/* Does not count calls and results as turns, and wants short ids. */
static const char uncounted[] =
    "{% set ns = namespace(i=0) %}{% for m in messages %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and m.tool_calls is undefined) %}"
    "{% if (m.role == 'user') != (ns.i % 2 == 0) %}" RAISE(
        "alternate") "{% endif %}"
                     "{% set ns.i = ns.i + 1 %}{% elif m.role == 'system' and not loop.first "
                     "%}" RAISE("system") "{% endif %}{% for c in m.tool_calls %}{% if c.id|length "
                                          "!= 9 %}" RAISE(
                                              "ids") "{% endif %}{% endfor %}"
                                                     "{% if m.role == 'tool' and "
                                                     "m.tool_call_id|length != 9 %}" RAISE(
                                                         "ids") "{% endif %}" SHOW "{% endfor %}";
/* Fails at a later system message without saying why. */
static const char failing[] =
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ nothing.at.all }}{% endif %}" SHOW "{% endfor %}";
static const char never[] = "{% for m in messages %}" RAISE("never {{ n }}") "{% endfor %}";

static struct chat_template chat;

static int tear_down(void **state) {
    const int rc = rig_tear_down(state);
    chat_template_fini(&chat);
    chat = (struct chat_template){0};
    return rc;
}

static void use(struct rig *rig, const char *source) {
    chat_template_fini(&chat);
    chat = (struct chat_template){.own = json_object(), .tool_text = strdup("<tool_call>")};
    assert_int_equal(template_compile(&chat.plain, source, strlen(source), NULL, NULL), 0);
    rig->server.limits.chat = &chat;
    rig->server.limits.max_model_len = rig->server.limits.trained_context = 4096;
}

/* Returns the prompt of a conversation, or the message of its refusal.  The caller frees it. */
static char *prompt_of(struct rig *rig, const char *messages) {
    char body[4096];
    struct completion_request request;
    struct chat_request read;
    struct api_error err = {0};
    snprintf(body, sizeof(body), "{'messages':[%s]}", messages);
    for (char *at = body; *at; at++)
        if (*at == '\'') *at = '"';
    if (chat_request_parse(&request, &read, NULL, body, strlen(body), &rig->server.limits, &err))
        return strdup(err.message);
    char *text = strdup(request.prompts.items[0].text);
    completion_request_fini(&request);
    chat_request_fini(&read);
    return text;
}

static void check(struct rig *rig, const char *messages, const char *expected) {
    char *text = prompt_of(rig, messages);
    if (strcmp(text, expected) != 0) fail_msg("%s: %s, not %s", messages, text, expected);
    free(text);
}

#define SAY(role, text) "{'role':'" role "','content':'" text "'}"
#define S SAY("system", "s")
#define T SAY("system", "t")
#define U SAY("user", "u")
#define V SAY("user", "v")
#define A SAY("assistant", "a")
#define B SAY("assistant", "b")
#define CALLS(id)                                                                                  \
    "{'role':'assistant','content':null,'tool_calls':[{'id':'" id                                  \
    "','type':'function','function':{'name':'f','arguments':'{}'}}]}"
#define RESULT(id) "{'role':'tool','tool_call_id':'" id "','content':'r'}"

TEST_WITH(what_a_template_takes_is_left_alone, rig_set_up, tear_down) {
    use(*state, "{% for m in messages %}" SHOW "{% endfor %}");
    check(*state, S "," T "," U "," V "," A "," S "," CALLS("long-identifier"),
          "[system: s][system: t][user: u][user: v][assistant: a][system: s]"
          "[assistant:  long-identifier]");
}

TEST_WITH(later_systems_are_part_of_the_users_turn, rig_set_up, tear_down) {
    const char *const templates[] = {in_front, failing};
    for (int i = 0; i < 2; i++) {
        use(*state, templates[i]);
        check(*state, S "," U "," A "," T "," V,
              "[system: s][user: u][assistant: a][user: t\n\nv]");
        check(*state, S "," U "," T, "[system: s][user: u\n\nt]");
        check(*state, S "," T "," U, "[system: s\n\nt][user: u]");
        check(*state, U "," S, "[user: u\n\ns]");
        check(*state, U "," A "," S, "[user: u][assistant: a][user: s]");
        check(*state, S "," T, "[system: s\n\nt]");
        check(*state, U "," CALLS("abcDEF123") "," RESULT("abcDEF123") "," S,
              "[user: u][assistant:  abcDEF123][tool abcDEF123: r][user: s]");
    }
}

TEST_WITH(a_system_that_is_unknown_is_in_the_first_turn, rig_set_up, tear_down) {
    use(*state, alternating);
    check(*state, S "," U, "[user: s\n\nu]");
    check(*state, S "," T "," U "," A "," S "," V,
          "[user: s\n\nt\n\nu][assistant: a][user: s\n\nv]");
    check(*state, S, "[user: s]");
    check(*state, S "," A, "[user: s][assistant: a]");
    check(*state, U "," V, "[user: u\n\nv]");
    check(*state, U "," A "," B "," V, "[user: u][assistant: a\n\nb][user: v]");
    check(*state, SAY("system", "") "," U, "[user: u]");
}

TEST_WITH(turns_of_one_role_are_joined, rig_set_up, tear_down) {
    use(*state, with_system);
    check(*state, S "," U "," V, "[system: s][user: u\n\nv]");
    check(*state, S "," U "," A "," T "," V "," V,
          "[system: s][user: u][assistant: a][user: t\n\nv\n\nv]");
    check(*state,
          "{'role':'user','content':'u'},{'role':'assistant','content':'','reasoning':'h'},"
          "{'role':'assistant','content':'b','reasoning':'m'}",
          "[user: u][assistant: b]");
}

TEST_WITH(a_text_beside_a_thought_and_a_call_is_a_part_of_the_thought, rig_set_up, tear_down) {
    use(*state, "{% for m in messages %}{% if m.tool_calls and m.content and m.thinking %}" RAISE(
                    "both") "{% endif %}[{{ m.role }}:{{ m.thinking }}:{{ m.content }}]{% endfor "
                            "%}");
    check(*state,
          U ",{'role':'assistant','content':'c','reasoning':'t','tool_calls':[{'id':'1','type':"
            "'function','function':{'name':'f','arguments':'{}'}}]}," RESULT("1"),
          "[user::u][assistant:t\n\nc:][tool::r]");
}

#define TWO_CALLS                                                                                  \
    "{'role':'assistant','content':'c','tool_calls':[{'id':'1','type':'function','function':"      \
    "{'name':'f','arguments':'{}'}},{'id':'2','type':'function','function':{'name':'g',"           \
    "'arguments':'{}'}}]},{'role':'tool','tool_call_id':'2','content':'second'},"                  \
    "{'role':'tool','tool_call_id':'1','content':'first'}"

/* Results are written once, though their calls have the same id. */
#define ALIKE_CALLS                                                                                \
    "{'role':'assistant','content':'','tool_calls':[{'id':'1','type':'function','function':"       \
    "{'name':'f','arguments':'{}'}},{'id':'1','type':'function','function':{'name':'g',"           \
    "'arguments':'{}'}}]},{'role':'tool','tool_call_id':'1','content':'first'},"                   \
    "{'role':'tool','tool_call_id':'1','content':'second'},"                                       \
    "{'role':'tool','tool_call_id':'1','content':'third'},"                                        \
    "{'role':'tool','tool_call_id':'2','content':'other'}"

TEST_WITH(calls_are_parted_where_a_template_takes_one, rig_set_up, tear_down) {
    use(*state, "{% for m in messages %}{% if m.tool_calls and m.tool_calls | length > 1 %}" RAISE(
                    "one call") "{% endif %}[{{ m.role }}:{{ m.content }}{% for c in m.tool_calls "
                                "%}{{ c.function.name }}{% endfor %}]{% endfor %}");
    check(*state, U "," TWO_CALLS "," V,
          "[user:u][assistant:cf][tool:first][assistant:g][tool:second][user:v]");
    check(*state, U "," ALIKE_CALLS "," V,
          "[user:u][assistant:f][tool:first][tool:third][assistant:g][tool:second][tool:other]"
          "[user:v]");
}

TEST_WITH(what_a_template_leaves_out_is_written_otherwise, rig_set_up, tear_down) {
    use(*state, "{% for m in messages %}{% if m.role != 'system' or loop.first %}[{{ m.role }}:"
                "{{ m.content }}{{ m.tool_calls[0].function.name if m.tool_calls }}]{% endif %}"
                "{% endfor %}");
    chat.drops_systems = template_drops_systems(chat.plain, chat.own);
    chat.drops_calls = template_drops_calls(chat.plain, chat.own);
    assert_true(chat.drops_systems && chat.drops_calls);
    assert_true(template_drops_tools(chat.plain, chat.own));
    check(*state, S "," U "," A "," T "," V "," TWO_CALLS,
          "[system:s][user:u][assistant:a][user:t\n\nv][assistant:cf][tool:first][assistant:g]"
          "[tool:second]");
    check(*state, U "," V, "[user:u][user:v]");
    use(*state, in_front);
    assert_false(template_drops_systems(chat.plain, chat.own)); /* it raises */
    assert_false(template_drops_calls(chat.plain, chat.own));
    use(*state, "{% for m in messages %}{{ m.content }}{% if loop.first and tools %}"
                "{{ tools | tojson }}{% endif %}{% endfor %}");
    assert_false(template_drops_tools(chat.plain, chat.own));
}

TEST_WITH(ids_are_shortened, rig_set_up, tear_down) {
    char alias[10], expected[256];
    use(*state, uncounted);
    call_id_alias(alias, "toolu_01A09q90qw90lq917835lq9", strlen("toolu_01A09q90qw90lq917835lq9"));
    assert_true(call_id_fits(alias, strlen(alias)));
    snprintf(expected, sizeof(expected), "[user: u][assistant:  %s][tool %s: r]", alias, alias);
    check(*state,
          U "," CALLS("toolu_01A09q90qw90lq917835lq9") "," RESULT("toolu_01A09q90qw90lq917835lq9"),
          expected);
    check(*state, U "," CALLS("abcDEF123") "," RESULT("abcDEF123"),
          "[user: u][assistant:  abcDEF123][tool abcDEF123: r]");
    /* What is right behind results is a part of them. */
    check(*state, S "," U "," CALLS("abcDEF123") "," RESULT("abcDEF123") "," V "," T,
          "[system: s][user: u][assistant:  abcDEF123][tool abcDEF123: r\n\nv\n\nt]");
    check(*state, U "," CALLS("abcDEF123") "," RESULT("abcDEF123") "," A "," V,
          "[user: u][assistant:  abcDEF123][tool abcDEF123: r][assistant: a][user: v]");
}

TEST_WITH(the_first_error_stays, rig_set_up, tear_down) {
    use(*state, never);
    check(*state, S "," U "," T, "never {{ n }}");
    use(*state, alternating);
    check(*state, A, "alternate");
    check(*state, S "," A "," S "," A "," CALLS("1") "," RESULT("1"), "no system");
}

TEST_WITH(ids_fit, rig_set_up, tear_down) {
    static const char *const misfits[] = {"",
                                          "abcdefgh",
                                          "abcdefghij",
                                          "abc-efghi",
                                          "abc\xc3\xa9"
                                          "fgh",
                                          "call_1234"};
    char ids[4][10];
    for (size_t i = 0; i < sizeof(misfits) / sizeof(*misfits); i++) {
        assert_false(call_id_fits(misfits[i], strlen(misfits[i])));
        call_id_alias(ids[0], misfits[i], strlen(misfits[i]));
        assert_true(call_id_fits(ids[0], strlen(ids[0])));
    }
    assert_false(call_id_fits("abcdefgh\0", 9));
    call_id_make(ids[0], "id", 5, 0, 0);
    call_id_make(ids[1], "id", 5, 0, 1);
    call_id_make(ids[2], "id", 5, 1, 0);
    call_id_make(ids[3], "id", 6, 0, 0); /* the next turn, under the same id */
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++) assert_string_not_equal(ids[i], ids[j]);
}

/* A body may hold thousands of messages that become one.  Copying what is there for each more of
 * them would take minutes here. */
TEST(thousands_of_turns_are_joined_at_once) {
    enum { N = 8000, LENGTH = 2000 };
    const struct turn_rules rules = {.joined = true, .short_ids = true};
    json_t *messages = json_array();
    char said[LENGTH + 1];
    memset(said, 'a', LENGTH);
    said[LENGTH] = 0;
    for (int i = 0; i < N; i++)
        json_array_append_new(
            messages, json_pack("{s:s, s:s, s:[{s:s}]}", "role", "assistant", "content", said,
                                "tool_calls", "id", "abcDEF123"));
    json_t *made = turns_make(messages, &rules), *message = json_array_get(made, 0);
    assert_int_equal(json_array_size(made), 1);
    assert_int_equal(json_string_length(json_object_get(message, "content")), N * (LENGTH + 2) - 2);
    assert_int_equal(json_array_size(json_object_get(message, "tool_calls")), N);
    assert_int_equal(json_array_size(json_object_get(json_array_get(messages, 0), "tool_calls")),
                     1);
    json_decref(made);
    json_decref(messages);
}

/* The prompt of each turn begins with that of the turn before, but for its last message, which the
 * next may go on. */
TEST_WITH(later_turns_begin_like_earlier_ones, rig_set_up, tear_down) {
    static const char *const templates[] = {in_front, alternating, with_system, uncounted, failing};
    static const char *const turns[] = {S,
                                        "," U,
                                        "," T "," SAY("assistant", "1"),
                                        "," V,
                                        "," SAY("assistant", "2"),
                                        "," SAY("system", "w") "," U,
                                        "," CALLS("toolu_1") "," RESULT("toolu_1"),
                                        "," SAY("assistant", "3"),
                                        "," U "," T,
                                        "," SAY("assistant", "4") "," V};
    for (size_t t = 0; t < 5; t++) {
        char messages[4096] = "", before[4096] = "";
        use(*state, templates[t]);
        for (size_t i = 0; i < sizeof(turns) / sizeof(*turns); i++) {
            strcat(messages, turns[i]);
            char *text = prompt_of(*state, messages);
            if (i == 6 && *text != '[') { /* two of them know no results of tools */
                free(text);
                break;
            }
            char *end = strrchr(before, ']');
            if (end) *end = 0;
            if (i > 1 && strncmp(text, before, strlen(before)) != 0)
                fail_msg("template %zu: %s does not begin like %s", t, text, before);
            strcpy(before, text);
            free(text);
        }
    }
}
