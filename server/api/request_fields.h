/* request_fields.h - members of request bodies: one table names each, how it is read, where it is
 * stored and its bounds.
 *
 * Every API has a table of its own, beside those that several share: sampling, streams, policies.
 * /openapi.json is written from the same tables.  Members that no table knows are ignored and
 * logged, or refused if limits->strict_fields.  Members that are known but cannot be honoured are
 * refused by name.  null means "default".
 *
 * Thread: any one.  Memory: what is read belongs to the request. */
#ifndef SERVER_API_REQUEST_FIELDS_H
#define SERVER_API_REQUEST_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <jansson.h>

struct api_error;
struct chat_reading;
struct completion_request;
struct request_limits;

/* The state that the members' readers share. */
struct request_reading {
    struct completion_request *request; /* NULL: of a body that does not generate */
    const struct request_limits *limits;
    struct api_error *err;
    bool has_stream_options, has_best_of;
    void *own;                 /* of the API's own readers */
    struct chat_reading *chat; /* of a chat, whatever its API (conversation/request.h) */
};

struct request_field {
    const char *name;
    /* What a value is, for /openapi.json: "integer", "string|string[]" and the like; "[+]" and
     * "string+" are not empty, and 'word' is this word alone; "@kv_policy": what is described there
     * under that name; "refused": only what request_read_refused() takes. */
    const char *type;
    /* Returns 0, or negative with r->err filled. */
    int (*read)(struct request_reading *r, const struct request_field *field, const json_t *value);
    size_t offset;     /* of the target in struct completion_request; request_keep(): in r->own */
    double low, high;  /* of numbers; both are allowed */
    const char *about; /* a sentence */
};

/* The most members without a field that are looked at in a body. */
enum { REQUEST_UNKNOWN_MOST = 16 };

/* The most tokens that ask for as many as the context leaves, as in llama.cpp. */
enum { REQUEST_ALL_TOKENS = -1 };

struct request_table {
    const struct request_field *fields;
    size_t n;
};
#define REQUEST_TABLE(array)                                                                       \
    { array, sizeof(array) / sizeof(*(array)) }

extern const struct request_table request_common;         /* of every API that generates */
extern const struct request_table request_stream_options; /* the members of that member */
extern const struct request_table request_openai; /* of OpenAI's completions and chats besides */

/* Reads those of the table's members that the body has. */
int request_read_table(struct request_reading *r, const struct request_table *table,
                       const json_t *root);
/* Reads the members of all tables; a NULL ends the list.  Then logs or refuses members that none of
 * them has: the first REQUEST_UNKNOWN_MOST. */
int request_read_tables(struct request_reading *r, const struct request_table *const *tables,
                        const json_t *root);

/* ---- readers ---- */

int request_refuse(struct request_reading *r, const struct request_field *field, const char *rule);
int request_read_u32(struct request_reading *r, const struct request_field *field,
                     const json_t *value);
int request_read_i32(struct request_reading *r, const struct request_field *field,
                     const json_t *value);
/* Takes a name or an alias of the served model, and refuses any other. */
int request_read_model(struct request_reading *r, const struct request_field *field,
                       const json_t *value);
/* Reads true or false into *out. */
int request_read_flag(struct request_reading *r, const struct request_field *field,
                      const json_t *value, bool *out);
int request_read_bool(struct request_reading *r, const struct request_field *field,
                      const json_t *value);
/* Reads the most tokens of an answer, or REQUEST_ALL_TOKENS. */
int request_read_max_tokens(struct request_reading *r, const struct request_field *field,
                            const json_t *value);
/* Reads a string, or an array of up to 16, that end the text. */
int request_read_stop(struct request_reading *r, const struct request_field *field,
                      const json_t *value);
/* Checks the type of a member that changes nothing: an object, a string, else an array. */
int request_read_ignored(struct request_reading *r, const struct request_field *field,
                         const json_t *value);
/* Checks the type likewise, and keeps the value, borrowed from the body, in a const json_t * of
 * r->own. */
int request_keep(struct request_reading *r, const struct request_field *field, const json_t *value);
/* Keeps a value of any type likewise: it is read, and its type checked, with others. */
int request_keep_any(struct request_reading *r, const struct request_field *field,
                     const json_t *value);
/* Refuses members that ask for something quire cannot do.  Nothing is asked for by false, by what
 * is empty, and, where the field's `high` is not 0, by the number `low`. */
int request_read_refused(struct request_reading *r, const struct request_field *field,
                         const json_t *value);

#endif
