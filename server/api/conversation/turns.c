/* turns.c - see turns.h. */
#include "server/api/conversation/turns.h"

#include <string.h>

#include "engine/base/count.h"
#include "server/api/conversation/call_ids.h"
#include "server/json/buffer.h"

const struct turn_rules turn_attempts[TURN_ATTEMPTS] = {
    {.one_text = true},
    {.one_call = true},
    {.one_text = true, .one_call = true},
    {.short_ids = true},
    {.short_ids = true, .joined = true},
    {.short_ids = true, .joined = true, .no_system = true},
    {.short_ids = true, .joined = true, .tools_last = true},
    {.short_ids = true, .joined = true, .no_system = true, .tools_last = true},
    {.one_text = true,
     .one_call = true,
     .short_ids = true,
     .joined = true,
     .no_system = true,
     .tools_last = true},
};

/* The members of a message that are joined with the same ones of the next.  The first is what it
 * says, the others are names of what it thinks. */
static const char *const text_names[] = {"content", "reasoning_content", "reasoning", "thinking"};
enum { N_TEXTS = COUNT(text_names) };

/* Texts of messages that become one.  They are gathered here and set once, because a client may
 * send thousands of them. */
struct gathered {
    struct buffer text;
    bool is_there; /* it may say nothing */
};

/* The state of a walk over the messages. */
struct walk {
    json_t *made;
    const struct turn_rules *rules;
    struct gathered system;         /* what the messages in front say, until it stands somewhere */
    struct gathered texts[N_TEXTS]; /* what the last message of `made` will say */
    bool owns_calls;                /* the list of its calls is no message's that was given */
    bool failed;                    /* there was no memory */
};

static const char *role_of(const json_t *message) {
    const char *role = json_string_value(json_object_get(message, "role"));
    return role ? role : "";
}

static bool is_role(const json_t *message, const char *role) {
    return strcmp(role_of(message), role) == 0;
}

static bool instructs(const json_t *message) {
    return is_role(message, "system") || is_role(message, "developer");
}

static void gather(struct gathered *to, const json_t *text) {
    const size_t length = json_string_length(text);
    to->is_there = true;
    if (length > 0 && to->text.length > 0) buffer_puts(&to->text, "\n\n");
    buffer_append(&to->text, json_string_value(text), length);
}

/* Takes what was gathered.  Returns NULL if there is no memory. */
static json_t *take_gathered(struct gathered *from) {
    const struct buffer *text = &from->text;
    json_t *made = text->failed ? NULL : json_stringn(text->data ? text->data : "", text->length);
    buffer_fini(&from->text);
    *from = (struct gathered){0};
    return made;
}

/* Makes a text of two, of which either may say nothing. */
static json_t *join(const json_t *a, const json_t *b) {
    struct gathered both = {0};
    gather(&both, a);
    gather(&both, b);
    return take_gathered(&both);
}

/* ---- ids ---- */

static json_t *alias_of(const json_t *id) {
    char alias[CALL_ID_LENGTH + 1];
    const char *text = json_string_value(id);
    const size_t length = json_string_length(id);
    if (call_id_fits(text, length)) return json_incref((json_t *)id);
    call_id_alias(alias, text, length);
    return json_string(alias);
}

static void shorten(struct walk *w, json_t *object, const char *member) {
    const json_t *id = json_object_get(object, member);
    if (json_is_string(id)) w->failed |= json_object_set_new(object, member, alias_of(id)) < 0;
}

/* Copies the calls, and shortens their ids. */
static void shorten_calls(struct walk *w, json_t *message) {
    const json_t *calls = json_object_get(message, "tool_calls");
    json_t *made = calls ? json_array() : NULL;
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *call = json_copy(json_array_get(calls, i));
        if (call) shorten(w, call, "id");
        w->failed |= json_array_append_new(made, call) < 0;
    }
    if (calls) w->failed |= json_object_set_new(message, "tool_calls", made) < 0;
}

/* ---- texts ---- */

