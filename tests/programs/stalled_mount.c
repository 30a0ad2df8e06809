/* stalled_mount FOLDER FILE: mounts a file system at FOLDER until it is killed, and writes a line
 * when it is there. `program` is FILE, whose bytes from STALLS on are never read to the end;
 * `memory` has 16 KiB, which are never written. It speaks the protocol of /dev/fuse itself. */
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define STALLS (128 << 10)
#define MEMORY (16 << 10)
enum { ROOT = 1, PROGRAM = 2, MEMORY_FILE = 3 };

static int device, source;
static uint64_t source_bytes;

static void reply(uint64_t unique, int error, const void *data, size_t length) {
    struct fuse_out_header head = {.len = sizeof head + length, .error = -error, .unique = unique};
    struct iovec parts[2] = {{&head, sizeof head}, {(void *)data, length}};
    if (writev(device, parts, 2) < 0 && errno != ENOENT) perror("reply");
}

static struct fuse_attr attributes(uint64_t node) {
    struct fuse_attr attr = {.ino = node, .nlink = 1, .blksize = 4096};
    attr.mode = node == ROOT ? S_IFDIR | 0755 : node == PROGRAM ? S_IFREG | 0755 : S_IFREG | 0666;
    attr.size = node == PROGRAM ? source_bytes : node == MEMORY_FILE ? MEMORY : 0;
    return attr;
}

static void look_up(uint64_t unique, const char *name) {
    uint64_t node = !strcmp(name, "program") ? PROGRAM : !strcmp(name, "memory") ? MEMORY_FILE : 0;
    if (!node) {
        reply(unique, ENOENT, NULL, 0);
        return;
    }
    struct fuse_entry_out entry = {.nodeid = node, .entry_valid = 1000, .attr_valid = 1000};
    entry.attr = attributes(node);
    reply(unique, 0, &entry, sizeof entry);
}

static void read_file(uint64_t unique, uint64_t node, const struct fuse_read_in *request) {
    static char bytes[1 << 17];
    if (node == PROGRAM && request->offset + request->size > STALLS) return;
    size_t length = request->size < sizeof bytes ? request->size : sizeof bytes;
    memset(bytes, 0, length);
    ssize_t count = node == PROGRAM ? pread(source, bytes, length, (off_t)request->offset) : (ssize_t)length;
    reply(unique, 0, bytes, count > 0 ? (size_t)count : 0);
}

static void serve(const struct fuse_in_header *head, const void *body) {
    switch (head->opcode) {
    case FUSE_INIT: {
        /* Without read-ahead, what nobody asks for is not read. */
        struct fuse_init_out out = {.major = 7, .minor = 31, .max_write = 4096};
        reply(head->unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_LOOKUP: look_up(head->unique, body); break;
    case FUSE_GETATTR: {
        struct fuse_attr_out out = {.attr_valid = 1000, .attr = attributes(head->nodeid)};
        reply(head->unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_OPEN: case FUSE_OPENDIR: {
        struct fuse_open_out out = {.open_flags = FOPEN_KEEP_CACHE};
        reply(head->unique, 0, &out, sizeof out);
        break;
    }
    case FUSE_READ: read_file(head->unique, head->nodeid, body); break;
    case FUSE_RELEASE: case FUSE_RELEASEDIR: reply(head->unique, 0, NULL, 0); break;
    case FUSE_WRITE: case FUSE_FORGET: case FUSE_BATCH_FORGET: case FUSE_INTERRUPT: break;
    default: reply(head->unique, ENOSYS, NULL, 0);
    }
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    source = open(argv[2], O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (device < 0 || source < 0 || fstat(source, &status)) return 77;
    source_bytes = (uint64_t)status.st_size;
    char options[100];
    snprintf(options, sizeof options, "fd=%d,rootmode=40755,user_id=0,group_id=0,allow_other", device);
    if (mount("stalled", argv[1], "fuse", 0, options)) return 77;
    puts("mounted");
    fflush(stdout);
    static char request[1 << 18];
    for (;;) {
        ssize_t count = read(device, request, sizeof request);
        if (count < 0 && errno == ENODEV) return 0;
        if (count >= (ssize_t)sizeof(struct fuse_in_header)) {
            struct fuse_in_header head;
            memcpy(&head, request, sizeof head);
            serve(&head, request + sizeof head);
        }
    }
}
