/* What the conformance tests install: it does what its argument says, and knows every function of
 * the System API.
 *
 * An argument is a program: operations of one byte, some followed by a constant, that work on a
 * small stack of integers and byte strings. Each imported function is one operation, with exactly
 * the function's parameters and result, so that a program can pass any address and any size, wrong
 * ones too. Byte strings become addresses and sizes by SPLIT, memory becomes a byte string by JOIN.
 *
 * The memory of a program is discarded when its message ends. Kept until the next
 * installation: one byte string (KEEP, KEPT), one program for each hook (HOOK) and the programs of
 * callbacks (CALLBACK).
 *
 * Built with HEARTBEAT it exports a heartbeat too; without, it costs nothing while it is not called.
 */
#include "../include/ic0.h"
#include "imports.h"

typedef void none;
typedef uint32_t w; /* a word, of 32 bit */
typedef uint64_t d; /* a double word */

enum { STACK = 64, KEPT_BYTES = 65536, PROGRAMS_BYTES = 262144, CALLBACKS = 4096, DEPTH = 8 };
enum { WASM_PAGE = 65536 };

/* Operations; [a b] are taken from the stack, the last one from its top. "Bytes" and "program" are
 * byte strings. */
enum operation {
    INT = 1,      /* followed by eight bytes, least significant first: pushes an integer */
    BYTES = 2,    /* followed by a length of four bytes and the bytes: pushes them */
    SPLIT = 3,    /* [bytes]: pushes its address and its size */
    JOIN = 4,     /* [address size]: pushes the byte string there */
    ROOM = 5,     /* [size]: pushes a byte string of zeros */
    COPY = 6,     /* followed by one byte n: pushes the value n below the top once more */
    DROP = 7,     /* [any] */
    SWAP = 8,     /* [a b]: pushes b, a */
    CONCAT = 9,   /* [bytes bytes]: pushes both as one */
    TO_BYTES = 10, /* [integer]: pushes its eight bytes, least significant first */
    TO_INT = 11,  /* [bytes]: pushes the integer that its first eight bytes (or fewer) are */
    ADD = 12,     /* [a b]: pushes a + b modulo 2^64 */
    EQUAL = 13,   /* [a b]: integers or byte strings; pushes 1 or 0 */
    LESS = 14,    /* [a b]: pushes whether a < b */
    IF = 15,      /* [integer], followed by a length: skips this many bytes if it is 0 */
    REPEAT = 16,  /* [integer], followed by a length: runs this many bytes as often */
    DO = 17,      /* [program]: does it on the same stack */
    KEEP = 18,    /* [bytes]: keeps a copy in place of what was kept */
    KEPT = 19,    /* pushes what is kept */
    HOOK = 20,    /* [program hook]: what the hook will do; see enum hook */
    CALLBACK = 21, /* [program]: pushes table index and environment of a callback that does it */
    HEAP_GROW = 22, /* [pages]: pushes the former size of memory in pages, or 2^32 - 1 */
    HEAP_PAGES = 23, /* pushes the size of memory in pages */
    UNREACHABLE = 24, /* traps by the instruction of that name */
    RETURN = 25,  /* ends the message without a trap */
    STORE = 26,   /* [address integer]: writes one byte of memory */
    IMPORTS = 64, /* and up: the imported functions */
};

enum hook { INSPECT_MESSAGE, PRE_UPGRADE, GLOBAL_TIMER, HEARTBEAT_HOOK, LOW_MEMORY, HOOKS };

/* ---- imports ---- */

#define TYPES0() void
#define TYPES1(a) a
#define TYPES2(a, b) a, b
#define TYPES3(a, b, c) a, b, c
#define TYPES4(a, b, c, e) a, b, c, e
#define TYPES5(a, b, c, e, f) a, b, c, e, f
#define TYPES8(a, b, c, e, f, g, h, i) a, b, c, e, f, g, h, i

