/* Floods a daemon's socket as another user until it is killed: SOCKET UID KIND HELLO. KIND:
 * hangup      connects and closes
 * wrong       sends bytes that are not a hello
 * hello       sends a valid hello, given in hexadecimal digits
 * silent      opens as many connections as possible and sends nothing
 * elsewhere   is as busy without a socket, for comparison */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
int main(int argc, char **argv) {
    if (argc < 5) return 2;
    unsigned char hello[64] = {0};
    for (int i = 0; i < 64 && argv[4][2 * i]; i++) {
        unsigned byte;
        if (sscanf(argv[4] + 2 * i, "%2x", &byte) != 1) return 2;
        hello[i] = byte;
    }
    struct sockaddr_un where = {.sun_family = AF_UNIX};
    snprintf(where.sun_path, sizeof where.sun_path, "%s", argv[1]);
    if (!strcmp(argv[3], "elsewhere")) where.sun_path[0] = '-';
    uid_t user = atoi(argv[2]);
    if (setresuid(user, user, user)) return 3;
    int silent = !strcmp(argv[3], "silent"), wrong = !strcmp(argv[3], "wrong"), says = !strcmp(argv[3], "hello");
    if (wrong) memset(hello, 'x', sizeof hello);
    for (;;) {
        int door = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (door < 0) { sleep(1); continue; }
        if (connect(door, (struct sockaddr *)&where, sizeof where)) { close(door); continue; }
        if (silent) continue;
        if (says || wrong) send(door, hello, sizeof hello, MSG_NOSIGNAL);
        close(door);
    }
}
