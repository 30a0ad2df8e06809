/* Allocates before main (preinit_array, constructors, constructors of a needed library), after
 * it (exit handlers, destructors, four rounds of destructors of thread keys), and in a thread
 * that outlives main. */
#include "own.h"
#include <pthread.h>
extern int answer(void);
static void *kept;
static void before_everything(void) { kept = malloc(1451); free(malloc(1453)); }
__attribute__((section(".preinit_array"), used)) static void (*preinit)(void) = before_everything;
__attribute__((constructor)) static void constructs(void) { free(malloc(1459)); }
__attribute__((destructor)) static void destructs(void) { free(malloc(1471)); kept = malloc(1481); }
static void at_exit(void) { free(malloc(1483)); kept = malloc(1487); }
static pthread_key_t key;
static void key_ends(void *v) {
    uintptr_t round = (uintptr_t)v;
    free(malloc(1489));
    if (round < 4) pthread_setspecific(key, (void *)(round + 1));
}
static void *outlives(void *v) {
    pthread_setspecific(key, (void *)1);
    pthread_join(*(pthread_t *)v, 0);
    free(malloc(1493));
    say("outlived main\n");
    return 0;
}
int main(void) {
    must(answer() == 42, "the library");
    atexit(at_exit);
    pthread_key_create(&key, key_ends);
    static pthread_t me, id;
    me = pthread_self();
    must(!pthread_create(&id, 0, outlives, &me), "a thread");
    free(malloc(1499));
    pthread_exit(0);
}
