/* thoughts.c - see thoughts.h. */
#include "server/api/conversation/thoughts.h"

#include <stdlib.h>
#include <string.h>

#include "engine/request/channels.h"
#include "engine/request/request.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/json/api_error.h"
#include "server/json/json_value.h"

/* ---- tokens ---- */

static int add_shown(struct sampling_params *params, struct shown_token token,
                     struct api_error *err) {
    struct shown_token *shown = realloc(params->shown, (params->n_shown + 1) * sizeof(*shown));
    if (!shown) return api_error_no_memory(err);
    params->shown = shown;
    params->shown[params->n_shown++] = token;
    return 0;
}

int thoughts_show_mark(struct sampling_params *params, const char *mark, char byte,
                       const struct tokenizer *tokenizer, struct api_error *err) {
    uint32_t id;
    if (!tokenizer || !tokenizer_find_added(tokenizer, mark, strlen(mark), &id) ||
        !tokenizer_is_special(tokenizer, id))
        return 0;
    return add_shown(params, (struct shown_token){.token = id, .byte = byte}, err);
}

/* Hides tokens, special or not. */
static int hide(struct sampling_params *params, const char *const *marks,
                const struct tokenizer *tokenizer, struct api_error *err) {
    int rc = 0;
    for (uint32_t id; tokenizer && *marks && !rc; marks++)
        if (tokenizer_find_added(tokenizer, *marks, strlen(*marks), &id))
            rc = add_shown(params, (struct shown_token){.token = id, .is_hidden = true}, err);
    return rc;
}

int thoughts_show(struct sampling_params *params, enum thought_form form,
                  const struct tokenizer *tokenizer, struct api_error *err) {
    const struct thought_tags *tags = thought_tags_of(form);
    int rc = 0;
    if (tags) {
        const char *begin = tags->begin_token ? tags->begin_token : tags->begin;
        rc = thoughts_show_mark(params, begin, 0, tokenizer, err);
        if (!rc) rc = thoughts_show_mark(params, tags->end, 0, tokenizer, err);
        return rc ? rc : hide(params, tags->hidden, tokenizer, err);
    }
    for (const struct channel_mark *mark = channel_marks; mark->token && !rc; mark++)
        rc = thoughts_show_mark(params, mark->token, mark->byte, tokenizer, err);
    return rc;
}

/* ---- thoughts between two marks ---- */

/* Makes a thought that ends; without a beginning if the prompt has begun it. */
static json_t *make_thought(const struct thought_tags *tags, bool is_open) {
    return json_pack("{s:s, s:s, s:{s:s}, s:s}", "type", "tag", "begin", is_open ? "" : tags->begin,
                     "content", "type", "any_text", "end", tags->end);
}

static json_t *make_end(const struct thought_tags *tags) {
    return json_pack("{s:s, s:s}", "type", "const_string", "value", tags->end);
}

static int lead_tags(json_t **format, struct thought *thought, const struct thought_lead *lead,
                     bool *is_same, struct api_error *err) {
    const struct thought_tags *tags = thought_tags_of(lead->form);
    const bool is_open = thought->place == THOUGHT_INSIDE;
    (void)err;
    if (!is_open && lead->is_off) thought->place = THOUGHT_BEHIND;
    *is_same = thought->place == THOUGHT_BEHIND;
    if (*is_same) return 0;
    json_t *begun = lead->is_off ? make_end(tags) : make_thought(tags, is_open);
    json_t *before = json_pack("{s:s, s:[o, {s:s, s:s}]}", "type", "sequence", "elements", begun,
                               "type", "regex", "pattern", "\\n{0,2}");
    if (before && !is_open) before = json_pack("{s:s, s:o}", "type", "optional", "content", before);
    *format = json_pack("{s:s, s:[o, o]}", "type", "sequence", "elements", before, *format);
    return 0;
}

/* ---- messages on channels ---- */

/* The text of a format, which is being cut at the marks in it. */
struct cutting {
    const struct tokenizer *tokenizer;
    const char *missing; /* a mark that is no token; NULL: all are */
};

/* Makes a piece of a text: the mark that it begins with, or all up to the next one.  Moves *text
 * behind it. */
static json_t *cut_piece(struct cutting *cut, const char **text) {
    for (const struct channel_mark *mark = channel_marks; mark->token; mark++) {
        const size_t n = strlen(mark->token);
        uint32_t id;
        if (strncmp(*text, mark->token, n) != 0) continue;
        *text += n;
        if (cut->tokenizer && tokenizer_find_added(cut->tokenizer, mark->token, n, &id))
            return json_pack("{s:s, s:I}", "type", "token", "token", (json_int_t)id);
        cut->missing = mark->token;
        return json_null();
    }
    const char *begin = *text, *next = strstr(begin + 1, "<|");
    *text = next ? next : begin + strlen(begin);
    return json_pack("{s:s, s:s%}", "type", "const_string", "value", begin,
                     (size_t)(*text - begin));
}

