/* Opens every library of a folder while 20 threads wait. Then each thread touches the
 * thread-local variable of each library, and allocates after each. */
#include "own.h"
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
static char *(*touch[1000])(void);
static int many;
static pthread_barrier_t start;
static void *work(void *v) {
    pthread_barrier_wait(&start);
    for (int i = 0; i < many; i++) { must(*touch[i]() == 1, "a variable of this thread"); own_free(own_malloc(1511)); }
    return v;
}
int main(int argc, char **argv) {
    must(argc > 1, "a folder");
    pthread_t id[20];
    pthread_barrier_init(&start, 0, 21);
    for (int i = 0; i < 20; i++) must(!pthread_create(&id[i], 0, work, 0), "a thread");
    DIR *folder = opendir(argv[1]);
    for (struct dirent *e; (e = readdir(folder)) && many < 1000;) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s", argv[1], e->d_name);
        if (e->d_name[0] == '.') continue;
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        must(library && (touch[many] = (char *(*)(void))dlsym(library, "plugin_variable")), "a library");
        many++;
    }
    closedir(folder);
    pthread_barrier_wait(&start);
    for (int i = 0; i < 20; i++) pthread_join(id[i], 0);
    say("%d libraries\n", many);
    return 0;
}
