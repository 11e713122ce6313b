/* choice.c - see choice.h. */
#include "server/api/choice.h"

#include <math.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/request/kept.h"
#include "server/api/prompts.h"

void choice_init(struct choice *choice, struct completion *completion, const struct prompt *prompt,
                 uint32_t prompt_index) {
    *choice = (struct choice){.completion = completion,
                              .prompt = prompt,
                              .prompt_index = prompt_index,
                              .stop_string = -1,
                              .stop_token = -1,
                              .detokenizer.begun = true}; /* the prompt has begun the text */
}

void choice_fini(struct choice *choice) {
    buffer_fini(&choice->text);
    buffer_fini(&choice->ids);
    buffer_fini(&choice->kept);
    buffer_fini(&choice->tokens);
    buffer_fini(&choice->token_logprobs);
    buffer_fini(&choice->top_logprobs);
    buffer_fini(&choice->text_offsets);
    json_check_fini(&choice->check);
}

void choice_clear(struct choice *choice) {
    buffer_clear(&choice->text);
    buffer_clear(&choice->ids);
    buffer_clear(&choice->tokens);
    buffer_clear(&choice->token_logprobs);
    buffer_clear(&choice->top_logprobs);
    buffer_clear(&choice->text_offsets);
}

void choice_write_token(struct buffer *out, const struct tokenizer *tokenizer, uint32_t id) {
    size_t length = 0;
    const char *bytes = tokenizer_token_bytes(tokenizer, id, &length);
    if (!bytes) length = 0;
    if (utf8_is_valid(bytes, length)) {
        buffer_json_string(out, bytes, length);
        return;
    }
    buffer_puts(out, "\"bytes:");
    for (size_t i = 0; i < length; i++) buffer_printf(out, "\\\\x%02x", (unsigned char)bytes[i]);
    buffer_puts(out, "\"");
}

/* Writes a token as a key.  An id without a text, of a vocabulary that is padded, keeps its
 * number. */
static void write_key(struct buffer *out, const struct tokenizer *tokenizer, uint32_t id) {
    size_t length;
    if (tokenizer_token_bytes(tokenizer, id, &length)) choice_write_token(out, tokenizer, id);
    else buffer_printf(out, "\"token_id:%u\"", id);
}

static void separate(struct buffer *list) {
    if (list->length) buffer_puts(list, ",");
}

static bool have_same_text(const struct tokenizer *tokenizer, uint32_t a, uint32_t b) {
    size_t n_a = 0, n_b = 0;
    const char *x = tokenizer_token_bytes(tokenizer, a, &n_a),
               *y = tokenizer_token_bytes(tokenizer, b, &n_b);
    return x && y && n_a == n_b && (n_a == 0 || memcmp(x, y, n_a) == 0);
}

/* Tells whether the text of the best token number i is the name of another one in the same
 * object. */
static bool is_named_before(const struct tokenizer *tokenizer, const struct token_info *info,
                            uint32_t i) {
    const uint32_t token = info->top[i].token;
    if (token == info->token) return false;
    bool is = have_same_text(tokenizer, token, info->token);
    for (uint32_t j = 0; j < i && !is; j++)
        is = have_same_text(tokenizer, token, info->top[j].token);
    return is;
}

/* Writes {"token": logprob, ...}, best first; adds the token itself when it is not among the
 * best.  Of tokens with one text, one has it as its name, and the others their ids. */
static void write_top(struct buffer *out, const struct tokenizer *tokenizer,
                      const struct token_info *info) {
    bool listed = false;
    buffer_puts(out, "{");
    for (uint32_t i = 0; i < info->n_top; i++) {
        const uint32_t token = info->top[i].token;
        listed = listed || token == info->token;
        if (i) buffer_puts(out, ",");
        if (is_named_before(tokenizer, info, i)) buffer_printf(out, "\"token_id:%u\"", token);
        else write_key(out, tokenizer, token);
        buffer_puts(out, ":");
        buffer_json_double(out, info->top[i].logprob);
    }
    if (!listed) {
        if (info->n_top) buffer_puts(out, ",");
        write_key(out, tokenizer, info->token);
        buffer_puts(out, ":");
        buffer_json_double(out, info->logprob);
    }
    buffer_puts(out, "}");
}

