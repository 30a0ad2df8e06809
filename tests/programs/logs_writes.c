/* Preloaded into a recorder: logs every change of files below LOGGED_FOLDER, in order, to the
 * file LOGGED_TO. A record is the header below, the path, the second path, and the bytes. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CREATE = 1, WRITE, TRUNCATE, SYNC, SYNC_ALL, RENAME, UNLINK, MKDIR, RMDIR };
struct head {
    uint32_t kind, path, second, zero;
    uint64_t inode, offset, length;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int to = -1;
static char root[4096];
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void start(void) {
    char exe[4096] = "";
    const char *folder = getenv("LOGGED_FOLDER"), *file = getenv("LOGGED_TO");
    if (readlink("/proc/self/exe", exe, sizeof exe - 1) < 0 || !strstr(exe, "/heaptape") || !folder || !file) return;
    snprintf(root, sizeof root, "%s", folder);
    to = REAL(open)(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}
static int below(const char *path) { return to >= 0 && !strncmp(path, root, strlen(root)); }
/* Returns the path of a descriptor below the folder, or null. */
static const char *path_of(int fd, char *buffer, size_t size) {
    char link[64];
    if (to < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, buffer, size - 1);
    if (length < 0) return 0;
    buffer[length] = 0;
    return below(buffer) ? buffer : 0;
}
static uint64_t inode_of(int fd) {
    struct stat about;
    return fstat(fd, &about) ? 0 : about.st_ino;
}
static void put(uint32_t kind, uint64_t inode, uint64_t offset, const char *path, const char *second, const void *bytes, size_t length) {
    struct head head = { kind, strlen(path), strlen(second), 0, inode, offset, length };
    struct iovec parts[] = { { &head, sizeof head }, { (void *)path, head.path }, { (void *)second, head.second }, { (void *)bytes, length } };
    if (REAL(writev)(to, parts, 4) < 0) abort();
}

#define OPENS(name, type)                                                                                             \
    int name(const char *path, int flags, ...) {                                                                      \
        va_list more;                                                                                                 \
        va_start(more, flags);                                                                                        \
        mode_t mode = va_arg(more, mode_t);                                                                           \
        va_end(more);                                                                                                 \
        if (!below(path)) return REAL(type)(path, flags, mode);                                                       \
        pthread_mutex_lock(&lock);                                                                                    \
        int fd = REAL(type)(path, flags, mode), error = errno;                                                        \
        if (fd >= 0 && (flags & O_CREAT)) put(CREATE, inode_of(fd), 0, path, "", 0, 0);                               \
        if (fd >= 0 && (flags & O_TRUNC)) put(TRUNCATE, inode_of(fd), 0, path, "", 0, 0);                             \
        pthread_mutex_unlock(&lock);                                                                                  \
        errno = error;                                                                                                \
        return fd;                                                                                                    \
    }
OPENS(open, open)
OPENS(open64, open64)

#define WRITES(name, offset_type)                                                                                     \
    ssize_t name(int fd, const void *bytes, size_t count, offset_type offset) {                                       \
        char buffer[4096];                                                                                            \
        const char *path = path_of(fd, buffer, sizeof buffer);                                                        \
        if (!path) return REAL(name)(fd, bytes, count, offset);                                                       \
        pthread_mutex_lock(&lock);                                                                                    \
        ssize_t done = REAL(name)(fd, bytes, count, offset);                                                          \
        int error = errno;                                                                                            \
        if (done > 0) put(WRITE, inode_of(fd), offset, path, "", bytes, done);                                        \
        pthread_mutex_unlock(&lock);                                                                                  \
        errno = error;                                                                                                \
        return done;                                                                                                  \
    }
WRITES(pwrite, off_t)
WRITES(pwrite64, off64_t)

ssize_t write(int fd, const void *bytes, size_t count) {
    char buffer[4096];
    const char *path = path_of(fd, buffer, sizeof buffer);
    if (!path) return REAL(write)(fd, bytes, count);
    pthread_mutex_lock(&lock);
    off_t at = lseek(fd, 0, SEEK_CUR);
    ssize_t done = REAL(write)(fd, bytes, count);
    int error = errno;
    if (done > 0) put(WRITE, inode_of(fd), at, path, "", bytes, done);
    pthread_mutex_unlock(&lock);
    errno = error;
    return done;
}

#define ON_FD(name, arguments, call, kind, at)                                                                        \
    int name arguments {                                                                                              \
        char buffer[4096];                                                                                            \
        const char *path = path_of(fd, buffer, sizeof buffer);                                                        \
        if (!path) return REAL(name) call;                                                                            \
        pthread_mutex_lock(&lock);                                                                                    \
        int result = REAL(name) call, error = errno;                                                                  \
        if (!result) put(kind, inode_of(fd), at, path, "", 0, 0);                                                     \
        pthread_mutex_unlock(&lock);                                                                                  \
        errno = error;                                                                                                \
        return result;                                                                                                \
    }
ON_FD(fsync, (int fd), (fd), SYNC, 0)
ON_FD(fdatasync, (int fd), (fd), SYNC, 0)
ON_FD(syncfs, (int fd), (fd), SYNC_ALL, 0)
ON_FD(ftruncate, (int fd, off_t size), (fd, size), TRUNCATE, size)
ON_FD(ftruncate64, (int fd, off64_t size), (fd, size), TRUNCATE, size)

#define ON_PATH(name, arguments, call, kind, second)                                                                  \
    int name arguments {                                                                                              \
        if (!below(path)) return REAL(name) call;                                                                     \
        pthread_mutex_lock(&lock);                                                                                    \
        int result = REAL(name) call, error = errno;                                                                  \
        if (!result) put(kind, 0, 0, path, second, 0, 0);                                                             \
        pthread_mutex_unlock(&lock);                                                                                  \
        errno = error;                                                                                                \
        return result;                                                                                                \
    }
ON_PATH(rename, (const char *path, const char *onto), (path, onto), RENAME, onto)
ON_PATH(unlink, (const char *path), (path), UNLINK, "")
ON_PATH(mkdir, (const char *path, mode_t mode), (path, mode), MKDIR, "")
ON_PATH(rmdir, (const char *path), (path), RMDIR, "")
