/* test_typed_lists.c - tools, items, blocks and parts of every type in the three dialects of a
 * chat: what they become in the prompt, what comes back of calls, and what the log says.
 *
 * Bodies are written with ' for ". */
#include <stdio.h>
#include <string.h>
#include <jansson.h>

#include "server/api/conversation/messages.h"
#include "server/api/conversation/request.h"
#include "server/api/conversation/skipped.h"
#include "server/api/conversation/tools.h"
#include "server/api/messages/request.h"
#include "server/api/responses/request.h"
#include "server/json/api_error.h"
#include "tests/server/api_rig.h"
#include "tests/server/fake_engine.h"
#include "tests/test.h"

/* Shows what a message has, and the names of the tools. */
static const char source[] =
    "{% for m in messages %}[{{ m.role }}"
    "{% if m.reasoning_content %} thinks {{ m.reasoning_content }}{% endif %}"
    "{% if m.tool_call_id %} {{ m.tool_call_id }}{% endif %}: {{ m.content }}"
    "{% for c in m.tool_calls %} {{ c.id }}={{ c.function.name }}"
    "({{ c.function.arguments | tojson }}){% endfor %}]{% endfor %}"
    "{% for t in tools or [] %}<{{ t.function.name }}>{% endfor %}{# <tool_call> </think> #}";

static struct skipped_types skipped;

static int set_up(void **state) {
    rig_set_up_chat(state, source, 4096);
    skipped_types_init(&skipped);
    ((struct rig *)*state)->server.limits.skipped = &skipped;
    return 0;
}

static int tear_down(void **state) {
    skipped_types_fini(&skipped);
    return rig_tear_down_chat(state);
}

/* ---- the prompt ---- */

enum dialect { CHAT, RESPONSES, MESSAGES };

static void make_body(char *body, size_t size, const char *text) {
    assert_true(snprintf(body, size, "{%s}", text) < (int)size);
    for (; *body; body++)
        if (*body == '\'') *body = '"';
}

static int parse(struct completion_request *out, struct chat_request *read, enum dialect dialect,
                 const char *body, const struct request_limits *limits, struct api_error *err) {
    struct responses_asked asked = {0};
    const struct history_source source = {.store = NULL};
    int rc;
    switch (dialect) {
    case CHAT: return chat_request_parse(out, read, NULL, body, strlen(body), limits, err);
    case RESPONSES:
        rc = responses_request_parse(out, read, &asked, body, strlen(body), &source, limits, err);
        responses_asked_fini(&asked, NULL);
        return rc;
    default: return messages_request_parse(out, read, true, body, strlen(body), limits, err);
    }
}

/* Checks what a body becomes.  expected: the prompt, or a part of the message of its refusal. */
static void check(struct rig *rig, enum dialect dialect, const char *fields, const char *expected) {
    char body[8192];
    struct completion_request request;
    struct chat_request read;
    struct api_error err = {0};
    make_body(body, sizeof(body), fields);
    if (parse(&request, &read, dialect, body, &rig->server.limits, &err)) {
        if (err.status != 400 || !strstr(err.message, expected))
            fail_msg("%s: %u %s", body, err.status, err.message);
        return;
    }
    if (strcmp(request.prompts.items[0].text, expected) != 0)
        fail_msg("%s: %s, not %s", body, request.prompts.items[0].text, expected);
    completion_request_fini(&request);
    chat_request_fini(&read);
}

#define DEFINITION "'description':'d','parameters':{'type':'object'}"
#define FLAT(name) "{'type':'function','name':'" name "'," DEFINITION "}"
#define NESTED(name) "{'type':'function','function':{'name':'" name "'," DEFINITION "}}"
#define SCHEMED(name) "{'name':'" name "','input_schema':{'type':'object'}}"

/* Sends one element beside a known one of each dialect's, in the tools. */
static void check_tool(struct rig *rig, const char *tool, const char *shown) {
    static const char *const known[] = {NESTED("f"), FLAT("f"), SCHEMED("f")},
                             *const asks[] = {"'messages':[{'role':'user','content':'q'}]",
                                              "'input':'q'",
                                              "'messages':[{'role':'user','content':'q'}]"};
    char fields[4096], expected[256];
    snprintf(expected, sizeof(expected), "[user: q]<f>%s", shown);
    for (int d = CHAT; d <= MESSAGES; d++) {
        snprintf(fields, sizeof(fields), "%s,'tools':[%s,%s]", asks[d], known[d], tool);
        check(rig, (enum dialect)d, fields, expected);
    }
}