/* Returns how many characters of text the token completes. */
static size_t count_characters(struct choice *choice, const struct tokenizer *tokenizer,
                               uint32_t id, bool skip) {
    char text[1024];
    size_t length = 0;
    const long written =
        detokenizer_push(&choice->detokenizer, tokenizer, id, skip, text, sizeof(text));
    if (written >= 0) return utf8_count(text, (size_t)written);
    /* The text is longer than the buffer.  Only an added token can be, and that is text by
     * itself. */
    const char *bytes = tokenizer_token_bytes(tokenizer, id, &length);
    return bytes ? utf8_count(bytes, length) : 0;
}

void choice_add_logprobs(struct choice *choice, const struct choice_format *format,
                         const struct token_info *info, bool skip) {
    separate(&choice->tokens);
    choice_write_token(&choice->tokens, format->tokenizer, info->token);
    separate(&choice->token_logprobs);
    buffer_json_double(&choice->token_logprobs, info->logprob);
    separate(&choice->top_logprobs);
    if (isnan(info->logprob)) {
        buffer_puts(&choice->top_logprobs, "null");
    } else {
        write_top(&choice->top_logprobs, format->tokenizer, info);
    }
    separate(&choice->text_offsets);
    buffer_printf(&choice->text_offsets, "%zu", choice->n_characters);
    choice->n_characters += count_characters(choice, format->tokenizer, info->token, skip);
}

/* Returns whether this prompt token is not part of the echoed text.  In a text prompt that is the
 * beginning-of-text token that the tokenizer added; in a prompt of tokens, those that decoding
 * skipped. */
static bool is_unseen(const struct choice *choice, const struct choice_format *format, uint32_t i,
                      uint32_t token) {
    if (!tokenizer_is_special(format->tokenizer, token)) return false;
    if (choice->prompt->decoded) return format->skip_special;
    size_t length = 0;
    const char *bytes = tokenizer_token_bytes(format->tokenizer, token, &length);
    return i == 0 &&
           (length > choice->prompt->length || memcmp(choice->prompt->text, bytes, length) != 0);
}

static void add_prompt(struct choice *choice, const struct choice_format *format,
                       const struct engine_event *event) {
    if (choice->echoed || !format->echo) return;
    choice->echoed = true;
    buffer_append(&choice->text, choice->prompt->text, choice->prompt->length);
    if (event->kind != EVENT_PROMPT || !format->logprobs) return;
    choice->detokenizer.begun = false;
    for (uint32_t i = 0; i < event->n_tokens; i++) {
        const struct token_info *info = &event->tokens[i];
        format->add_logprobs(choice, format, info, is_unseen(choice, format, i, info->token));
    }
    /* The generated tokens are decoded by themselves, but do not begin a text. */
    choice->detokenizer = (struct detokenizer){.begun = true};
}

/* Adds [first, last, share] for each run of tokens that equally many heads keep. */
static void add_kept(struct choice *choice, const struct kv_kept *kept) {
    struct buffer *out = &choice->kept;
    buffer_printf(out, "{\"n_tokens\":%u,\"stride\":%u,\"ranges\":[", kept->n_tokens, kept->stride);
    const char *comma = "";
    for (uint32_t first = 0, i = 0; first < kept->n_counts; first = i) {
        const double share = kv_kept_share(kept, first);
        for (i = first + 1; i < kept->n_counts && kv_kept_share(kept, i) == share;) i++;
        if (share == 0) continue;
        const uint64_t end = (uint64_t)i * kept->stride;
        buffer_printf(out, "%s[%u,%u,%.4g]", comma, first * kept->stride,
                      (uint32_t)(end < kept->n_tokens ? end : kept->n_tokens) - 1, share);
        comma = ",";
    }
    buffer_puts(out, "]}");
}

