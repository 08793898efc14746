#include "agent.h"

#include "say.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
    PATIENCE_SECONDS = 30, /* wait for an agent; CMK_LOCK_TIMEOUT overrides it */
    ANSWER_SECONDS = 40,   /* wait for its answer after the request; it promises 30 */
    QUIET_SECONDS = 1,
    PAUSE_MILLISECONDS = 20,
};

static const char REMEDY[] = "install corepin with its component `cmk` (manifests/cmk) on this node, and see that"
                             " its agent runs there";

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* The socket is beside the binary, in the install directory. */
static const char *socket_folder(void)
{
    static char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0)
        return "/opt/bin"; /* no /proc here */
    path[length] = '\0';
    return dirname(path);
}

static struct sockaddr_un address(void)
{
    static const char name[] = "/cmk.sock";
    struct sockaddr_un socket = {.sun_family = AF_UNIX};
    const char *folder = socket_folder();
    if (strlen(folder) + sizeof name > sizeof socket.sun_path)
        folder = "/opt/bin"; /* no socket path would fit there */
    strcpy(socket.sun_path, folder);
    strcat(socket.sun_path, name);
    return socket;
}

/* Connect within this time: while the queue of an agent that hangs is full, a connection waits. -1 with errno. */
static int connected(const struct sockaddr_un *there, double seconds)
{
    struct timeval limit = {.tv_sec = (time_t)seconds};
    limit.tv_usec = (suseconds_t)((seconds - (double)limit.tv_sec) * 1e6);
    limit.tv_usec += limit.tv_sec == 0 && limit.tv_usec == 0; /* zero would be no limit */
    int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (sock >= 0 && setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0 &&
        connect(sock, (const struct sockaddr *)there, sizeof *there) == 0)
        return sock;
    if (sock >= 0) {
        int reason = errno == EAGAIN ? ETIMEDOUT : errno;
        close(sock);
        errno = reason;
    }
    return -1;
}

int agent_is_there(void)
{
    struct sockaddr_un there = address();
    int sock = connected(&there, QUIET_SECONDS);
    if (sock >= 0)
        close(sock);
    return sock >= 0;
}

static int send_all(int sock, const char *request)
{
    size_t length = strlen(request);
    return send(sock, request, length, MSG_NOSIGNAL) == (ssize_t)length;
}

/* Read until the other side closes; 0 after an error or too long a time, with errno, and for too many bytes. */
static size_t read_all(int sock, char *bytes, size_t room)
{
    double until = now() + ANSWER_SECONDS;
    for (size_t length = 0; length < room;) {
        struct pollfd readable = {.fd = sock, .events = POLLIN};
        double left = until - now();
        if (left <= 0 || poll(&readable, 1, (int)(left * 1e3) + 1) <= 0) {
            errno = ETIMEDOUT;
            return 0;
        }
        ssize_t came = recv(sock, bytes + length, room - length, 0);
        if (came < 0)
            return 0;
        if (came == 0)
            return length;
        length += (size_t)came;
    }
    return 0;
}

static struct answer talk(int sock, const char *request)
{
    enum { ROOM = HEAD_MOST + BODY_MOST + 1 };
    static char bytes[ROOM + 1]; /* and a zero; unused pages are never allocated */
    size_t length = send_all(sock, request) ? read_all(sock, bytes, ROOM) : 0;
    bytes[length] = '\0';
    return answer_read(bytes, length);
}

static double patience(void)
{
    const char *text = getenv("CMK_LOCK_TIMEOUT");
    char *end = NULL;
    double seconds = text ? strtod(text, &end) : 0;
    int is_number = text && end != text && *end == '\0' && seconds >= 0 && seconds <= 86400;
    return is_number ? seconds : PATIENCE_SECONDS;
}

static void pause_until_next(void)
{
    struct timespec pause = {.tv_nsec = PAUSE_MILLISECONDS * 1000000L};
    nanosleep(&pause, NULL);
}

struct answer agent_ask(const char *request)
{
    struct sockaddr_un there = address();
    double started = now(), allowed = patience(), waited = 0;
    int is_told = 0;
    for (;;) {
        double left = allowed - waited;
        int sock = connected(&there, !is_told && left > QUIET_SECONDS ? QUIET_SECONDS : left), reason = errno;
        if (sock >= 0) {
            errno = 0;
            struct answer answer = talk(sock, request);
            reason = errno;
            close(sock);
            if (answer.kind == ANSWER_GARBLED)
                say("the answer of the corepin agent at %s cannot be read: its version is another one; start the"
                    " pod again once the agent of this node is up to date", there.sun_path);
            if (answer.kind != ANSWER_PARTIAL)
                return answer;
        }
        waited = now() - started;
        if (waited >= allowed) {
            say("no corepin agent answers at %s (%s): %s", there.sun_path,
                reason ? strerror(reason) : "it ends in the middle", REMEDY);
            return (struct answer){ANSWER_PARTIAL, NULL, 0};
        }
        if (waited >= QUIET_SECONDS && !is_told++)
            say("waiting up to %.0f s for the corepin agent at %s", allowed, there.sun_path);
        pause_until_next();
    }
}
