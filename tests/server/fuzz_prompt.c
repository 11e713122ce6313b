/* fuzz_prompt.c - see fuzz_prompt.h. */
#include "tests/server/fuzz_prompt.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/span.h"
#include "engine/template/template.h"
#include "server/api/completion_request.h"
#include "server/json/api_error.h"
#include "server/settings/chat_template.h"
#include "server/settings/model_names.h"
#include "tests/server/fake_engine.h"

static const char source[] =
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' and not loop.first or "
    "m.tool_call_id and m.tool_call_id | length != 9 %}{{ raise_exception('|') }}{% endif %}"
    "|{{ m.role }}|{{ m.content }}"
    "{% for c in m.tool_calls %}|{{ c.function.name }}|{{ c.function.arguments | tojson }}"
    "{% endfor %}|{{ m.reasoning_content }}|{% endfor %}{% for t in tools or [] %}|{{ t | tojson }}"
    "{% endfor %}{% if add_generation_prompt %}|{% endif %}{# <tool_call> #}";

static void require(int truth) {
    if (!truth) abort();
}

static const struct chat_template *the_template(void) {
    static struct chat_template chat;
    if (chat.plain) return &chat;
    chat.own = json_pack("{s:s}", "bos_token", "|");
    chat.tool_text = strdup(source);
    chat.marks_reasoning = true;
    require(chat.own && chat.tool_text &&
            !template_compile(&chat.plain, source, strlen(source), NULL, NULL));
    return &chat;
}

/* The template's own bytes are all bars. */
static void check_prompt(const struct prompt *prompt) {
    size_t end = 0;
    for (size_t i = 0; i < prompt->n_trusted; i++) {
        const struct byte_span span = prompt->trusted[i];
        require(span.begin >= end && span.begin < span.end && span.end <= prompt->length);
        for (size_t k = span.begin; k < span.end; k++) require(prompt->text[k] == '|');
        end = span.end;
    }
    require(prompt->text[prompt->length] == 0);
}

int fuzz_prompt(fuzz_reader read, const uint8_t *data, size_t size) {
    const struct request_limits limits = {
        .models = &(const struct model_names){.names = {"m"}, .n = 1},
        .n_vocab = FAKE_N_VOCAB,
        .max_model_len = FAKE_MAX_LEN,
        .max_sequences = 1280,
        .trained_context = FAKE_MAX_LEN,
        .kv_tokens = FAKE_KV_TOKENS,
        .kv = {.allowed = {true, true, true, true}},
        .chat = the_template()};
    struct completion_request request;
    struct api_error err = {0};
    const int rc = read(&request, (const char *)data, size, &limits, &err);
    require(rc ? err.status >= 400 && err.message[0] : request.prompts.n == 1);
    if (rc) return 0;
    check_prompt(&request.prompts.items[0]);
    completion_request_fini(&request);
    return 0;
}
