/* template_probe.c - see template_probe.h. */
#include "server/settings/template_probe.h"

#include <string.h>
#include <time.h>

#include "engine/base/error.h"
#include "engine/template/template.h"

/* Words that no template says by itself. */
#define FIRST "zqvfirst"
#define SECOND "zqvsecond"

#define CALL(id, name)                                                                             \
    "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"" name                      \
    "\",\"arguments\":{}}}"
#define TOOLS(name)                                                                                \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"" name                             \
    "\",\"description\":\"d\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]"
#define RESULT(id) "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"r\"}"

static const char systems[] =
    "{\"add_generation_prompt\":true,\"tools\":null,\"documents\":null,\"messages\":["
    "{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"" FIRST "\"},"
    "{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"system\",\"content\":\"" SECOND "\"},"
    "{\"role\":\"user\",\"content\":\"u\"}]}";
static const char calls[] = "{\"add_generation_prompt\":true,\"documents\":null," TOOLS(
    "f") ",\"messages\":[{\"role\":\"user\",\"content\":\"u\"},"
         "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[" CALL(
             "abcdefgh1",
             FIRST) "," CALL("abcdefgh2",
                             SECOND) "]}," RESULT("abcdefgh1") "," RESULT("abcdefgh2") "]}";

static const char tools[] = "{\"add_generation_prompt\":true,\"documents\":null," TOOLS(
    SECOND) ",\"messages\":["
            "{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"" FIRST
            "\"}]}";

/* Tells whether the text of a conversation has the first word and lacks the second. */
static bool drops(const struct template *template, const json_t *own, const char *conversation) {
    const time_t now = time(NULL);
    json_t *variables = json_loads(conversation, 0, NULL);
    struct template_input input = {.variables = variables, .trusted = own};
    struct template_text text = {0};
    struct error why;
    localtime_r(&now, &input.now);
    if (!variables || template_render(template, &input, NULL, &text, &why)) {
        json_decref(variables);
        return false;
    }
    const bool found = strstr(text.bytes, FIRST) && !strstr(text.bytes, SECOND);
    template_text_fini(&text);
    json_decref(variables);
    return found;
}

bool template_drops_systems(const struct template *template, const json_t *own) {
    return drops(template, own, systems);
}

bool template_drops_calls(const struct template *template, const json_t *own) {
    return drops(template, own, calls);
}

bool template_drops_tools(const struct template *template, const json_t *own) {
    return drops(template, own, tools);
}