TEST_WITH(unknown_tools_are_skipped_beside_known_ones, set_up, tear_down) {
    static const char *const tools[] = {
        "{'type':'web_search'}",
        "{'type':'web_search_20250305','name':'web_search','max_uses':8}",
        "{'type':'local_shell'}",
        "{'type':'shell','environment':{'type':'container_auto'}}",
        "{'type':'apply_patch'}",
        "{'type':'tool_search'}",
        "{'type':'tool_search','execution':'server','parameters':{'type':'object'}}",
        "{'type':'mcp','server_label':'s','server_url':'http://x/'}",
        "{'type':'mcp_toolset','mcp_server_name':'s','configs':{}}",
        "{'type':'computer_use_preview','display_width':10}",
        "{'type':'computer_20250124','name':'computer','display_width_px':1}",
        "{'type':'bash_20250124','name':'bash'}",
        "{'type':'text_editor_20250728','name':'str_replace_based_edit_tool'}",
        "{'type':'memory_20250818','name':'memory'}",
        "{'type':'of_tomorrow'}",
        "{'type':'of_tomorrow','name':'x','schema':[1]}",
        "{'type':'namespace','name':'empty','tools':[]}",
        "{'type':'namespace','name':'empty'}",
        "{'type':'namespace','name':'nothing','tools':[{'type':'local_shell'}]}",
    };
    for (size_t i = 0; i < sizeof(tools) / sizeof(*tools); i++) check_tool(*state, tools[i], "");
}

TEST_WITH(what_describes_a_function_is_one_in_every_dialect, set_up, tear_down) {
    check_tool(*state, "{'type':'function','name':'g','input_schema':{}}", "<g>");
    check_tool(*state, "{'type':'function','function':{'name':'g','parameters':{}}}", "<g>");
    check_tool(*state, "{'type':'custom','name':'g','input_schema':{}}", "<g>");
    check_tool(*state, "{'name':'g','input_schema':{},'defer_loading':true}", "<g>");
    check_tool(*state, "{'type':'of_tomorrow','name':'g','parameters':{'type':'object'}}", "<g>");
    check_tool(*state, "{'type':null,'name':'g','input_schema':{}}", "<g>");
    check_tool(*state,
               "{'type':'tool_search','execution':'client','description':'d','parameters':{}}",
               "<tool_search>");
}

TEST_WITH(a_grammar_is_part_of_the_description, set_up, tear_down) {
    static const char *const syntaxes[] = {"lark",
                                           "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9"
                                           "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9"
                                           "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9"};
    char fields[1024];
    rig_change_template("{% for t in tools %}<{{ t.function.description }}>{% endfor %}");
    for (int i = 0; i < 2; i++) {
        snprintf(fields, sizeof(fields),
                 "'input':'q','tools':[{'type':'namespace','name':'n','description':'N','tools':["
                 "{'type':'custom','name':'g','description':'d','format':{'type':'grammar',"
                 "'syntax':'%s','definition':'start: x'}},{'type':'custom','name':'h','format':{"
                 "'type':'grammar','syntax':'regex','definition':'x+'}}]}]",
                 syntaxes[i]);
        check(*state, RESPONSES, fields,
              "<N\n\nd\n\nThe input has the form of this grammar:\nstart: x>"
              "<The input has the form of this expression:\nx+>");
    }
}

/* The name of a namespace is copied into that of each tool in it.  With one of 1 MB, 2,000 tools
 * took more than 4 GB. */
TEST_WITH(the_name_of_a_namespace_is_bounded, set_up, tear_down) {
    char name[258], fields[1024];
    for (size_t n = 256; n <= 257; n++) {
        memset(name, 'n', n);
        name[n] = 0;
        snprintf(fields, sizeof(fields),
                 "'input':'q','tools':[{'type':'namespace','name':'%s','tools':[" FLAT("f") "]}]",
                 name);
        char shown[512];
        snprintf(shown, sizeof(shown), "[user: q]<%s__f>", name);
        check(*state, RESPONSES, fields,
              n > 256 ? "tools[0].name must have at most 256 bytes" : shown);
    }
}

TEST_WITH(namespaces_are_part_of_names, set_up, tear_down) {
    check_tool(*state,
               "{'type':'namespace','name':'mcp__a','tools':[" SCHEMED("f") "," SCHEMED("g") "]}",
               "<mcp__a__f><mcp__a__g>");
    check_tool(*state, "{'type':'namespace','name':'mcp__a__','tools':[" SCHEMED("f") "]}",
               "<mcp__a__f>");
    check_tool(*state, "{'type':'toolset_of_tomorrow','name':'n','tools':[" SCHEMED("f") "]}",
               "<n__f>");
    check_tool(*state, "{'type':'namespace','tools':[" SCHEMED("g") "]}", "<g>");
    check_tool(
        *state,
        "{'type':'namespace','name':'a','tools':[{'type':'namespace','name':'b','tools':[" SCHEMED(
            "g") "]}]}",
        "<b__g>");
    check_tool(*state, SCHEMED("f"), ""); /* replaces the first */
    check(*state, RESPONSES, "'input':'q','tools':[{'type':'namespace','name':'n','tools':[3]}]",
          "tools[0].tools[0] must be an object");
    check(*state, RESPONSES, "'input':'q','tools':[{'type':'namespace','name':'n','tools':[{}]}]",
          "tools[0].tools[0].name must be a string");
}