/* Appends the pieces of a text to a list.  Returns whether there was memory. */
static bool cut_text(struct cutting *cut, json_t *list, const char *text) {
    bool made = true;
    while (*text && made) made = json_array_append_new(list, cut_piece(cut, &text)) == 0;
    return made;
}

/* Makes any tokens but marks, and those that end texts, which a form allows at its end alone. */
static json_t *make_any(struct cutting *cut) {
    json_t *marks = json_array();
    bool made = marks != NULL;
    for (const struct channel_mark *mark = channel_marks; mark->token && made; mark++) {
        uint32_t id;
        if (cut->tokenizer &&
            tokenizer_find_added(cut->tokenizer, mark->token, strlen(mark->token), &id))
            made = json_array_append_new(marks, json_integer(id)) == 0;
    }
    if (made) return json_pack("{s:s, s:o}", "type", "any_tokens", "exclude_tokens", marks);
    json_decref(marks);
    return NULL;
}

static json_t *make_sequence(json_t *list, bool made) {
    if (made) return json_pack("{s:s, s:o}", "type", "sequence", "elements", list);
    json_decref(list);
    return NULL;
}

/* Makes a message: what heads it, what it says, which is taken, and what ends it. */
static json_t *make_message(struct cutting *cut, const char *head, json_t *said, const char *end) {
    json_t *list = json_array();
    const bool made = list && said && cut_text(cut, list, head) &&
                      json_array_append(list, said) == 0 && cut_text(cut, list, end);
    json_decref(said);
    return make_sequence(list, made);
}

static const char thought_head[] = "<|channel|>" CHANNEL_THOUGHTS "<|message|>",
                  remark_head[] = "<|channel|>commentary<|message|>",
                  next[] = "<|end|><|start|>assistant", said_head[] = "<|channel|>final<|message|>";

/* Cuts a call's tag, or those of an `or`, at its marks.  Takes the format. */
static json_t *cut_calls(struct cutting *cut, json_t *format) {
    json_t *begin = json_object_get(format, "begin"), *content = json_object_get(format, "content"),
           *elements = json_object_get(format, "elements"), *made = NULL;
    const bool is_text = json_is_word(json_object_get(content, "type"), "any_text");
    if (json_is_string(begin))
        made = make_message(cut, json_string_value(begin),
                            is_text ? make_any(cut) : json_incref(content), "");
    bool whole = made || json_is_array(elements);
    for (size_t i = 0; !made && whole && i < json_array_size(elements); i++) {
        json_t *element = cut_calls(cut, json_incref(json_array_get(elements, i)));
        whole = element && json_array_set_new(elements, i, element) == 0;
    }
    if (whole && !made) return format;
    json_decref(format);
    return made;
}

/* Makes what comes before the form: the rest of what the prompt has begun, and thoughts. */
static json_t *lead_list(struct cutting *cut, const struct thought *thought,
                         const struct thought_lead *lead) {
    json_t *list = json_array();
    bool made = list != NULL;
    if (thought->place == THOUGHT_INSIDE) {
        if (!lead->is_off) made = made && json_array_append_new(list, make_any(cut)) == 0;
        made = made && cut_text(cut, list, next);
    }
    if (thought->place == THOUGHT_BEHIND) made = made && cut_text(cut, list, next);
    if (!made || lead->is_off) return made ? list : (json_decref(list), NULL);
    json_t *thoughts = make_message(cut, thought_head, make_any(cut), next);
    if (lead->is_calls)
        thoughts = json_pack("{s:s, s:[o, o]}", "type", "or", "elements", thoughts,
                             make_message(cut, remark_head, make_any(cut), next));
    thoughts = thoughts ? json_pack("{s:s, s:o}", "type", "star", "content", thoughts) : NULL;
    if (thoughts && json_array_append_new(list, thoughts) == 0) return list;
    json_decref(list);
    return NULL;
}

static int lead_channels(json_t **format, struct thought *thought, const struct thought_lead *lead,
                         bool *is_same, struct api_error *err) {
    struct cutting cut = {.tokenizer = lead->tokenizer};
    *is_same = thought->place == THOUGHT_BEHIND && !lead->is_calls;
    if (*is_same || !*format) return 0;
    *format =
        lead->is_calls ? cut_calls(&cut, *format) : make_message(&cut, said_head, *format, "");
    json_t *list = lead_list(&cut, thought, lead);
    const bool made = list && *format && json_array_append(list, *format) == 0;
    json_decref(*format);
    *format = list ? make_sequence(list, made) : NULL;
    if (!cut.missing) return 0;
    json_decref(*format);
    return api_error_set(err, 400, "unsupported", lead->param,
                         "%s is not supported: the model's tokenizer has no token '%s'",
                         lead->param, cut.missing);
}

int thoughts_lead(json_t **format, struct thought *thought, const struct thought_lead *lead,
                  bool *is_same, struct api_error *err) {
    return (thought_tags_of(lead->form) ? lead_tags : lead_channels)(format, thought, lead, is_same,
                                                                     err);
}
