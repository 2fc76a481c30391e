// Preloaded: while it is on, every second call of each of these functions is interrupted by a signal, as far as the caller sees.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static volatile int on;
volatile unsigned long interrupted;

void interrupt(int now) { on = now; }

static int hit(unsigned *calls) {
    if (!on || (*calls)++ % 2) return 0;
    interrupted++;
    errno = EINTR;
    return 1;
}

#define WRAP(type, name, parameters, arguments)                                        \
    type name parameters {                                                             \
        static __typeof__(&name) real;                                                 \
        static __thread unsigned calls;                                                \
        if (!real) real = dlsym(RTLD_NEXT, #name);                                     \
        return hit(&calls) ? -1 : real arguments;                                            \
    }

WRAP(ssize_t, recv, (int f, void *b, size_t n, int o), (f, b, n, o))
WRAP(ssize_t, recvmsg, (int f, struct msghdr *m, int o), (f, m, o))
WRAP(ssize_t, recvfrom, (int f, void *b, size_t n, int o, struct sockaddr *a, socklen_t *l), (f, b, n, o, a, l))
WRAP(int, recvmmsg, (int f, struct mmsghdr *m, unsigned n, int o, struct timespec *t), (f, m, n, o, t))
WRAP(ssize_t, send, (int f, const void *b, size_t n, int o), (f, b, n, o))
WRAP(ssize_t, sendmsg, (int f, const struct msghdr *m, int o), (f, m, o))
WRAP(ssize_t, sendto, (int f, const void *b, size_t n, int o, const struct sockaddr *a, socklen_t l), (f, b, n, o, a, l))
WRAP(int, sendmmsg, (int f, struct mmsghdr *m, unsigned n, int o), (f, m, n, o))
WRAP(ssize_t, sendfile, (int to, int from, off_t *at, size_t n), (to, from, at, n))
WRAP(ssize_t, sendfile64, (int to, int from, off_t *at, size_t n), (to, from, at, n))
WRAP(ssize_t, read, (int f, void *b, size_t n), (f, b, n))
WRAP(ssize_t, readv, (int f, const struct iovec *v, int n), (f, v, n))
WRAP(ssize_t, writev, (int f, const struct iovec *v, int n), (f, v, n))
WRAP(int, accept4, (int f, struct sockaddr *a, socklen_t *l, int o), (f, a, l, o))
WRAP(int, epoll_wait, (int e, struct epoll_event *v, int n, int t), (e, v, n, t))
WRAP(int, epoll_pwait2, (int e, struct epoll_event *v, int n, const struct timespec *t, const sigset_t *s), (e, v, n, t, s))

ssize_t write(int f, const void *b, size_t n) {
    static __typeof__(&write) real;
    static __thread unsigned calls;
    if (!real) real = dlsym(RTLD_NEXT, "write");
    // The write that wakes a poller has eight bytes. The system does not interrupt it.
    return n != 8 && hit(&calls) ? -1 : real(f, b, n);
}

int connect(int f, const struct sockaddr *a, socklen_t l) {
    static __typeof__(&connect) real;
    static __thread unsigned calls;
    if (!real) real = dlsym(RTLD_NEXT, "connect");
    int done = real(f, a, l);
    // The connection is made in the background, whichever of the two it says.
    if (done < 0 && errno == EINPROGRESS) hit(&calls);
    return done;
}