#define VALUES0()
#define VALUES1(a) (a)from[0].number
#define VALUES2(a, b) VALUES1(a), (b)from[1].number
#define VALUES3(a, b, c) VALUES2(a, b), (c)from[2].number
#define VALUES4(a, b, c, e) VALUES3(a, b, c), (e)from[3].number
#define VALUES5(a, b, c, e, f) VALUES4(a, b, c, e), (f)from[4].number
#define VALUES8(a, b, c, e, f, g, h, i) \
    VALUES5(a, b, c, e, f), (g)from[5].number, (h)from[6].number, (i)from[7].number

#define DECLARE(result, name, many, ...) \
    extern result raw_##name(TYPES##many(__VA_ARGS__)) IC0(name);
EACH_IMPORT(DECLARE)

#define NUMBER(result, name, many, ...) number_of_##name,
enum import { EACH_IMPORT(NUMBER) };

/* ---- memory ---- */

struct value {
    uint64_t number; /* of an integer */
    const uint8_t *bytes; /* 0 for an integer */
    uint32_t size;
};
struct program {
    const uint8_t *at;
    uint32_t size;
};

static struct value stack[STACK];
static uint32_t depth;
static uint8_t kept[KEPT_BYTES];
static uint32_t kept_size;
static uint8_t programs[PROGRAMS_BYTES];
static uint32_t programs_size;
static struct program callbacks[CALLBACKS];
static uint32_t callbacks_count;
static struct program hooks[HOOKS];

/* Memory from here on is the message's own. */
extern uint8_t __heap_base;
static uint8_t *room_next;

static uint32_t length(const char *text) {
    uint32_t n = 0;
    while (text[n]) n++;
    return n;
}

static void __attribute__((noreturn)) fail(const char *text) { ic0_trap(text, length(text)); }

static uint8_t *room(uint32_t size) {
    uint8_t *const at = room_next;
    const uint32_t rest = 0xFFFFFFFFu - (uint32_t)at;
    if (size > rest) fail("universal: no room");
    const uint32_t end = (uint32_t)at + size;
    const uint32_t pages = (uint32_t)(((uint64_t)end + WASM_PAGE - 1) / WASM_PAGE);
    const uint32_t have = (uint32_t)__builtin_wasm_memory_size(0);
    if (pages > have && __builtin_wasm_memory_grow(0, pages - have) == (__SIZE_TYPE__)-1)
        fail("universal: memory.grow was refused");
    room_next = at + size;
    return at;
}

/* The compiler must not make a call of memcpy or memset out of these: there is none. */
static void copy(volatile uint8_t *to, const uint8_t *from, uint32_t size) {
    for (uint32_t i = 0; i < size; i++) to[i] = from[i];
}

static uint8_t *clear_room(uint32_t size) {
    uint8_t *const at = room(size);
    for (volatile uint8_t *byte = at; byte < at + size; byte++) *byte = 0;
    return at;
}

/* ---- the stack ---- */

static void push(struct value value) {
    if (depth == STACK) fail("universal: the stack is full");
    stack[depth++] = value;
}

static void push_number(uint64_t number) { push((struct value){number, 0, 0}); }

static void push_bytes(const uint8_t *bytes, uint32_t size) {
    push((struct value){0, bytes, size});
}

static struct value pop(void) {
    if (!depth) fail("universal: the stack is empty");
    return stack[--depth];
}

/* The `many` integers on the top, the first pushed first. */
static const struct value *take(uint32_t many) {
    if (depth < many) fail("universal: the stack is empty");
    depth -= many;
    for (uint32_t i = 0; i < many; i++)
        if (stack[depth + i].bytes) fail("universal: an integer is wanted");
    return stack + depth;
}

static uint64_t pop_number(void) { return take(1)->number; }

static struct value pop_bytes(void) {
    const struct value value = pop();
    if (!value.bytes) fail("universal: a byte string is wanted");
    return value;
}

static struct program keep_program(struct value program) {
    if (program.size > PROGRAMS_BYTES - programs_size)
        fail("universal: too many programs are kept");
    uint8_t *const at = programs + programs_size;
    copy(at, program.bytes, program.size);
    programs_size += program.size;
    return (struct program){at, program.size};
}

static uint64_t little_endian(const uint8_t *bytes, uint32_t size) {
    uint64_t number = 0;
    for (uint32_t i = 0; i < size && i < 8; i++) number |= (uint64_t)bytes[i] << (8 * i);
    return number;
}

