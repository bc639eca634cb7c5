/* MPI and the lifeline.  The lifeline is TCP: the operating system closes a dead process's sockets at once, and its
 * keep-alive packets notice a machine that no longer answers; a process that is only slow, or stopped by a debugger,
 * stays alive. */
#include "core/distributed.h"

#include <stdlib.h>
#include <string.h>

#include "core/die.h"

static int rank, ranks = 1, local_rank;

int distributed_rank(void) { return rank; }
int distributed_ranks(void) { return ranks; }
int distributed_local_rank(void) { return local_rank; }

/* The variables in which Open MPI, MPICH and Intel's MPI (Hydra), and Slurm give a process its rank. */
static const char *const rank_names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID", NULL};
static const char *const size_names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", NULL};

/* The value of the first of these environment variables that is a number, or `otherwise`. */
static int environment_number(const char *const *names, int otherwise) {
    for (; *names; names++) {
        const char *text = getenv(*names);
        char *end;
        long value = text ? strtol(text, &end, 10) : -1;
        if (text && *text && !*end && value >= 0 && value < 1 << 24) return (int)value;
    }
    return otherwise;
}

/* Open MPI's mpirun, MPICH's and Intel's (Hydra), Slurm's srun with PMIx or PMI2.  A Slurm batch script has
 * SLURM_NTASKS too, but no job step of its own. */
bool distributed_launched(void) {
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", NULL};
    if (environment_number(sizes, -1) >= 0) return true;
    return getenv("SLURM_STEP_ID") && getenv("SLURM_PROCID") && !getenv("SLURM_PTY_PORT") &&
           environment_number((const char *const[]){"SLURM_STEP_NUM_TASKS", NULL}, 1) > 1;
}

#ifdef VIT_MPI

#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <mpi.h>
#include <xxhash.h>

#include "core/text_stream.h"

enum { HOST_SIZE = MPI_MAX_PROCESSOR_NAME };

static int core_share = 1;
static const char *last_words = "";
static char (*hosts)[HOST_SIZE]; /* [ranks] */

int distributed_core_share(void) { return core_share; }
void distributed_last_words(const char *text) { last_words = text; }

/* == The lifeline ================================================================================================= */

static atomic_bool closing;
static int *lines;      /* on rank 0 a socket per rank (its own is -1); on other ranks one socket, to rank 0 */
static int line_count;
static pthread_t watcher;
static bool watching;

