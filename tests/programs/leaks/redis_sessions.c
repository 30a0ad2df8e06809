/* A module of redis: SESSION.TOUCH USER returns the token of a user and renews it at every third
 * call; SESSION.WORDS TEXT counts words. redismodule.h is in no package, so the parts of its
 * interface that are used are declared here.
 *
 * The fault: the old token is not freed when it is renewed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Context Context;
typedef struct String String;
typedef int (*Command)(Context *, String **, int);
static int (*get_api)(const char *, void *);
static int (*set_attributes)(Context *, const char *, int, int);
static int (*create_command)(Context *, const char *, Command, const char *, int, int, int);
static int (*reply_with_string)(Context *, const char *, size_t);
static int (*reply_with_number)(Context *, long long);
static int (*wrong_arity)(Context *);
static const char *(*text_of)(const String *, size_t *);
static void *(*take)(size_t);
static void (*give)(void *);

#define USERS 64
static struct session { char user[24], *token; unsigned touched; } sessions[USERS];

static __attribute__((noinline)) char *make_token(const char *user, unsigned number) {
    char *token = take(64);
    snprintf(token, 64, "%s-%08x", user, number * 2654435761u);
    return token;
}
static __attribute__((noinline)) void renew(struct session *session) {
    session->token = make_token(session->user, session->touched);
}
static struct session *session_of(const char *user, size_t length) {
    unsigned hash = 5381;
    for (size_t i = 0; i < length; i++) hash = hash * 33 + (unsigned char)user[i];
    struct session *session = &sessions[hash % USERS];
    snprintf(session->user, sizeof session->user, "%.*s", (int)length, user);
    return session;
}
static int touch(Context *context, String **words, int count) {
    if (count != 2) return wrong_arity(context);
    size_t length;
    const char *user = text_of(words[1], &length);
    struct session *session = session_of(user, length);
    if (session->touched++ % 3 == 0) renew(session);
    return reply_with_string(context, session->token, strlen(session->token));
}
static int count_words(Context *context, String **words, int count) {
    if (count != 2) return wrong_arity(context);
    size_t length;
    const char *text = text_of(words[1], &length);
    char *copy = take(length + 1), *rest = 0;
    memcpy(copy, text, length);
    copy[length] = 0;
    long long found = 0;
    for (char *word = strtok_r(copy, " ", &rest); word; word = strtok_r(0, " ", &rest)) found++;
    give(copy);
    return reply_with_number(context, found);
}

__attribute__((visibility("default"))) int RedisModule_OnLoad(Context *context, String **words, int count) {
    (void)words, (void)count;
    get_api = *(int (**)(const char *, void *))context;
    get_api("RedisModule_SetModuleAttribs", &set_attributes);
    get_api("RedisModule_CreateCommand", &create_command);
    get_api("RedisModule_ReplyWithStringBuffer", &reply_with_string);
    get_api("RedisModule_ReplyWithLongLong", &reply_with_number);
    get_api("RedisModule_WrongArity", &wrong_arity);
    get_api("RedisModule_StringPtrLen", &text_of);
    get_api("RedisModule_Alloc", &take);
    get_api("RedisModule_Free", &give);
    set_attributes(context, "session", 1, 1);
    if (create_command(context, "session.touch", touch, "readonly", 0, 0, 0)) return 1;
    return create_command(context, "session.words", count_words, "readonly", 0, 0, 0);
}
