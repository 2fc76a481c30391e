/* Keeps when timers were set for: a library to preload. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/timerfd.h>

enum { MOST = 64 };

int count;
/* Seconds. Negative: after the call. */
double times[MOST];

int timerfd_settime(int fd, int flags, const struct itimerspec *new, struct itimerspec *old)
{
    int (*call)(int, int, const struct itimerspec *, struct itimerspec *) = dlsym(RTLD_NEXT, "timerfd_settime");
    if (count < MOST) {
        double time = new->it_value.tv_sec + new->it_value.tv_nsec / 1e9;
        times[count++] = flags & TFD_TIMER_ABSTIME ? time : -time;
    }
    return call(fd, flags, new, old);
}