TEST_WITH(nothing_usable_is_an_answer_or_a_refusal, set_up, tear_down) {
    check(*state, RESPONSES, "'input':'q','tools':[{'type':'web_search'}]", "[user: q]");
    check(*state, RESPONSES, "'input':'q','tools':[{'type':'namespace','name':'multi_agent_v1'}]",
          "[user: q]");
    check(*state, RESPONSES, "'input':'q','tools':[{'type':'mcp'}]",
          "tools[0].type: 'mcp' is not supported");
    check(*state, RESPONSES, "'input':'q','tools':[{'type':'mcp'}],'tool_choice':'none'",
          "[user: q]");
    check(*state, RESPONSES, "'input':'q','tools':[{'type':'mcp'}],'tool_choice':'required'",
          "tool_choice needs tools that are run by the client");
    check(*state, CHAT,
          "'messages':[{'role':'user','content':'q'}],'tools':[{'type':'web_search'}],"
          "'tool_choice':'required'",
          "none of those in tools is");
    check(*state, MESSAGES,
          "'messages':[{'role':'user','content':'q'}],'tools':[{'type':'web_search_1','name':'w'}],"
          "'tool_choice':{'type':'tool','name':'w'}",
          "none of those in tools is");
}

/* Each result is moved once, however many texts come between it and its call. */
TEST(many_results_come_before_many_texts) {
    enum { N = 100000 };
    struct api_error err = {0};
    json_t *list = json_pack("[{s:s, s:[{s:s, s:{s:s, s:s}}]}]", "role", "assistant", "tool_calls",
                             "id", "c", "function", "name", "f", "arguments", "{}");
    json_t *read = NULL;
    for (int i = 0; i < 2 * N; i++)
        json_array_append_new(list, json_pack("{s:s, s:s}", "role", i % 2 ? "tool" : "user",
                                              "content", i % 2 ? "r" : "t"));
    assert_int_equal(chat_messages_read(&read, list, false, NULL, &err), 0);
    assert_int_equal(json_array_size(read), 1 + 2 * N);
    for (size_t i = 0; i < 2 * N; i++)
        assert_string_equal(json_string_value(json_object_get(json_array_get(read, 1 + i), "role")),
                            i < N ? "tool" : "user");
    json_decref(read);
    json_decref(list);
}

/* Each name is looked up once: a body may have as many tools as names of those that are allowed. */
TEST(many_tools_are_allowed_by_many_names) {
    enum { N = 60000 };
    struct api_error err = {0};
    const struct tool_rules rules = {.err = &err};
    struct tool_list list = {0};
    json_t *tools = json_array(), *names = json_array();
    for (int i = 0; i < N; i++) {
        char name[16];
        snprintf(name, sizeof(name), "f%d", i);
        json_array_append_new(
            tools, json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name", name));
        if (i % 2 == 0)
            json_array_insert_new(names, 0,
                                  json_pack("{s:s, s:s}", "type", "function", "name", name));
    }
    assert_int_equal(tool_list_add(&list, &rules, "tools", tools), 0);
    assert_int_equal(tool_list_allow(&list, names, &err), 0);
    assert_int_equal(json_array_size(list.functions), N / 2);
    tool_list_fini(&list);
    json_decref(tools);
    json_decref(names);
}

TEST_WITH(only_allowed_tools_are_shown, set_up, tear_down) {
    static const char tools[] = "'tools':[{'type':'namespace','name':'n','tools':[" SCHEMED(
        "f") "," SCHEMED("g") "]}," FLAT("f") "," FLAT("h") ",{'type':'web_search'}]";
    static const struct {
        const char *allowed, *shown;
    } cases[] = {
        {"{'type':'function','name':'h'}", "<h>"},
        {"{'type':'function','function':{'name':'h'}}", "<h>"},
        {"{'type':'function','name':'g'}", "<n__g>"},
        {"{'type':'function','name':'f','namespace':'n'}", "<n__f>"},
        {"{'type':'function','name':'n__f'},{'type':'mcp','server_label':'x'}", "<n__f>"},
        {"{'type':'namespace','name':'n'}", "<n__f><n__g>"},
        {"{'type':'image_generation'}", ""},
    };
    char fields[1024], expected[256];
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        snprintf(expected, sizeof(expected), "[user: q]%s", cases[i].shown);
        snprintf(fields, sizeof(fields),
                 "'input':'q',%s,'tool_choice':{'type':'allowed_tools','mode':'auto','tools':[%s]}",
                 tools, cases[i].allowed);
        check(*state, RESPONSES, fields, expected);
        snprintf(
            fields, sizeof(fields),
            "'messages':[{'role':'user','content':'q'}],%s,'tool_choice':{'type':'allowed_tools',"
            "'allowed_tools':{'mode':'auto','tools':[%s]}}",
            tools, cases[i].allowed);
        check(*state, CHAT, fields, expected);
    }
    check(*state, RESPONSES,
          "'input':'q','tools':[" FLAT("f") "],'tool_choice':{'type':'allowed_tools','mode':"
                                            "'required','tools':[]}",
          "tool_choice needs tools");
    check(*state, RESPONSES,
          "'input':'q','tools':[" FLAT("f") "],'tool_choice':{'type':'allowed_tools','mode':'auto',"
                                            "'tools':[{'type':'function','name':'unheard'}]}",
          "tool_choice: a tool that is allowed is not among tools");
    check(*state, RESPONSES,
          "'input':'q','tools':[" FLAT("f") "],'tool_choice':{'type':'allowed_tools','tools':[]}",
          "tool_choice must have a mode");
}

