/* option_json.h - tables of options as JSON, for what is generated from them: the manual page, the
 * completions of shells.
 *
 * Thread: any.  Memory: the buffer's. */
#ifndef SERVER_SETTINGS_OPTION_JSON_H
#define SERVER_SETTINGS_OPTION_JSON_H

struct buffer;
struct option_table;

/* Appends "name":"text". */
void option_json_member(struct buffer *out, const char *name, const char *text);
/* Appends an array with an object for each option: name, kind, help; words and default where it has
 * them.  NULL: an empty array. */
void option_json_table(struct buffer *out, const struct option_table *table);

#endif