void choice_add(struct choice *choice, const struct choice_format *format,
                const struct engine_event *event) {
    add_prompt(choice, format, event);
    if (event->kind == EVENT_PROMPT) return;
    buffer_append(&choice->text, event->text, event->text_length);
    for (uint32_t i = 0; i < event->n_tokens; i++) {
        const struct token_info *info = &event->tokens[i];
        choice->n_tokens++;
        if (!isnan(info->logprob)) choice->sum_logprobs += info->logprob;
        if (format->logprobs) format->add_logprobs(choice, format, info, format->skip_special);
        if (!format->token_ids) continue;
        separate(&choice->ids);
        buffer_printf(&choice->ids, "%u", info->token);
    }
    if (event->kind != EVENT_FINISH) return;
    if (event->kept) add_kept(choice, event->kept);
    choice->finished = true;
    choice->reason = event->reason;
    choice->n_tokens = event->n_generated;
    if (event->stopped_by_string) choice->stop_string = (int32_t)event->stop_index;
    if (event->stopped_by_token) choice->stop_token = event->stop_token;
}

bool choice_has_news(const struct choice *choice) {
    return choice->finished || choice->text.length || choice->tokens.length || choice->ids.length;
}

static void write_list(struct buffer *out, const char *name, const struct buffer *list) {
    buffer_printf(out, "\"%s\":[", name);
    buffer_append(out, list->data, list->length);
    buffer_puts(out, "]");
    out->failed |= list->failed;
}

void choice_write_reason(const struct choice *choice, const char *finish, char *const *stops,
                         struct buffer *out) {
    if (!choice->finished) {
        buffer_puts(out, ",\"finish_reason\":null,\"stop_reason\":null");
        return;
    }
    if (choice->reason == FINISH_CANCELLED) finish = "abort";
    if (!finish) finish = choice->reason == FINISH_STOP ? "stop" : "length";
    buffer_printf(out, ",\"finish_reason\":\"%s\",\"stop_reason\":", finish);
    if (choice->stop_string >= 0) {
        buffer_json_string(out, stops[choice->stop_string], strlen(stops[choice->stop_string]));
    } else if (choice->stop_token >= 0) {
        buffer_printf(out, "%lld", (long long)choice->stop_token);
    } else {
        buffer_puts(out, "null");
    }
}

void choice_write_ids(struct choice *choice, struct buffer *out) {
    if (!choice->prompt_sent) {
        choice->prompt_sent = true;
        buffer_puts(out, ",\"prompt_token_ids\":[");
        for (size_t i = 0; i < choice->prompt->tokens.n; i++) {
            buffer_printf(out, i ? ",%u" : "%u", choice->prompt->tokens.ids[i]);
        }
        buffer_puts(out, "]");
    }
    buffer_puts(out, ",");
    write_list(out, "token_ids", &choice->ids);
}

void choice_write_kept(const struct choice *choice, struct buffer *out) {
    if (!choice->finished) return;
    buffer_puts(out, ",\"kept_positions\":");
    if (choice->kept.length) buffer_append(out, choice->kept.data, choice->kept.length);
    else buffer_puts(out, "null");
    out->failed |= choice->kept.failed;
}

void choice_write(struct choice *choice, const struct choice_format *format, uint32_t index,
                  char *const *stops, struct buffer *out) {
    buffer_printf(out, "{\"index\":%u,\"text\":", index);
    buffer_json_string(out, choice->text.data ? choice->text.data : "", choice->text.length);
    out->failed |= choice->text.failed;
    if (!format->logprobs) {
        buffer_puts(out, ",\"logprobs\":null");
    } else {
        buffer_puts(out, ",\"logprobs\":{");
        write_list(out, "tokens", &choice->tokens);
        buffer_puts(out, ",");
        write_list(out, "token_logprobs", &choice->token_logprobs);
        buffer_puts(out, ",");
        write_list(out, "top_logprobs", &choice->top_logprobs);
        buffer_puts(out, ",");
        write_list(out, "text_offset", &choice->text_offsets);
        buffer_puts(out, "}");
    }
    choice_write_reason(choice, NULL, stops, out);
    if (format->token_ids) choice_write_ids(choice, out);
    if (format->kept) choice_write_kept(choice, out);
    buffer_puts(out, "}");
}

double choice_mean_logprob(const struct choice *choice) {
    return choice->n_tokens ? choice->sum_logprobs / choice->n_tokens : 0;
}