/* Sends a choice in each dialect. */
static void check_choice(struct rig *rig, const char *choice, const char *expected) {
    char fields[1024];
    snprintf(fields, sizeof(fields),
             "'messages':[{'role':'user','content':'q'}],'tools':[" FLAT("f") "," FLAT(
                 "g") "],'tool_choice':%s",
             choice);
    check(rig, CHAT, fields, expected);
    check(rig, MESSAGES, fields, expected);
    snprintf(fields, sizeof(fields),
             "'input':'q','tools':[" FLAT("f") "," FLAT("g") "],'tool_choice':%s", choice);
    check(rig, RESPONSES, fields, expected);
}

/* What must be called is constrained; without xgrammar, that is refused. */
TEST_WITH(a_choice_is_read_in_the_words_of_any_api, set_up, tear_down) {
    static const struct {
        const char *choice, *expected;
    } cases[] = {
        {"'auto'", "[user: q]<f><g>"},
        {"{'type':'auto'}", "[user: q]<f><g>"},
        {"{'type':'auto','disable_parallel_tool_use':true}", "[user: q]<f><g>"},
        {"'none'", "[user: q]"},
        {"{'type':'none'}", "[user: q]"},
        {"{'type':'allowed_tools','mode':'auto','tools':[{'type':'function','name':'g'}]}",
         "[user: q]<g>"},
        {"{'type':'allowed_tools','allowed_tools':{'mode':'auto','tools':[{'type':'function',"
         "'function':{'name':'g'}}]}}",
         "[user: q]<g>"},
        {"{'type':'function','name':'h'}", "tool_choice"},
        {"{'type':'function','function':{'name':'h'}}", "tool_choice"},
        {"{'type':'custom','custom':{'name':'h'}}", "tool_choice"},
        {"{'type':'tool','name':'h'}", "tool_choice"},
        {"{'function':{'name':'h'}}", "tool_choice"},
        {"{'type':'function'}", "tool_choice must name a tool"},
        {"{'type':'tool','name':3}", "tool_choice must name a tool"},
        {"{'type':'x'}", "tool_choice.type must be auto"},
        {"{'type':'auto','disable_parallel_tool_use':1}", "disable_parallel_tool_use"},
        {"'x'", "tool_choice must be auto"},
        {"3", "tool_choice must be"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        check_choice(*state, cases[i].choice, cases[i].expected);
}

/* Sends a part beside a text of the user's in each dialect. */
static void check_part(struct rig *rig, const char *part, const char *shown) {
    char fields[4096], expected[256];
    snprintf(expected, sizeof(expected), "[user: a%s%s]", *shown ? "\n" : "", shown);
    snprintf(fields, sizeof(fields),
             "'messages':[{'role':'user','content':[{'type':'text','text':'a'},%s]}]", part);
    check(rig, CHAT, fields, expected);
    check(rig, MESSAGES, fields, expected);
    snprintf(fields, sizeof(fields),
             "'input':[{'role':'user','content':[{'type':'input_text','text':'a'},%s]}]", part);
    check(rig, RESPONSES, fields, expected);
}

TEST_WITH(parts_say_what_they_say_in_every_dialect, set_up, tear_down) {
    check_part(*state, "{'type':'of_tomorrow'}", "");
    check_part(*state, "{'type':'of_tomorrow','data':'x'}", "");
    check_part(*state, "{'type':'of_tomorrow','text':'b'}", "b");
    check_part(*state, "{'type':'of_tomorrow','content':[{'type':'text','text':'b'},{'type':'x'}]}",
               "b");
    check_part(*state, "{'type':'tool_reference','tool_name':'b'}", "b");
    check_part(*state, "{'type':'tool_addition','tool':{'type':'tool_reference','name':'x'}}", "");
    check_part(*state, "{'type':'redacted_thinking','data':'x'}", "");
    check_part(*state, "{'type':'encrypted_content','encrypted_content':'x'}", "");
    check_part(*state, "{'type':'refusal','refusal':'b'}", "b");
    check_part(*state, "{'type':'mid_conversation_system','content':'b'}", "b");
    check_part(*state,
               "{'type':'document','source':{'type':'text','media_type':'text/plain','data':'b'}}",
               "b");
    check_part(
        *state,
        "{'type':'document','title':'t','context':null,'source':{'type':'content','content':["
        "{'type':'text','text':'b'}]}}",
        "t\nb");
    check_part(
        *state,
        "{'type':'search_result','source':'s','title':'t','content':[{'type':'text','text':'b'}]}",
        "t\ns\nb");
    check_part(*state, "{'type':'resource','resource':{'uri':'u','text':'b'}}", "b");
    check_part(*state, "{'type':'web_search_tool_result','tool_use_id':'1','content':[]}", "");
    check_part(
        *state,
        "{'type':'web_search_tool_result','content':[{'type':'web_search_result','title':'t',"
        "'url':'u','encrypted_content':'x'}]}",
        "t\nu");
    check_part(
        *state,
        "{'type':'bash_code_execution_tool_result','content':{'type':"
        "'bash_code_execution_result','stdout':'o','stderr':'','return_code':0,'content':[]}}",
        "o\n");
}

TEST_WITH(what_is_no_text_is_refused_in_every_dialect, set_up, tear_down) {
    static const char *const types[] = {"image",
                                        "image_url",
                                        "input_image",
                                        "audio",
                                        "input_audio",
                                        "video_url",
                                        "input_file",
                                        "file",
                                        "container_upload",
                                        "computer_screenshot",
                                        "image_of_tomorrow",
                                        "document"};
    char part[128], expected[128];
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        snprintf(part, sizeof(part), "{'type':'%s','text':'x'}", types[i]);
        snprintf(expected, sizeof(expected), "of the type '%s' are not supported here", types[i]);
        char fields[512];
        snprintf(fields, sizeof(fields), "'messages':[{'role':'user','content':[%s]}]", part);
        check(*state, CHAT, fields, expected);
        check(*state, MESSAGES, fields, expected);
        snprintf(fields, sizeof(fields), "'input':[{'role':'user','content':[%s]}]", part);
        check(*state, RESPONSES, fields, expected);
    }
    check(*state, MESSAGES,
          "'messages':[{'role':'user','content':[{'type':'document','title':'t','source':{'type':"
          "'base64','media_type':'application/pdf','data':'AA'}}]}]",
          "messages[0].content[0]: blocks of the type 'document'");
    check(*state, MESSAGES,
          "'messages':[{'role':'user','content':[{'type':'search_result','content':[{'type':"
          "'image'}]}]}]",
          "messages[0].content[0].content[0]: blocks of the type 'image'");
}

TEST_WITH(instructions_of_which_nothing_is_left_are_none, set_up, tear_down) {
    check(*state, MESSAGES,
          "'messages':[{'role':'user','content':'q'},{'role':'system','content':[{'type':"
          "'tool_removal','tool':{'type':'tool_reference','name':'x'}}]}]",
          "[user: q]");
    check(*state, MESSAGES,
          "'messages':[{'role':'user','content':'q'},{'role':'system','content':[{'type':"
          "'tool_addition','tool':{'type':'tool_definition','definition':" SCHEMED(
              "g") "}}]}],"
                   "'tools':[" SCHEMED("f") "]",
          "[user: q]<f><g>");
    check(
        *state, CHAT,
        "'messages':[{'role':'user','content':'q'},{'role':'developer','content':[{'type':'x'}]}]",
        "[user: q]");
    check(*state, MESSAGES,
          "'messages':[{'role':'system','content':[],'output_config':{'effort':'low'}},{'role':'"
          "user',"
          "'content':'q'}]",
          "[user: q]");
    check(*state, CHAT, "'messages':[{'role':'system','content':[{'type':'x'}]}]",
          "messages must say something");
    check(*state, RESPONSES,
          "'input':[{'role':'user','content':'q'},{'role':'developer','content':[{'type':'x'}]}]",
          "[user: q]");
    check(*state, MESSAGES, "'messages':[{'role':'user','content':[{'type':'x'}]}]", "[user: ]");
}

/* ---- items of responses ---- */

#define AROUND(items)                                                                              \
    "'input':[{'role':'user','content':'q'}," items ",{'role':'user','content':'r'}]"

TEST_WITH(items_without_text_are_skipped, set_up, tear_down) {
    static const char *const items[] = {
        "{'type':'compaction','id':'c','encrypted_content':'x'}",
        "{'type':'context_compaction','encrypted_content':'x'}",
        "{'type':'compaction_trigger'}",
        "{'type':'ghost_snapshot','ghost_commit':{'id':'x'}}",
        "{'type':'web_search_call','id':'w','status':'completed','action':{'type':'search'}}",
        "{'type':'image_generation_call','id':'i','result':'AA'}",
        "{'type':'computer_call','call_id':'c','action':{'type':'click'}}",
        "{'type':'local_shell_call','call_id':'c','action':{'type':'exec','command':['ls']}}",
        "{'type':'mcp_list_tools','server_label':'s','tools':[]}",
        "{'type':'mcp_approval_request','name':'f','arguments':'{}'}",
        "{'type':'reasoning','summary':[],'content':null,'encrypted_content':'x'}",
        "{'type':'reasoning','summary':[],'content':[{'type':'of_tomorrow'}]}",
        "{'type':'additional_tools','role':'developer','tools':[]}",
        "{'type':'of_tomorrow','payload':{'x':1}}",
        "{'type':'call_of_tomorrow_call','call_id':'7'}",
    };
    char fields[1024];
    for (size_t i = 0; i < sizeof(items) / sizeof(*items); i++) {
        snprintf(fields, sizeof(fields), AROUND("%s"), items[i]);
        check(*state, RESPONSES, fields, "[user: q][user: r]");
    }
}

TEST_WITH(items_with_text_are_read, set_up, tear_down) {
    static const struct {
        const char *item, *shown;
    } cases[] = {
        {"{'type':'of_tomorrow','content':'x'}", "[user: x]"},
        {"{'type':'of_tomorrow','role':'developer','content':[{'type':'text','text':'x'}]}",
         "[system: x]"},
        {"{'type':'of_tomorrow','role':'assistant','content':'x'}", "[assistant: x]"},
        {"{'type':'agent_message','author':'a','content':[{'type':'input_text','text':'x'},"
         "{'type':'encrypted_content','encrypted_content':'y'}]}",
         "[user: x]"},
        {"{'type':'input_text','text':'x'}", "[user: x]"},
        {"{'type':'compaction','summary':'x'}", "[user: x]"},
        {"{'type':'mcp_call','name':'f','arguments':'{}','output':'x'}", "[assistant: x]"},
        {"{'type':'file_search_call','results':[{'text':'x'},{'text':'y'}]}", "[assistant: x\ny]"},
        {"{'type':'code_interpreter_call','code':'1','outputs':[{'type':'logs','logs':'x'}]}",
         "[assistant: x]"},
        {"{'type':'function_call_output','call_id':'1','output':{'content':'x','success':true}}",
         "[tool 1: x]"},
        {"{'type':'function_call_output','call_id':'1','output':{'n':[1]}}",
         "[tool 1: {\"n\":[1]}]"},
        {"{'type':'function_call_output','call_id':'1','output':null}", "[tool 1: ]"},
        {"{'type':'function_call_output','call_id':'1','output':['x','y']}", "[tool 1: x\ny]"},
        {"{'type':'shell_call_output','call_id':'1','output':[{'stdout':'x','stderr':'y',"
         "'outcome':{'type':'exit','exit_code':0}}]}",
         "[tool 1: x\ny]"},
        {"{'type':'call_of_tomorrow_call_output','output':'x'}", "[tool: x]"},
        {"{'type':'local_shell_call','call_id':'1','action':{'type':'exec','command':['ls']}},"
         "{'type':'local_shell_call_output','call_id':'1','output':'x'}",
         "[assistant:  1=local_shell({\"type\": \"exec\", \"command\": [\"ls\"]})][tool 1: x]"},
        {"{'type':'apply_patch_call','call_id':'1','operation':{'type':'delete_file','path':'p'}},"
         "{'type':'apply_patch_call_output','call_id':'1','status':'completed'}",
         "[assistant:  1=apply_patch({\"type\": \"delete_file\", \"path\": \"p\"})][tool 1: ]"},
        {"{'type':'of_tomorrow_call','call_id':'1','arguments':{'x':1}},"
         "{'type':'function_call_output','call_id':'1','output':'x'}",
         "[assistant:  1=of_tomorrow({\"x\": 1})][tool 1: x]"},
        {"{'type':'tool_search_call','call_id':'1','execution':'client','arguments':{'query':'n'}},"
         "{'type':'tool_search_output','call_id':'1','tools':[]}",
         "[assistant:  1=tool_search({\"query\": \"n\"})][tool 1: ]"},
        {"{'type':'function_call','call_id':'1','name':'f','namespace':'n','arguments':''}",
         "[assistant:  1=n__f({})]"},
        {"{'type':'custom_tool_call','call_id':'1','name':'f','namespace':'n','input':'x'}",
         "[assistant:  1=n__f({\"input\": \"x\"})]"},
    };
    char fields[1024], expected[512];
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        snprintf(fields, sizeof(fields), AROUND("%s"), cases[i].item);
        snprintf(expected, sizeof(expected), "[user: q]%s[user: r]", cases[i].shown);
        check(*state, RESPONSES, fields, expected);
    }
    check(*state, RESPONSES, AROUND("{'type':'function_call_output','output':'x'}"),
          "input[1].call_id must be a string");
    check(*state, RESPONSES, AROUND("{'type':'input_image','image_url':'x'}"),
          "input[1]: parts of the type 'input_image'");
}

