/* An extension of SQLite with a leak: `search_key(text)` gives the text in lower case without blanks; `fold_key` makes a copy of it, and
 * nobody frees that. `stored_key(text)` does the same and frees it. */
#include <sqlite3ext.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
SQLITE_EXTENSION_INIT1

__attribute__((noinline)) static char *fold_key(const char *text) {
    char *key = malloc(strlen(text) + 1), *to = key;
    if (!key) return NULL;
    for (; *text; text++) {
        if (!isspace((unsigned char)*text)) *to++ = (char)tolower((unsigned char)*text);
    }
    *to = 0;
    return key;
}

__attribute__((noinline)) static char *store_key(const char *text) {
    char *key = malloc(strlen(text) + 1);
    return key ? strcpy(key, text) : NULL;
}

static void search_key(sqlite3_context *context, int count, sqlite3_value **values) {
    const char *text = (const char *)sqlite3_value_text(values[0]);
    char *key = count == 1 && text ? fold_key(text) : NULL;
    if (key) sqlite3_result_text(context, key, -1, SQLITE_TRANSIENT);
}

static void stored_key(sqlite3_context *context, int count, sqlite3_value **values) {
    const char *text = (const char *)sqlite3_value_text(values[0]);
    char *key = count == 1 && text ? store_key(text) : NULL;
    if (key) sqlite3_result_text(context, key, -1, free);
}

int sqlite3_extension_init(sqlite3 *db, char **error, const sqlite3_api_routines *api);
int sqlite3_extension_init(sqlite3 *db, char **error, const sqlite3_api_routines *api) {
    (void)error;
    SQLITE_EXTENSION_INIT2(api);
    sqlite3_create_function(db, "stored_key", 1, SQLITE_UTF8, NULL, stored_key, NULL, NULL);
    return sqlite3_create_function(db, "search_key", 1, SQLITE_UTF8, NULL, search_key, NULL, NULL);
}