/* Makes what a message with calls thinks and says its thought. */
static void join_texts(struct walk *w, json_t *message) {
    const json_t *said = json_object_get(message, text_names[0]),
                 *thought = json_object_get(message, text_names[1]);
    if (!json_object_get(message, "tool_calls") || json_string_length(thought) == 0 ||
        json_string_length(said) == 0)
        return;
    json_t *both = join(thought, said);
    w->failed |= !both || json_object_set_new(message, text_names[0], json_string("")) < 0;
    for (size_t i = 1; i < N_TEXTS && !w->failed; i++)
        w->failed |= json_object_set(message, text_names[i], both) < 0;
    json_decref(both);
}

/* ---- calls ---- */

static size_t n_calls_of(const json_t *message) {
    return json_array_size(json_object_get(message, "tool_calls"));
}

/* Returns the number of a result's call: by its id or, without one, by its place.  A result of no
 * call has the number of calls.  owners: the first call of each id. */
static size_t owner_of(const json_t *result, size_t place, const json_t *calls,
                       const json_t *owners) {
    const json_t *id = json_object_get(result, "tool_call_id"),
                 *call = json_array_get(calls, place);
    if (call && (!id || json_equal(id, json_object_get(call, "id")))) return place;
    const json_t *owner = id ? json_object_get(owners, json_string_value(id)) : NULL;
    return owner ? (size_t)json_integer_value(owner) : json_array_size(calls);
}

/* Makes a list of the results of each call among the n from `first` on, and one of the others.
 * Each result is in one list, whatever ids a client has given twice. */
static json_t *deal_results(struct walk *w, const json_t *messages, size_t first, size_t n,
                            const json_t *calls) {
    json_t *lists = json_array(), *owners = json_object();
    w->failed |= json_array_append_new(lists, json_array()) < 0;
    for (size_t k = json_array_size(calls); k-- > 0 && !w->failed;) {
        const char *id = json_string_value(json_object_get(json_array_get(calls, k), "id"));
        w->failed |= json_array_append_new(lists, json_array()) < 0 ||
                     (id && json_object_set_new(owners, id, json_integer((json_int_t)k)) < 0);
    }
    for (size_t i = 0; i < n && !w->failed; i++) {
        json_t *result = json_array_get(messages, first + i),
               *list = json_array_get(lists, owner_of(result, i, calls, owners));
        w->failed |= json_array_append(list, result) < 0;
    }
    json_decref(owners);
    return lists;
}

/* Appends a message of one of the calls of another.  The first one has what that says. */
static void append_call(struct walk *w, const json_t *message, const json_t *call, bool is_first) {
    json_t *one = is_first ? json_copy((json_t *)message)
                           : json_pack("{s:s, s:s}", "role", "assistant", "content", "");
    w->failed |= !one || json_object_set_new(one, "tool_calls", json_pack("[O]", call)) < 0 ||
                 json_array_append(w->made, one) < 0;
    json_decref(one);
}

/* Makes a message of each call, with its results behind it. */
static void part_calls(struct walk *w, const json_t *messages) {
    for (size_t i = 0; i < json_array_size(messages) && !w->failed; i++) {
        const json_t *message = json_array_get(messages, i),
                     *calls = json_object_get(message, "tool_calls");
        size_t n = 0;
        if (n_calls_of(message) < 2) {
            w->failed |= json_array_append(w->made, (json_t *)message) < 0;
            continue;
        }
        while (is_role(json_array_get(messages, i + 1 + n), "tool")) n++;
        json_t *results = deal_results(w, messages, i + 1, n, calls);
        for (size_t k = 0; k <= n_calls_of(message) && !w->failed; k++) {
            if (k < n_calls_of(message)) append_call(w, message, json_array_get(calls, k), k == 0);
            w->failed |= json_array_extend(w->made, json_array_get(results, k)) < 0;
        }
        json_decref(results);
        i += n;
    }
}

struct turn_rules turns_whole(const json_t *messages, bool drops_systems, bool drops_calls,
                              bool *needed) {
    struct turn_rules rules = {0};
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        rules.joined |= drops_systems && i > 0 && instructs(message);
        rules.one_call |= drops_calls && n_calls_of(message) > 1;
    }
    *needed = rules.joined || rules.one_call;
    return rules;
}

/* ---- turns ---- */