TEST_WITH(items_bring_tools, set_up, tear_down) {
    check(*state, RESPONSES,
          "'input':[{'type':'additional_tools','tools':[{'type':'namespace','name':'functions',"
          "'tools':[" FLAT("f") "]}," FLAT("g") "]},{'role':'user','content':'q'}],'tools':[" FLAT(
              "g") "]",
          "[user: q]<g><functions__f>");
    check(*state, RESPONSES,
          "'input':[{'role':'user','content':'q'},{'type':'tool_search_call','call_id':'1',"
          "'execution':'client','arguments':{'query':'x'}},{'type':'tool_search_output','call_id':'"
          "1',"
          "'tools':[" FLAT("f") "," FLAT("g") "]}]",
          "[user: q][assistant:  1=tool_search({\"query\": \"x\"})][tool 1: f\ng]<f><g>");
    check(*state, RESPONSES,
          "'input':[{'type':'tool_search_output','call_id':null,'tools':[" FLAT(
              "f") "]},"
                   "{'role':'user','content':'q'}]",
          "[user: q]<f>");
    check(*state, RESPONSES, "'input':[{'type':'additional_tools','tools':[{'name':3}]}]",
          "input[0].tools[0].name must be a string");
}

/* ---- chats and messages ---- */

TEST_WITH(other_services_turns_are_read, set_up, tear_down) {
    check(
        *state, MESSAGES,
        "'messages':[{'role':'user','content':'q'},{'role':'assistant','content':["
        "{'type':'server_tool_use','id':'s','name':'web_search','input':{'query':'q'}},"
        "{'type':'web_search_tool_result','tool_use_id':'s','content':[{'type':'web_search_result',"
        "'title':'t','url':'u'}]},{'type':'redacted_thinking','data':'x'},{'type':'text','text':'"
        "so'}]},"
        "{'role':'user','content':'r'}]",
        "[user: q][assistant: t\nu\nso][user: r]");
    check(
        *state, CHAT,
        "'messages':[{'role':'user','content':'q'},{'role':'assistant','content':["
        "{'type':'thinking','thinking':[{'type':'text','text':'h'}]},{'type':'text','text':'so'}],"
        "'tool_calls':[{'id':'1','type':'custom','custom':{'name':'g','input':'x'}},"
        "{'id':'2','type':'of_tomorrow','of_tomorrow':{}},"
        "{'id':'3','type':'function','function':{'name':'f','namespace':'n','arguments':'{}'}}]},"
        "{'role':'tool','tool_call_id':'1','content':[{'type':'tool_reference','tool_name':'g'}]}]",
        "[user: q][assistant thinks h: so 1=g({\"input\": \"x\"}) 3=n__f({})][tool 1: g]");
    check(*state, CHAT,
          "'messages':[{'role':'assistant','content':'a','tool_calls':[{'id':'1','type':'x'}]},"
          "{'role':'user','content':'q'}]",
          "[assistant: a][user: q]");
}

