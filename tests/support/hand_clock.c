/* Preloaded into a server: its wall clock stands still at what a file says, in nanoseconds, until a test turns it.
   The monotonic clock, by which it counts its own time, is the system's. */
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
        const char *path = getenv("HAND_CLOCK");
        int file = path ? open(path, O_RDONLY) : -1;
        void *found = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *kept, PROT_READ, MAP_SHARED, file, 0);
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
    out->tv_sec = ns / 1000000000;
    out->tv_nsec = ns % 1000000000;
    return 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    int64_t ns = *now_ns();
    (void)zone;
    out->tv_sec = ns / 1000000000;
    out->tv_usec = ns / 1000 % 1000000;
    return 0;
}

time_t time(time_t *out)
{
    time_t now = *now_ns() / 1000000000;
    if (out)
        *out = now;
    return now;
}
