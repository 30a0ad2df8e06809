/* A program with several call sites, built twice: with MORE one line of it allocates a tenth
 * more. Every run does the same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef MORE
/* Lines
 * that move
 * all that follows. */
enum { ORDER = 1100 };
#else
enum { ORDER = 1000 };
#endif

static void *volatile kept[64];

__attribute__((noinline)) static char *read_name(int i) {
    char *name = malloc(40);
    snprintf(name, 40, "customer %d", i);
    return name;
}

__attribute__((noinline)) static void *load_order(int i) {
    char *order = malloc(ORDER);
    memset(order, i, ORDER);
    return order;
}

__attribute__((noinline)) static void index_orders(int n) {
    char *index = NULL;
    for (int i = 1; i <= n; i++) index = realloc(index, (size_t)i * 16);
    kept[63] = index;
}

int main(void) {
    for (int i = 0; i < 5000; i++) {
        char *name = read_name(i);
        void *order = load_order(i);
        if (i % 100 == 0) {
            kept[i / 100] = order;
        } else {
            free(order);
        }
        free(name);
    }
    index_orders(300);
    return 0;
}

#ifdef SUPPRESSED
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:^load_order$\nleak:nobody_is_called_so\n"; }
#endif