/* ---- answers ---- */

#define TOOLS                                                                                      \
    "'tools':[{'type':'namespace','name':'mcp__n','tools':[" SCHEMED("read") "," SCHEMED(          \
        "f") "]},"                                                                                 \
             "{'type':'custom','name':'patch','format':{'type':'grammar','syntax':'lark','"        \
             "definition':'start: "                                                                \
             "x'}},{'type':'tool_search','execution':'client','parameters':{'type':'object'}}"     \
             "," SCHEMED("f") "]"

/* Asks a model that calls a tool, and checks a member of the answer that is a list. */
static void check_call(struct rig *rig, const char *path, const char *fields, const char *call,
                       const char *pointer, const char *expected) {
    char body[4096], said[512], wanted[1024];
    make_body(body, sizeof(body), fields);
    make_body(said, sizeof(said), call);
    said[strlen(said) - 1] = 0;
    make_body(wanted, sizeof(wanted), expected);
    wanted[strlen(wanted) - 1] = 0;
    fake_engine_answer(rig->engine, said + 1);
    json_t *answer = rig_ask(rig, path, body, 200);
    rig_number_calls(answer);
    const json_t *list = json_object_get(answer, pointer);
    if (strcmp(pointer, "choices") == 0)
        list = json_object_get(json_object_get(json_array_get(list, 0), "message"), "tool_calls");
    assert_json(list, wanted + 1);
    json_decref(answer);
}

