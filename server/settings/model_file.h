/* model_file.h - chooses the model, and what ships with quire about it: config/KIND/NAME.json of
 * the data directory (data_dir.h), where NAME is the last part of the model's name.
 *
 * Thread: main, at start-up.  Memory: none is kept. */
#ifndef SERVER_SETTINGS_MODEL_FILE_H
#define SERVER_SETTINGS_MODEL_FILE_H

struct error;

/* Writes the model's directory to path [PATH_MAX]: `dir`, the setting, if that is not NULL; else
 * the default, which is Meson's option model_dir or models/quire-31m of the data directory.  Of a
 * model's folder in the hub's cache it is the folder of a revision (hub_cache.h). */
int model_dir_choose(char *path, const char *dir, struct error *err);
/* Copies to *out the path of `file`, the setting, if that is not NULL; else of the file that ships,
 * or NULL where there is none.  The caller owns *out. */
int model_file_choose(char **out, const char *file, const char *kind, const char *model_dir,
                      struct error *err);
/* Writes the model's name to name [PATH_MAX]: the last part of its path, or OWNER/NAME of a folder
 * or a file in the hub's cache. */
void model_name_write(char *name, const char *model_dir);
/* Returns what follows the last slash; NULL of NULL. */
const char *model_file_name(const char *path);

#endif
