// Preloaded: while it is on, a read that must not wait gives a page at most, as if the rest were not in the page cache.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define PAGE 4096

static volatile int on;
volatile unsigned long shortened;

void shorten(int now) { on = now; }

// The wait-free read has no function of its own in every C library, so it is made by number.
long syscall(long number, ...) {
    static __typeof__(&syscall) real;
    if (!real) real = dlsym(RTLD_NEXT, "syscall");
    va_list list;
    va_start(list, number);
    long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long);
    long d = va_arg(list, long), e = va_arg(list, long), f = va_arg(list, long);
    va_end(list);
    if (on && number == SYS_preadv2) {
        struct iovec part = *(struct iovec *)b;
        if (part.iov_len > PAGE) {
            part.iov_len = PAGE;
            shortened++;
        }
        return real(number, a, &part, c, d, e, f);
    }
    return real(number, a, b, c, d, e, f);
}