#define CALL(name, arguments) "<tool_call>{'name':'" name "','arguments':" arguments "}</tool_call>"
#define ITEM(members) "[{'id':'" members "}]"

TEST_WITH(calls_are_told_apart_by_names, set_up, tear_down) {
    static const char input[] = "'input':'q'," TOOLS,
                      chats[] = "'messages':[{'role':'user','content':'q'}]," TOOLS,
                      body[] =
                          "'max_tokens':99,'messages':[{'role':'user','content':'q'}],'tools':["
                          "{'type':'namespace','name':'mcp__n','tools':[" SCHEMED("read") "]}]";
    check_call(*state, "/v1/responses", input, CALL("mcp__n__f", "{}"), "output",
               ITEM("fc_the-id_0','type':'function_call','status':'completed','call_id':"
                    "'call_urAecL0hI','name':'f','namespace':'mcp__n','arguments':'{}'"));
    check_call(*state, "/v1/responses", input, CALL("f", "{}"), "output",
               ITEM("fc_the-id_0','type':'function_call','status':'completed','call_id':"
                    "'call_urAecL0hI','name':'f','arguments':'{}'"));
    /* A model may leave out the namespace of a name that only one tool has. */
    check_call(*state, "/v1/responses", input, CALL("read", "{}"), "output",
               ITEM("fc_the-id_0','type':'function_call','status':'completed','call_id':"
                    "'call_urAecL0hI','name':'read','namespace':'mcp__n','arguments':'{}'"));
    check_call(*state, "/v1/responses", input, CALL("patch", "{'input':'x'}"), "output",
               ITEM("ctc_the-id_0','type':'custom_tool_call','status':'completed','call_id':"
                    "'call_urAecL0hI','name':'patch','input':'x'"));
    check_call(*state, "/v1/responses", input, CALL("tool_search", "{'query':'n'}"), "output",
               ITEM("tsc_the-id_0','type':'tool_search_call','status':'completed','call_id':"
                    "'call_urAecL0hI','execution':'client','arguments':{'query':'n'}"));
    check_call(*state, "/v1/responses", input, CALL("unheard", "{}"), "output",
               ITEM("fc_the-id_0','type':'function_call','status':'completed','call_id':"
                    "'call_urAecL0hI','name':'unheard','arguments':'{}'"));
    check_call(*state, "/v1/messages", body, CALL("mcp__n__read", "{}"), "content",
               "[{'type':'tool_use','id':'toolu_v48EezHMu','name':'read','namespace':'mcp__n','"
               "input':{}}]");
    check_call(*state, "/v1/chat/completions", chats, CALL("mcp__n__read", "{}"), "choices",
               "[{'id':'call_the-id_0_0','type':'function','function':{'name':'read','namespace':"
               "'mcp__n','arguments':'{}'}}]");
    check_call(*state, "/v1/chat/completions", chats, CALL("patch", "{'input':'x'}"), "choices",
               "[{'id':'call_the-id_0_0','type':'custom','custom':{'name':'patch','input':'x'}}]");
}

