/* regex_text.h - regular expressions of clients, as the grammar library can follow them.
 *
 * Thread: any.  Memory: the caller's. */
#ifndef ENGINE_GRAMMAR_REGEX_TEXT_H
#define ENGINE_GRAMMAR_REGEX_TEXT_H

#ifdef __cplusplus
extern "C" {
#endif

/* Returns what makes the library write bytes that are no text; NULL: nothing.  The expression must
 * be valid UTF-8. */
const char *regex_text_fault(const char *regex);

/* Returns the expression with \u{...} for each character beyond ASCII, to be freed; NULL: no
 * memory.  The library follows a pattern inside of JSON strings in ASCII only. */
char *regex_text_in_ascii(const char *regex);

#ifdef __cplusplus
}
#endif

#endif
