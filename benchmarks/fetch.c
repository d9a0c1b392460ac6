/* Sends GET requests over several connections at a time and drops the bodies: what reads from a server cost without a library.
 *
 *     fetch PORT CONNECTIONS < REQUESTS
 *
 * A line of REQUESTS is a path and a byte range such as 0-99, or - for the whole file. An empty line ends a phase, whose
 * responses must arrive before the next phase begins. It connects first, and prints the milliseconds of the requests, their
 * CPU milliseconds, and the bytes of all bodies. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { ROOM = 1 << 18, HEAD = 16384 };

struct connection {
    int socket, is_busy;
    size_t filled; /* bytes of the head */
    long left;     /* bytes of the body; -1 while the head is incomplete */
    char head[HEAD];
};

static struct connection *connections;
static char (*requests)[512];
static size_t *phases, request_count, phase_count;
static char body[ROOM];

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double cpu(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

static void read_requests(void)
{
    char line[400], path[256], range[64];
    size_t room = 1 << 16;
    requests = malloc(room * sizeof *requests);
    phases = malloc(room * sizeof *phases);
    while (fgets(line, sizeof line, stdin) != NULL && request_count < room) {
        if (sscanf(line, "%255s %63s", path, range) != 2) {
            phases[phase_count++] = request_count;
            continue;
        }
        int has_range = strcmp(range, "-") != 0;
        snprintf(requests[request_count++], sizeof *requests, "GET %s HTTP/1.1\r\nHost: localhost\r\n%s%s%s\r\n", path,
                 has_range ? "Range: bytes=" : "", has_range ? range : "", has_range ? "\r\n" : "");
    }
    phases[phase_count++] = request_count;
}

static void send_request(struct connection *connection, size_t number)
{
    size_t size = strlen(requests[number]);
    connection->is_busy = 1;
    connection->filled = 0;
    connection->left = -1;
    if (send(connection->socket, requests[number], size, MSG_NOSIGNAL) != (ssize_t)size)
        fail("send");
}

/* Receive what has arrived. Returns the bytes of the body, and whether the response is complete. */
static size_t receive(struct connection *connection, int *is_complete)
{
    size_t total = 0;
    for (;;) {
        int is_head = connection->left < 0;
        ssize_t count = is_head ? recv(connection->socket, connection->head + connection->filled,
                                       HEAD - 1 - connection->filled, MSG_DONTWAIT)
                                : recv(connection->socket, body, ROOM, MSG_DONTWAIT);
        *is_complete = 0;
        if (count <= 0)
            return total;
        if (is_head) {
            connection->filled += (size_t)count;
            connection->head[connection->filled] = '\0';
            char *end = strstr(connection->head, "\r\n\r\n"), *length = strcasestr(connection->head, "Content-Length:");
            if (end == NULL)
                continue;
            if (length == NULL)
                fail("response");
            size_t rest = connection->filled - (size_t)(end + 4 - connection->head);
            connection->left = atol(length + 15) - (long)rest;
            total += rest;
        } else {
            connection->left -= count;
            total += (size_t)count;
        }
        if (connection->left == 0) {
            *is_complete = 1;
            return total;
        }
    }
}

int main(int argc, char **argv)
{
    if (argc != 3)
        fail("arguments");
    int count = atoi(argv[2]), poll = epoll_create1(0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(argv[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connections = calloc((size_t)count, sizeof *connections);
    read_requests();
    for (int i = 0; i < count; i++) {
        int handle = connections[i].socket = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(handle, (struct sockaddr *)&address, sizeof address) != 0)
            fail("connect");
        setsockopt(handle, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &connections[i]};
        epoll_ctl(poll, EPOLL_CTL_ADD, handle, &event);
    }
    double begin = seconds(), used = cpu();
    size_t next = 0, bytes = 0;
    for (size_t phase = 0; phase < phase_count; phase++) {
        size_t end = phases[phase], waiting = 0;
        for (int i = 0; i < count && next < end; i++, waiting++)
            send_request(&connections[i], next++);
        while (waiting > 0) {
            struct epoll_event events[64];
            int ready = epoll_wait(poll, events, 64, -1);
            for (int i = 0; i < ready; i++) {
                struct connection *connection = events[i].data.ptr;
                int is_complete;
                bytes += receive(connection, &is_complete);
                if (!is_complete)
                    continue;
                if (next < end)
                    send_request(connection, next++);
                else
                    waiting--;
            }
        }
    }
    printf("%.3f %.3f %zu\n", 1e3 * (seconds() - begin), 1e3 * (cpu() - used), bytes);
    return 0;
}
