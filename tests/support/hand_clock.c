/* Preloaded into a server: the wall clock returns the nanoseconds in a file, the monotonic clock is unchanged. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *now_ns(void)
{
    static volatile int64_t *kept;
    if (!kept) {
        int file = open(getenv("HAND_CLOCK"), O_RDONLY);
        void *found = mmap(NULL, sizeof *kept, PROT_READ, MAP_SHARED, file, 0);
        if (found == MAP_FAILED)
            _exit(70);
        close(file);
        kept = found;
    }
    return kept;
}

int clock_gettime(clockid_t id, struct timespec *out)
{
    static int (*system_clock)(clockid_t, struct timespec *);
    if (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE) {
        if (!system_clock)
            system_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
        return system_clock(id, out);
    }
    int64_t ns = *now_ns();
    *out = (struct timespec){ns / 1000000000, ns % 1000000000};
    return 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    int64_t us = *now_ns() / 1000;
    *out = (struct timeval){us / 1000000, us % 1000000};
    return 0;
}

time_t time(time_t *out)
{
    time_t now = *now_ns() / 1000000000;
    return out ? *out = now : now;
}
