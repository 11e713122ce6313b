/* model_file.h - finds what ships with quire about a model: config/KIND/NAME.json, where NAME is
 * the last part of the model's directory and config lies beside the directory of the binary, or in
 * the source tree.
 *
 * Thread: main, at start-up.  Memory: none is kept. */
#ifndef SERVER_SETTINGS_MODEL_FILE_H
#define SERVER_SETTINGS_MODEL_FILE_H

struct error;

/* The path of `file`, the setting, if that is not NULL; else of what ships, or NULL where there is
 * none.  The caller owns *out. */
int model_file_choose(char **out, const char *file, const char *kind, const char *model_dir,
                      struct error *err);
/* What follows the last slash; NULL of NULL. */
const char *model_file_name(const char *path);

#endif