static void check_stream(struct rig *rig, const char *call, const char *const *parts) {
    char body[4096], said[512], part[512];
    make_body(body, sizeof(body), "'input':'q','stream':true," TOOLS);
    make_body(said, sizeof(said), call);
    said[strlen(said) - 1] = 0;
    fake_engine_answer(rig->engine, said + 1);
    struct http_exchange exchange = rig_post("/v1/responses", body);
    rig_begin(rig, &exchange);
    rig_finish(rig);
    for (; *parts; parts++) {
        make_body(part, sizeof(part), *parts);
        part[strlen(part) - 1] = 0;
        if (!strstr(exchange.out.data, part + 1)) fail_msg("no %s in %s", part, exchange.out.data);
    }
    fake_http_fini(&exchange);
}

TEST_WITH(streams_have_the_same_calls, set_up, tear_down) {
    static const char *const named[] = {
        "'type':'response.output_item.added'",
        "'call_id':'call_urAecL0hI','name':'read','namespace':'mcp__n','arguments':''",
        "'delta':'{}'",
        "'arguments':'{}','name':'read','namespace':'mcp__n'",
        "'call_id':'call_urAecL0hI','name':'read','namespace':'mcp__n','arguments':'{}'",
        NULL};
    static const char *const custom[] = {"'type':'response.custom_tool_call_input.done'",
                                         "'name':'patch','input':'x'", NULL};
    static const char *const search[] = {"'execution':'client','arguments':{}}",
                                         "'execution':'client','arguments':{'query':'n'}}",
                                         "'type':'response.completed'", NULL};
    check_stream(*state, CALL("mcp__n__read", "{}"), named);
    check_stream(*state, CALL("patch", "{'input':'x'}"), custom);
    check_stream(*state, CALL("tool_search", "{'query':'n'}"), search);
}

/* ---- the log ---- */

TEST_WITH(types_are_named_once, set_up, tear_down) {
    char type[16];
    for (int i = 0; i < 3; i++) skipped_types_note(&skipped, "tools", "x");
    assert_int_equal(skipped.n, 1);
    skipped_types_note(&skipped, "input", "x");
    assert_int_equal(skipped.n, 2);
    for (int i = 0; i < 1000; i++) {
        snprintf(type, sizeof(type), "t%d", i);
        skipped_types_note(&skipped, "tools", type);
    }
    assert_int_equal(skipped.n, SKIPPED_MAX_NAMES);
    skipped_types_note(NULL, "tools", "x");
}