/* Lets the last message say what was gathered for it. */
static void settle(struct walk *w) {
    json_t *last = json_array_get(w->made, json_array_size(w->made) - 1);
    for (size_t i = 0; i < N_TEXTS; i++)
        if (w->texts[i].is_there)
            w->failed |= json_object_set_new(last, text_names[i], take_gathered(&w->texts[i])) < 0;
    w->owns_calls = false;
}

static void append(struct walk *w, json_t *message) {
    settle(w);
    w->failed |= !message || json_array_append_new(w->made, message) < 0;
}

/* Puts what the messages in front say before the first turn, in it or as a message of its own. */
static void place_system(struct walk *w, json_t *first) {
    if (!w->system.is_there) return;
    if (!w->rules->no_system) {
        append(w, json_pack("{s:s, s:o}", "role", "system", "content", take_gathered(&w->system)));
    } else if (is_role(first, "user")) {
        gather(&w->system, json_object_get(first, "content"));
        w->failed |= json_object_set_new(first, "content", take_gathered(&w->system)) < 0;
    } else {
        append(w, json_pack("{s:s, s:o}", "role", "user", "content", take_gathered(&w->system)));
    }
}

/* Appends the calls of a message to those of the last one. */
static void join_calls(struct walk *w, json_t *last, const json_t *message) {
    const json_t *more = json_object_get(message, "tool_calls");
    if (!more) return;
    if (!w->owns_calls) {
        json_t *before = json_object_get(last, "tool_calls"),
               *calls = before ? json_copy(before) : json_array();
        w->failed |= json_object_set_new(last, "tool_calls", calls) < 0;
        w->owns_calls = true;
    }
    w->failed |= json_array_extend(json_object_get(last, "tool_calls"), (json_t *)more) < 0;
}

/* Joins a message to the last one, a copy. */
static void join_turns(struct walk *w, json_t *last, const json_t *message) {
    for (size_t i = 0; i < N_TEXTS; i++) {
        const json_t *more = json_object_get(message, text_names[i]);
        if (!more) continue;
        if (!w->texts[i].is_there) gather(&w->texts[i], json_object_get(last, text_names[i]));
        gather(&w->texts[i], more);
    }
    join_calls(w, last, message);
}

/* Tells whether the message is joined to the last one. */
static bool joins(const struct walk *w, const json_t *last, const json_t *message) {
    if (!last) return false;
    if (is_role(message, "user"))
        return is_role(last, "user") || (w->rules->tools_last && is_role(last, "tool"));
    return is_role(message, "assistant") && is_role(last, "assistant");
}

/* Takes a copy of a message. */
static void take(struct walk *w, json_t *message) {
    json_t *last = json_array_get(w->made, json_array_size(w->made) - 1);
    if (instructs(message) && json_array_size(w->made) == 0) {
        gather(&w->system, json_object_get(message, "content"));
        json_decref(message);
        return;
    }
    if (instructs(message))
        w->failed |= json_object_set_new(message, "role", json_string("user")) < 0;
    if (json_array_size(w->made) == 0) place_system(w, message);
    if (!joins(w, last, message)) {
        append(w, message);
        return;
    }
    join_turns(w, last, message);
    json_decref(message);
}

/* Makes the messages of what part_calls() has made, or of those that were given. */
static void take_all(struct walk *w, const json_t *messages) {
    const struct turn_rules *rules = w->rules;
    for (size_t i = 0; i < json_array_size(messages) && !w->failed; i++) {
        json_t *message = json_copy(json_array_get(messages, i));
        if (message && rules->short_ids) {
            shorten(w, message, "tool_call_id");
            shorten_calls(w, message);
        }
        if (message && rules->one_text) join_texts(w, message);
        if (message && rules->joined) take(w, message);
        else append(w, message);
    }
    if (!w->failed) place_system(w, NULL);
    settle(w);
}

json_t *turns_make(const json_t *messages, const struct turn_rules *rules) {
    struct walk parts = {.made = rules->one_call ? json_array() : NULL},
                w = {.made = json_array(), .rules = rules};
    if (parts.made) part_calls(&parts, messages);
    w.failed = !w.made || parts.failed || (rules->one_call && !parts.made);
    take_all(&w, parts.made ? parts.made : messages);
    json_decref(parts.made);
    buffer_fini(&w.system.text);
    if (!w.failed) return w.made;
    json_decref(w.made);
    return NULL;
}
