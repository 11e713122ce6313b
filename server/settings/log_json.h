/* log_json.h - turns a line of the log into a JSON object.
 *
 *   request id=7f path=/v1/models status=200  {…,"event":"request","id":"7f",…,"status":200}
 *   request id=7f failed: no pages  {…,"event":"request","id":"7f","message":"failed: no pages"}
 *   listening on http://127.0.0.1:8000        {…,"message":"listening on http://127.0.0.1:8000"}
 *
 * A line's first word is an event if fields follow it, each KEY=VALUE with a value as log_quote()
 * writes it.  Values that are numbers become numbers, but for those that clients choose (id,
 * method, path); "-" becomes null.
 *
 * Thread: any.  Memory: the caller's. */
#ifndef SERVER_SETTINGS_LOG_JSON_H
#define SERVER_SETTINGS_LOG_JSON_H

#include <stddef.h>

/* Writes the object without a line end, and returns its length; the output is legal UTF-8 whatever
 * the text is.  text: has no control characters.  size >= 4 * strlen(text) + 128 is enough. */
size_t log_json_write(char *out, size_t size, const char *time, const char *level,
                      const char *text);

#endif