/* Makes the connection fail if the other side does not respond for half a minute. */
static void keep_alive(int line) {
    int on = 1, idle = 10, interval = 5, count = 4, milliseconds = 30000;
    setsockopt(line, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(line, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(line, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(line, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(line, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof milliseconds);
}

/* The messages on the sockets: the number of a rank that died without a message, or that a rank has printed one. */
enum { HAS_SPOKEN = -1 };

static void tell(int32_t message) {
    for (int i = 0; i < line_count; i++)
        if (lines[i] >= 0 && send(lines[i], &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) continue;
}

/* Rank 0 forwards what it receives to all ranks. */
static void end_without(int32_t dead) {
    if (rank == 0) tell(dead);
    if (dead >= 0 && dead < ranks)
        warn("rank %d of %d (on %s) has died%s%s", dead, ranks, hosts[dead], *last_words ? ": " : "", last_words);
    _exit(1);
}

static void *watch(void *unused) {
    (void)unused;
    struct pollfd *polled = xcalloc((size_t)line_count, sizeof *polled, "lifelines");
    for (int i = 0; i < line_count; i++) polled[i] = (struct pollfd){.fd = lines[i], .events = POLLIN};
    while (!closing) {
        if (poll(polled, (nfds_t)line_count, 200) <= 0) continue;
        for (int i = 0; i < line_count && !closing; i++) {
            if (!polled[i].revents) continue;
            int32_t dead = rank == 0 ? i : 0, told;
            if (recv(polled[i].fd, &told, sizeof told, MSG_DONTWAIT) == sizeof told) dead = told;
            if (!closing) end_without(dead);
        }
    }
    free(polled);
    return NULL;
}

/* Rank 0 opens a listening socket; *port is its port, or 0 on failure. */
static int listen_for_ranks(uint16_t *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t size = sizeof address;
    int door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *port = 0;
    if (door >= 0 && bind(door, (struct sockaddr *)&address, size) == 0 && listen(door, ranks) == 0 &&
        getsockname(door, (struct sockaddr *)&address, &size) == 0)
        *port = ntohs(address.sin_port);
    return door;
}

static bool receive_all(int line, void *data, size_t bytes) {
    struct pollfd polled = {.fd = line, .events = POLLIN};
    return poll(&polled, 1, 10000) > 0 && recv(line, data, bytes, MSG_WAITALL) == (ssize_t)bytes;
}

/* A connecting rank sends the run's secret, which distinguishes it from other programs. */
typedef struct {
    uint64_t secret;
    int32_t rank;
} Greeting;

static bool accept_ranks(int door, uint64_t secret) {
    for (int missing = ranks - 1; missing > 0;) {
        struct pollfd polled = {.fd = door, .events = POLLIN};
        Greeting greeting;
        if (poll(&polled, 1, 20000) <= 0) return false;
        int line = accept(door, NULL, NULL);
        if (line < 0) continue;
        if (!receive_all(line, &greeting, sizeof greeting) || greeting.secret != secret || greeting.rank < 1 ||
            greeting.rank >= ranks || lines[greeting.rank] >= 0) {
            close(line);
            continue;
        }
        keep_alive(line);
        lines[greeting.rank] = line;
        missing--;
    }
    return true;
}

static bool call_rank_0(const char *host, uint16_t port, uint64_t secret) {
    char service[8];
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found = NULL;
    Greeting greeting;
    memset(&greeting, 0, sizeof greeting);
    greeting.secret = secret;
    greeting.rank = rank;
    snprintf(service, sizeof service, "%u", (unsigned)port);
    if (!port || getaddrinfo(host, service, &hints, &found) != 0) return false;
    int line = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = line >= 0 && connect(line, found->ai_addr, found->ai_addrlen) == 0 &&
              send(line, &greeting, sizeof greeting, MSG_NOSIGNAL) == sizeof greeting;
    freeaddrinfo(found);
    if (ok) keep_alive(line);
    lines[0] = ok ? line : -1;
    return ok;
}

/* If machines cannot reach each other by host name, only mpirun itself notices a rank that dies. */
static void lifeline_open(void) {
    struct {
        uint64_t secret;
        uint16_t port;
    } meeting = {0};
    int door = -1;
    line_count = rank == 0 ? ranks : 1;
    lines = xcalloc((size_t)line_count, sizeof *lines, "lifelines");
    for (int i = 0; i < line_count; i++) lines[i] = -1;
    if (rank == 0) {
        door = listen_for_ranks(&meeting.port);
        meeting.secret = (uint64_t)(MPI_Wtime() * 1e6) * 0x9E3779B97F4A7C15u ^ (uint64_t)getpid();
    }
    distributed_broadcast(&meeting, sizeof meeting);
    bool near = strcmp(hosts[0], hosts[rank]) == 0;
    bool ok = rank == 0 || call_rank_0(near ? "127.0.0.1" : hosts[0], meeting.port, meeting.secret);
    bool all = !distributed_any(!ok);
    if (rank == 0 && all) all = accept_ranks(door, meeting.secret);
    if (door >= 0) close(door);
    all = !distributed_any(!all);
    if (!all) {
        if (rank == 0) warn("the machines cannot reach each other: only the launcher will notice a rank that dies");
        return;
    }
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before); /* signals go to the main thread */
    watching = pthread_create(&watcher, NULL, watch, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* == MPI ========================================================================================================== */

static bool mpi_running(void) {
    int started = 0, finished = 0;
    MPI_Initialized(&started);
    MPI_Finalized(&finished);
    return started && !finished;
}

static void leave(int status, const char *message);

static void mpi_start(void) {
    int provided;
    if (mpi_running()) return;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) die("MPI does not start");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    die_as_rank(rank, ranks, leave);
}

/* == Checks before the start ====================================================================================== */

static bool begun; /* all ranks have passed the checks */

/* A rank's error before the start; status 0: none. */
typedef struct {
    int status;
    char message[1024];
} Report;

/* Collective: all ranks call this, and it returns if none has an error.  If several have the same message, the lowest
 * of them prints it. */
static void report_to_all(int status, const char *message) {
    Report *all = xcalloc((size_t)ranks, sizeof *all, "what ranks report");
    bool said = false;
    int ending = 0;
    all[rank].status = status;
    snprintf(all[rank].message, sizeof all[rank].message, "%s", message);
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, sizeof *all, MPI_BYTE, MPI_COMM_WORLD);
    for (int r = 0; r < ranks; r++) {
        if (all[r].status && !ending) ending = all[r].status;
        said |= r < rank && all[r].status && !strcmp(all[r].message, all[rank].message);
    }
    free(all);
    if (!ending) return;
    if (status && !said) die_say(message);
    MPI_Finalize();
    exit(ending);
}

/* When a rank dies, all end.  If all ranks have the same error, rank 0 prints it, writes the run's page and ends the
 * others.  They wait three seconds for that, and otherwise print their own message. */
static void leave(int status, const char *message) {
    static bool leaving;
    if (leaving) {
        die_say(message);
        _exit(status);
    }
    leaving = true;
    closing = true;
    if (ranks > 1 && !begun) {
        mpi_start();
        report_to_all(status, message);
    }
    if (rank > 0 && mpi_running()) usleep(3000000 + 50000 * (unsigned)(rank < 40 ? rank : 40));
    die_say(message);
    die_do_last(message);
    if (watching) tell(HAS_SPOKEN);
    if (mpi_running()) MPI_Abort(MPI_COMM_WORLD, status);
    exit(status);
}

/* A hash of the executable, 0 if it cannot be read. */
static uint64_t program_hash(void) {
    struct stat info;
    uint64_t hash = 0;
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    size_t size = fstat(file, &info) == 0 ? (size_t)info.st_size : 0;
    void *bytes = size ? mmap(NULL, size, PROT_READ, MAP_PRIVATE, file, 0) : MAP_FAILED;
    if (bytes != MAP_FAILED) {
        hash = XXH3_64bits(bytes, size);
        munmap(bytes, size);
    }
    close(file);
    return hash;
}

/* Finds the first line that differs between this rank's settings and rank 0's. */
static void refuse_difference(const char *mine, const char *first) {
    const char *a = mine, *b = first;
    for (;;) {
        int m = (int)strcspn(a, "\n"), n = (int)strcspn(b, "\n");
        if (m != n || strncmp(a, b, (size_t)m) || !a[m])
            die_usage("%.*s, but rank 0 has %.*s: all ranks need the same settings", m < 200 ? m : 200, a,
                      n < 200 ? n : 200, b);
        a += m + 1;
        b += n + 1;
    }
}

/* Checks that all ranks run the same program with the same settings. */
static void compare_settings(const char *mine) {
    struct {
        uint64_t hash;
        size_t length;
    } own = {program_hash(), strlen(mine)}, first = own;
    distributed_broadcast(&first, sizeof first);
    char *text = xcalloc(first.length + 1, 1, "settings");
    if (rank == 0) memcpy(text, mine, own.length);
    distributed_broadcast(text, first.length);
    if (own.hash && first.hash && own.hash != first.hash)
        die_usage("this build of the program is not rank 0's: all ranks need the same one");
    if (strcmp(mine, text)) refuse_difference(mine, text);
    free(text);
}

void distributed_begin(void) {
    static const char *const local_names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", NULL};
    if (!distributed_launched()) return;
    rank = environment_number(rank_names, 0);
    ranks = environment_number(size_names, 1);
    local_rank = environment_number(local_names, 0);
    die_as_rank(rank, ranks, leave);
}

/* Counts the ranks with the same CPU affinity; ranks bound to different cores do not share them. */
static void cores_compare(MPI_Comm machine) {
    cpu_set_t mine;
    int count;
    MPI_Comm_size(machine, &count);
    cpu_set_t *all = xcalloc((size_t)count, sizeof *all, "core masks");
    CPU_ZERO(&mine);
    if (sched_getaffinity(0, sizeof mine, &mine) == 0) {
        MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, machine);
        core_share = 0;
        for (int i = 0; i < count; i++) core_share += CPU_EQUAL(&mine, &all[i]) != 0;
    }
    free(all);
}

void distributed_open(const char *settings) {
    int length;
    MPI_Comm machine;
    if (!distributed_launched()) return;
    mpi_start();
    report_to_all(0, "");
    compare_settings(settings);
    report_to_all(0, "");
    begun = true;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &machine);
    MPI_Comm_rank(machine, &local_rank);
    cores_compare(machine);
    MPI_Comm_free(&machine);
    hosts = xcalloc((size_t)ranks, sizeof *hosts, "host names");
    MPI_Get_processor_name(hosts[rank], &length);
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, hosts, HOST_SIZE, MPI_CHAR, MPI_COMM_WORLD);
    if (ranks > 1) lifeline_open();
}

void distributed_close(void) {
    if (!mpi_running()) return;
    closing = true;
    MPI_Barrier(MPI_COMM_WORLD);
    if (watching) pthread_join(watcher, NULL);
    for (int i = 0; i < line_count; i++)
        if (lines[i] >= 0) close(lines[i]);
    watching = false;
    free(lines);
    free(hosts);
    MPI_Finalize();
    ranks = 1; /* a rank that goes on does so alone */
}

void distributed_sum(double *values, size_t count) {
    enum { MOST = 1 << 20 };
    for (size_t at = 0; ranks > 1 && at < count; at += MOST)
        MPI_Allreduce(MPI_IN_PLACE, values + at, count - at < MOST ? (int)(count - at) : MOST, MPI_DOUBLE, MPI_SUM,
                      MPI_COMM_WORLD);
}

bool distributed_agree(double value, double share) {
    double ends[2] = {value, -value};
    if (ranks > 1) MPI_Allreduce(MPI_IN_PLACE, ends, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return ends[0] + ends[1] <= share * fabs(ends[0]);
}

char *distributed_tally(const char *word) {
    enum { WORD_SIZE = 32 };
    int kinds = 0;
    if (ranks < 2) return NULL;
    char (*words)[WORD_SIZE] = xcalloc((size_t)ranks, sizeof *words, "words of ranks");
    snprintf(words[rank], sizeof *words, "%s", word);
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, words, WORD_SIZE, MPI_CHAR, MPI_COMM_WORLD);
    TextStream text;
    FILE *out = text_open(&text);
    for (int r = 0; r < ranks; r++) {
        int before = 0, count = 0;
        for (int i = 0; i < ranks; i++) {
            count += !strcmp(words[i], words[r]);
            before += i < r && !strcmp(words[i], words[r]);
        }
        if (!before) fprintf(out, "%s%s on %d", kinds++ ? ", " : "", words[r], count);
    }
    char *tally = text_close(&text, "the words of ranks");
    free(words);
    if (kinds > 1) return tally;
    free(tally);
    return NULL;
}

void distributed_broadcast(void *data, size_t bytes) {
    enum { MOST = 1 << 30 };
    for (size_t at = 0; ranks > 1 && at < bytes; at += MOST)
        MPI_Bcast((char *)data + at, bytes - at < MOST ? (int)(bytes - at) : MOST, MPI_BYTE, 0, MPI_COMM_WORLD);
}

void *distributed_gather(const void *own, size_t bytes, size_t *total) {
    enum { MOST = 1 << 30 };
    double *counts = xcalloc((size_t)ranks, sizeof *counts, "what ranks exchange");
    size_t at = 0;
    counts[rank] = (double)bytes;
    distributed_sum(counts, (size_t)ranks);
    *total = 0;
    for (int r = 0; r < ranks; r++) *total += (size_t)counts[r];
    char *all = xcalloc(*total + 1, 1, "what ranks exchange");
    for (int r = 0; r < ranks; r++) {
        size_t count = (size_t)counts[r];
        if (r == rank && count) memcpy(all + at, own, count);
        for (size_t i = 0; ranks > 1 && i < count; i += MOST)
            MPI_Bcast(all + at + i, count - i < MOST ? (int)(count - i) : MOST, MPI_BYTE, r, MPI_COMM_WORLD);
        at += count;
    }
    free(counts);
    return all;
}

#else /* without MPI */

#include <unistd.h>

static int own_number; /* index of this process among those that the launcher started */

/* All processes have the same message: only the first prints it. */
static void leave(int status, const char *message) {
    if (own_number == 0) die_say(message);
    exit(status);
}

void distributed_begin(void) {
    int started = distributed_launched() ? environment_number(size_names, 1) : 1;
    if (started < 2) return;
    own_number = environment_number(rank_names, 0);
    if (own_number) sleep(3); /* the launcher ends all when one exits: give process 0 time to print */
    die_as_rank(own_number, started, leave);
    die_usage("%d processes were started, but this build has no MPI: install libopenmpi-dev and run make again",
              started);
}

void distributed_open(const char *settings) { (void)settings; }
void distributed_close(void) {}
int distributed_core_share(void) { return 1; }
void distributed_last_words(const char *text) { (void)text; }
void distributed_sum(double *values, size_t count) { (void)values, (void)count; }
bool distributed_agree(double value, double share) { return (void)share, value == value; }
char *distributed_tally(const char *word) { return (void)word, NULL; }
void distributed_broadcast(void *data, size_t bytes) { (void)data, (void)bytes; }
void *distributed_gather(const void *own, size_t bytes, size_t *total) {
    char *all = xcalloc(bytes + 1, 1, "what ranks exchange");
    if (bytes) memcpy(all, own, bytes);
    *total = bytes;
    return all;
}

#endif

bool distributed_any(bool condition) {
    double count = condition;
    distributed_sum(&count, 1);
    return count > 0;
}
