/* Opens plugins in turn, ROUNDS times, each as a file of the form FORM: uses it, keeps it open for
 * MS milliseconds, and closes it.
 *   kept       the plugin itself
 *   deleted    a copy that is deleted while it is open, with a new name each time
 *   same       the same, with the same name each time
 *   rewritten  a file that is written anew after it was closed, in place
 *   renamed    a file that is replaced by renaming another one, while it is open
 *   memfd      a file in memory
 *   mount      a copy in a file system that is mounted for it, and detached while it is open
 *   unmount    a copy in a file system that is unmounted once it is closed
 * Usage: reloads_plugins FORM MS ROUNDS FOLDER PLUGIN... */
#define _GNU_SOURCE
#include "own.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static void copy(const char *from, int to) {
    static char bytes[1 << 20];
    int source = open(from, O_RDONLY | O_CLOEXEC);
    must(source >= 0, from);
    ssize_t count = read(source, bytes, sizeof bytes);
    must(count > 0 && write(to, bytes, (size_t)count) == count, "a copy");
    close(source);
    close(to);
}

static void copy_to(const char *from, const char *to, int flags) {
    int target = open(to, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0755);
    must(target >= 0, to);
    copy(from, target);
}

int main(int argc, char **argv) {
    must(argc > 5, "plugins");
    const char *form = argv[1], *folder = argv[4];
    unsigned long ms = number(argc, argv, 2, 100), rounds = number(argc, argv, 3, 1);
    int busy = 0;
    for (unsigned long i = 0; i < rounds * (unsigned long)(argc - 5); i++) {
        const char *plugin = argv[5 + i % (unsigned long)(argc - 5)];
        char path[4096], other[4096], mounted[4096];
        int is_mount = strcmp(form, "mount") == 0 || strcmp(form, "unmount") == 0, descriptor = -1;
        snprintf(mounted, sizeof mounted, "%s/mounted", folder);
        snprintf(path, sizeof path, "%s/%s.so", is_mount ? mounted : folder, "copy");
        if (strcmp(form, "kept") == 0) snprintf(path, sizeof path, "%s", plugin);
        if (strcmp(form, "deleted") == 0) snprintf(path, sizeof path, "%s/copy-%lu.so", folder, i);
        if (strcmp(form, "memfd") == 0) {
            descriptor = memfd_create("plugin", MFD_CLOEXEC);
            must(descriptor >= 0, "a file in memory");
            copy(plugin, dup(descriptor));
            snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
        } else if (strcmp(form, "renamed") == 0) {
            snprintf(other, sizeof other, "%s/other.so", folder);
            copy_to(plugin, other, O_TRUNC);
            must(rename(other, path) == 0, "to rename it");
        } else if (strcmp(form, "kept") != 0) {
            if (is_mount) {
                mkdir(mounted, 0755);
                must(mount("tmpfs", mounted, "tmpfs", 0, "") == 0, "a file system");
            }
            copy_to(plugin, path, strcmp(form, "rewritten") == 0 ? O_TRUNC : O_EXCL);
        }
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        must(library != 0, "to open the plugin");
        if (strcmp(form, "deleted") == 0 || strcmp(form, "same") == 0) unlink(path);
        if (strcmp(form, "mount") == 0) must(umount2(mounted, MNT_DETACH) == 0, "to detach it");
        if (descriptor >= 0) close(descriptor);
        void (*entry)(void *(*)(size_t), int) = (void (*)(void *(*)(size_t), int))dlsym(library, "plugin_entry");
        must(entry != 0, "its function");
        entry(malloc, 100);
        usleep((useconds_t)ms * 1000);
        must(dlclose(library) == 0, "to close it");
        if (strcmp(form, "unmount") == 0 && umount2(mounted, 0) != 0) {
            must(errno == EBUSY, "to unmount it");
            busy++;
            umount2(mounted, MNT_DETACH);
        }
    }
    say("%d times busy\n", busy);
    return 0;
}
