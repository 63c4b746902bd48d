/* The hook in our CDI specs: fails the start of any container but the one that the spec is for.
 *
 *     fracgpu-verify UID NAME...
 *     fracgpu-verify --limits FILE
 *
 * In its second form it runs in the container, and fails the start unless the node agent has written
 * into FILE that the container's limits stand.
 *
 * The OCI runtime runs it on the host before the container's first process, and writes the state
 * of the container to its standard input: JSON, with the annotations that containerd or CRI-O set.
 * It needs neither a C library nor a shell, so that it runs on every host. */

enum { MOST = 1 << 20, DEEPEST = 64 };

#if defined(__x86_64__)
enum { SYS_READ = 0, SYS_WRITE = 1, SYS_OPENAT = 257, SYS_EXIT = 231 };

static long call(long number, long a, long b, long c)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
    return result;
}

__asm__(".globl _start\n_start:\n mov %rsp, %rdi\n and $-16, %rsp\n call begin\n");
#elif defined(__aarch64__)
enum { SYS_READ = 63, SYS_WRITE = 64, SYS_OPENAT = 56, SYS_EXIT = 94 };

static long call(long number, long a, long b, long c)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
}

__asm__(".globl _start\n_start:\n mov x0, sp\n bl begin\n");
#endif

enum { AT_HERE = -100, READ_ONLY = 0 };

static char state[MOST];
static const char *at, *end;

/* Where the runtimes write whose container it is (docs/decisions/0059). */
static const char *const uid_keys[] = {"io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid"};
static const char *const name_keys[] = {"io.kubernetes.cri.container-name",
                                        "io.kubernetes.container.name"};

static long length(const char *text)
{
    long count = 0;
    while (text[count])
        count++;
    return count;
}

__attribute__((noreturn)) static void fail(const char *why)
{
    static const char prefix[] = "fracgpu: ";
    call(SYS_WRITE, 2, (long)prefix, sizeof prefix - 1);
    call(SYS_WRITE, 2, (long)why, length(why));
    call(SYS_WRITE, 2, (long)"\n", 1);
    call(SYS_EXIT, 1, 0, 0);
    for (;;)
        ;
}

struct text {
    const char *from;
    long bytes;
};

static int is(struct text found, const char *wanted)
{
    if (found.bytes != length(wanted))
        return 0;
    for (long i = 0; i < found.bytes; i++)
        if (found.from[i] != wanted[i])
            return 0;
    return 1;
}

static char next(void)
{
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r'))
        at++;
    if (at == end)
        fail("the state of the container is cut short");
    return *at;
}

static void expect(char wanted)
{
    if (next() != wanted)
        fail("the state of the container is no JSON");
    at++;
}

/* A string as it is written. One with a backslash is none of ours, and equals nothing. */
static struct text string(void)
{
    expect('"');
    struct text found = {at, 0};
    while (at < end && *at != '"')
        at += *at == '\\' ? 2 : 1;
    if (at >= end)
        fail("the state of the container is cut short");
    found.bytes = at++ - found.from;
    return found;
}

static void skip(int depth)
{
    char first = next();
    if (depth > DEEPEST)
        fail("the state of the container is nested too deeply");
    if (first == '"') {
        string();
    } else if (first == '{' || first == '[') {
        char last = first == '{' ? '}' : ']';
        at++;
        while (next() != last) {
            if (first == '{') {
                string();
                expect(':');
            }
            skip(depth + 1);
            if (next() != last)
                expect(',');
        }
        at++;
    } else {
        while (at < end && *at != ',' && *at != '}' && *at != ']' && *at > ' ')
            at++;
    }
}

static int one_of(struct text found, const char *const *wanted, int count)
{
    for (int i = 0; i < count; i++)
        if (is(found, wanted[i]))
            return 1;
    return 0;
}

/* Compare each annotation that says whose container it is; there must be both. */
static void annotations(const char *const *args, int count)
{
    int uids = 0, names = 0;
    expect('{');
    while (next() != '}') {
        struct text key = string();
        expect(':');
        if (one_of(key, uid_keys, 2)) {
            if (!is(string(), args[1]))
                fail("the cards were prepared for a container of another pod; it will be tried again");
            uids++;
        } else if (one_of(key, name_keys, 2)) {
            if (!one_of(string(), args + 2, count - 2))
                fail("the cards were prepared for another container of the pod; enable NRI in the "
                     "container runtime");
            names++;
        } else {
            skip(0);
        }
        if (next() != '}')
            expect(',');
    }
    at++;
    if (!uids || !names)
        fail("the container runtime does not say whose container this is; enable NRI in it");
}

__attribute__((noreturn)) static void check_limits(const char *file)
{
    /* The fourth argument, which only a file that is made has, is whatever the register holds. */
    long opened = call(SYS_OPENAT, AT_HERE, (long)file, READ_ONLY);
    if (opened < 0 || call(SYS_READ, opened, (long)state, 1) != 1)
        fail("the limits of this container were not proved; it will be tried again");
    call(SYS_EXIT, 0, 0, 0);
    for (;;)
        ;
}

__attribute__((used, noreturn)) void begin(const long *stack)
{
    const char *const *args = (const char *const *)(stack + 1);
    int found = 0;
    long bytes = 0, more;
    if (stack[0] < 3)
        fail("want the UID of a pod and the names of its containers");
    if (is((struct text){args[1], length(args[1])}, "--limits"))
        check_limits(args[2]);
    while (bytes < MOST && (more = call(SYS_READ, 0, (long)(state + bytes), MOST - bytes)) > 0)
        bytes += more;
    if (bytes == MOST)
        fail("the state of the container is too long");
    at = state;
    end = state + bytes;
    expect('{');
    while (next() != '}') {
        struct text key = string();
        expect(':');
        if (is(key, "annotations")) {
            annotations(args, (int)stack[0]);
            found++;
        } else {
            skip(0);
        }
        if (next() != '}')
            expect(',');
    }
    if (found != 1)
        fail("the container runtime does not say whose container this is; enable NRI in it");
    call(SYS_EXIT, 0, 0, 0);
    for (;;)
        ;
}