static int equal(struct value a, struct value b) {
    if (!a.bytes != !b.bytes || a.size != b.size || a.number != b.number) return 0;
    for (uint32_t i = 0; i < a.size; i++)
        if (a.bytes[i] != b.bytes[i]) return 0;
    return 1;
}

/* ---- operations ---- */

static void run_kept(uint32_t number);

#define RESULT_none(call) call
#define RESULT_w(call) push_number(call)
#define RESULT_d(call) push_number(call)
#define STEP(result, name, many, ...) \
    case number_of_##name: { \
        const struct value *const from = take(many); \
        (void)from; \
        RESULT_##result(raw_##name(VALUES##many(__VA_ARGS__))); \
        break; \
    }

static void import(uint32_t number) {
    switch (number) {
        EACH_IMPORT(STEP)
        default: fail("universal: no such operation");
    }
}

static void concat(void) {
    const struct value second = pop_bytes(), first = pop_bytes();
    uint8_t *const at = room(first.size + second.size);
    copy(at, first.bytes, first.size);
    copy(at + first.size, second.bytes, second.size);
    push_bytes(at, first.size + second.size);
}

static void keep(void) {
    const struct value value = pop_bytes();
    if (value.size > KEPT_BYTES) fail("universal: at most 65536 bytes are kept");
    copy(kept, value.bytes, value.size);
    kept_size = value.size;
}

/* What is kept, as it is now: a later KEEP does not change it. */
static void push_kept(void) {
    uint8_t *const at = room(kept_size);
    copy(at, kept, kept_size);
    push_bytes(at, kept_size);
}

static void hook(void) {
    const uint64_t number = pop_number();
    if (number >= HOOKS) fail("universal: no such hook");
    hooks[number] = keep_program(pop_bytes());
}

/* A program that is a callback already does not become one again: calls may continue forever. */
static void callback(void) {
    const struct value wanted = pop_bytes();
    uint32_t number = 0;
    while (number < callbacks_count &&
           !equal((struct value){0, callbacks[number].at, callbacks[number].size}, wanted))
        number++;
    if (number == CALLBACKS) fail("universal: too many callbacks");
    if (number == callbacks_count) callbacks[callbacks_count++] = keep_program(wanted);
    push_number((uint32_t)run_kept);
    push_number(number);
}

/* Operations on values alone; whether `operation` is one. */
static int on_values(uint8_t operation) {
    struct value a, b;
    switch (operation) {
        case SPLIT:
            a = pop_bytes();
            push_number((uint32_t)a.bytes);
            push_number(a.size);
            return 1;
        case JOIN:
            b.number = pop_number();
            a.number = pop_number();
            push_bytes((const uint8_t *)(uint32_t)a.number, (uint32_t)b.number);
            return 1;
        case ROOM:
            a.size = (uint32_t)pop_number();
            push_bytes(clear_room(a.size), a.size);
            return 1;
        case DROP: pop(); return 1;
        case SWAP:
            b = pop();
            a = pop();
            push(b);
            push(a);
            return 1;
        case CONCAT: concat(); return 1;
        case TO_BYTES: {
            a.number = pop_number();
            uint8_t *const at = room(8);
            copy(at, (const uint8_t *)&a.number, 8);
            push_bytes(at, 8);
            return 1;
        }
        case TO_INT:
            a = pop_bytes();
            push_number(little_endian(a.bytes, a.size));
            return 1;
        case ADD:
            b.number = pop_number();
            push_number(pop_number() + b.number);
            return 1;
        case EQUAL:
            b = pop();
            push_number((uint64_t)equal(pop(), b));
            return 1;
        case LESS:
            b.number = pop_number();
            push_number(pop_number() < b.number);
            return 1;
        default: return 0;
    }
}

