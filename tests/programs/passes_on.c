/* Another preload library, which passes every call on to the next function of that name. */
#include <dlfcn.h>
#include <stddef.h>
void *malloc(size_t n) {
    static void *(*next)(size_t);
    if (!next) next = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    return next(n);
}
void free(void *p) {
    static void (*next)(void *);
    if (!next) next = (void (*)(void *))dlsym(RTLD_NEXT, "free");
    next(p);
}
int execve(const char *path, char *const *args, char *const *env) {
    static int (*next)(const char *, char *const *, char *const *);
    if (!next) next = (int (*)(const char *, char *const *, char *const *))dlsym(RTLD_NEXT, "execve");
    return next(path, args, env);
}
