/* tools.h - the tools of a request, in the words of every dialect, as functions that a template
 * knows.
 *
 *   function                     a function, with its members beside its type or in an object of
 *                                their own
 *   custom                       a function of one string, `input`
 *   tool_search of the client's  a function with the parameters that it has
 *   any that has `tools`         these, by the names NAMESPACE__NAME: `namespace`
 *   an unknown one               a function if it has a name and a schema, else it is skipped
 *
 * A call comes back under the kind, the namespace and the name that its tool was given with.
 *
 * Thread: any; a list belongs to one thread at a time.  Memory: a list owns what it has, which may
 * share values with the body. */
#ifndef SERVER_API_CONVERSATION_TOOLS_H
#define SERVER_API_CONVERSATION_TOOLS_H

#include <stdbool.h>
#include <stddef.h>
#include <jansson.h>

struct api_error;
struct skipped_types;

enum tool_kind { TOOL_FUNCTION, TOOL_CUSTOM, TOOL_SEARCH };

/* Zero-initialise. */
struct tool_list {
    json_t *functions; /* {"type": "function", "function": {…}} each; NULL: none */
    json_t *origins;   /* by the names that the model reads (tool_origin_find()); NULL: none */
    bool has_skipped;  /* there were others */
    char unknown[128]; /* the place and type of the first that this server has never heard of; "" */
};

struct tool_rules {
    bool needs_schema;             /* a function has a schema, and a custom tool is a function */
    struct skipped_types *skipped; /* NULL: nothing is logged */
    struct api_error *err;
};

/* Adds tools.  where: the place of the array in the body.  A tool with the name of an earlier one
 * replaces it. */
int tool_list_add(struct tool_list *list, const struct tool_rules *rules, const char *where,
                  const json_t *tools);
/* Leaves those functions alone that `allowed` names: an array of tools, or of namespaces.  Entries
 * of types that no list keeps are skipped. */
int tool_list_allow(struct tool_list *list, const json_t *allowed, struct api_error *err);
void tool_list_fini(struct tool_list *list);

/* Joins a namespace and a name to the name that the model reads.  NULL: there is no memory.
 * namespace NULL, JSON null or empty: the name itself. */
json_t *tool_shown_name(const json_t *space, const json_t *name);

/* Where a tool that is called comes from. */
struct tool_origin {
    enum tool_kind kind;
    const char *name;  /* as the client gave it; NULL: there is no such tool */
    const char *space; /* its namespace; NULL: none */
};

/* Finds the tool by the name that a model calls: the one that it was shown, or, where only one tool
 * has it, the name without its namespace. */
struct tool_origin tool_origin_find(const json_t *origins, const char *name);
/* Returns the name under which a tool is shown that a body names; NULL: there is none. */
const char *tool_shown_find(const json_t *origins, const char *space, const char *name);

#endif