/* Operations on what is kept and on memory; whether `operation` is one. */
static int on_state(uint8_t operation) {
    switch (operation) {
        case KEEP: keep(); return 1;
        case KEPT: push_kept(); return 1;
        case HOOK: hook(); return 1;
        case CALLBACK: callback(); return 1;
        case HEAP_GROW:
            push_number((uint32_t)__builtin_wasm_memory_grow(0, (uint32_t)pop_number()));
            return 1;
        case HEAP_PAGES: push_number((uint32_t)__builtin_wasm_memory_size(0)); return 1;
        case STORE: {
            const struct value *const from = take(2);
            *(volatile uint8_t *)(uint32_t)from[0].number = (uint8_t)from[1].number;
            return 1;
        }
        case UNREACHABLE: __builtin_trap();
        default: return 0;
    }
}

/* The constant of `size` bytes after the operation at `*at`. */
static const uint8_t *constant(const uint8_t **at, const uint8_t *end, uint32_t size) {
    const uint8_t *const found = *at;
    if (size > (uint32_t)(end - found)) fail("universal: the program ends within an operation");
    *at = found + size;
    return found;
}

/* Runs the operations from `at` to `end`; returns whether the message continues after them. */
static int run(const uint8_t *at, const uint8_t *end, uint32_t nesting) {
    if (nesting > DEPTH) fail("universal: nested too deeply");
    while (at < end) {
        const uint8_t operation = *at++;
        uint32_t size;
        if (operation >= IMPORTS) {
            import(operation - IMPORTS);
        } else if (operation == INT) {
            push_number(little_endian(constant(&at, end, 8), 8));
        } else if (operation == BYTES) {
            size = (uint32_t)little_endian(constant(&at, end, 4), 4);
            push_bytes(constant(&at, end, size), size);
        } else if (operation == COPY) {
            const uint32_t below = *constant(&at, end, 1);
            if (below >= depth) fail("universal: the stack is empty");
            push(stack[depth - 1 - below]);
        } else if (operation == IF || operation == REPEAT) {
            size = (uint32_t)little_endian(constant(&at, end, 4), 4);
            const uint8_t *const body = constant(&at, end, size);
            uint64_t times = pop_number();
            if (operation == IF) times = times != 0;
            for (; times; times--)
                if (!run(body, body + size, nesting + 1)) return 0;
        } else if (operation == DO) {
            const struct value program = pop_bytes();
            if (!run(program.bytes, program.bytes + program.size, nesting + 1)) return 0;
        } else if (operation == RETURN) {
            return 0;
        } else if (!on_values(operation) && !on_state(operation)) {
            fail("universal: no such operation");
        }
    }
    return 1;
}

/* ---- entry points ---- */

/* One message: nothing of an earlier one is on the stack or in its memory. */
static void message(struct program program) {
    depth = 0;
    run(program.at, program.at + program.size, 0);
}

static void run_argument(void) {
    room_next = &__heap_base;
    const uint32_t size = raw_msg_arg_data_size();
    uint8_t *const at = room(size);
    raw_msg_arg_data_copy((uint32_t)at, 0, size);
    message((struct program){at, size});
}

static void run_hook(enum hook number) {
    room_next = &__heap_base;
    message(hooks[number]);
}

static void run_kept(uint32_t number) {
    room_next = &__heap_base;
    message(callbacks[number]);
}

EXPORT("canister_init") void init(void) { run_argument(); }
EXPORT("canister_post_upgrade") void post_upgrade(void) { run_argument(); }
EXPORT("canister_pre_upgrade") void pre_upgrade(void) { run_hook(PRE_UPGRADE); }
EXPORT("canister_update update") void update(void) { run_argument(); }
EXPORT("canister_query query") void query(void) { run_argument(); }
EXPORT("canister_composite_query composite") void composite(void) { run_argument(); }
EXPORT("canister_global_timer") void global_timer(void) { run_hook(GLOBAL_TIMER); }
EXPORT("canister_on_low_wasm_memory") void low_memory(void) { run_hook(LOW_MEMORY); }

/* Without a program of its own it accepts everything. */
EXPORT("canister_inspect_message") void inspect_message(void) {
    if (hooks[INSPECT_MESSAGE].at)
        run_hook(INSPECT_MESSAGE);
    else
        raw_accept_message();
}

#ifdef HEARTBEAT
EXPORT("canister_heartbeat") void heartbeat(void) { run_hook(HEARTBEAT_HOOK); }
#endif
