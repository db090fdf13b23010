/* The canister of `thimble-lab hammer`. Arguments and replies are little-endian words, not Candid.
 *
 * Memory is written in pages of 4096 bytes whose content follows from the canister's seed, the page's number and the
 * generation that wrote it, so that a reader of a page, here or in the driver, knows every byte of it:
 *
 *     word 0 = generation
 *     word i = mix(mix(mix(seed) ^ page) ^ generation) ^ (i * STEP)        1 <= i < 512
 *
 * Generations are assigned here, one per write, and messages of a canister run one after the other: a page whose
 * generation is below one that was acknowledged has lost a write. Generation 0 is an unwritten page: all zero.
 * Pages of the heap region have bit 40 set in their number, so that heap and stable memory never hold the same page. */
#include "../include/ic0.h"

typedef uint64_t u64;

enum { PAGE = 4096, WORDS = PAGE / 8, WASM_PAGE = 65536, RUNS = 64, SAMPLES = 4, SAMPLE_WORDS = 8, CONTEXTS = 1024 };

static const u64 STEP = 0x9E3779B97F4A7C15ull;
static const u64 HEAP_PAGES = 1ull << 40;
static const u64 MAGIC = 0x31304D4148; /* "HAM01", least significant byte first */

static u64 seed, count, hops, generation;
/* The heap region: everything from `heap_base` to the end of memory, grown and never moved. */
static uint32_t heap_base;

/* Scratch: stable memory passes through it, and so do arguments. */
static u64 scratch[WASM_PAGE / 8];

/* ---- helpers ---- */

static uint32_t length(const char *text) {
    uint32_t n = 0;
    while (text[n]) n++;
    return n;
}

static void __attribute__((noreturn)) fail(const char *text) { ic0_trap(text, length(text)); }

static u64 mix(u64 x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

/* Copies the first `words` words of the argument. */
static void arguments(u64 *into, uint32_t words) {
    if (ic0_msg_arg_data_size() < words * 8) fail("hammer: the argument is too short");
    ic0_msg_arg_data_copy(into, 0, words * 8);
}

static void check_range(u64 offset, u64 bytes) {
    if (offset % PAGE || bytes % PAGE || offset + bytes < offset)
        fail("hammer: offset and size must be multiples of 4096");
}

static void reply_words(const u64 *words, uint32_t many) { ic0_msg_reply_data_append(words, many * 8); }

/* ---- counters and instructions ---- */

/* The argument is the canister's seed. */
EXPORT("canister_init") void init(void) {
    if (ic0_msg_arg_data_size() >= 8) ic0_msg_arg_data_copy(&seed, 0, 8);
}

/* Any argument; replies the new count. */
EXPORT("canister_update inc") void inc(void) { reply_raw(++count); }

static u64 heap_bytes(void) {
    return heap_base ? (u64)__builtin_wasm_memory_size(0) * WASM_PAGE - heap_base : 0;
}

/* Replies [magic, seed, count, hops, generation, stable bytes, heap region bytes]. */
EXPORT("canister_query info") void info(void) {
    const u64 words[7] = {MAGIC, seed, count, hops, generation, ic0_stable64_size() * WASM_PAGE, heap_bytes()};
    reply_words(words, 7);
    ic0_msg_reply();
}

/* [instructions]: works until the replica's counter says so; replies [instructions used, digest]. */
EXPORT("canister_update burn") void burn(void) {
    u64 wanted, digest = ++count;
    arguments(&wanted, 1);
    while (ic0_performance_counter(0) < wanted)
        for (uint32_t i = 0; i < 2000; i++) digest = mix(digest + STEP);
    const u64 words[2] = {ic0_performance_counter(0), digest};
    reply_words(words, 2);
    ic0_msg_reply();
}

/* ---- patterned memory ---- */

static void fill(u64 *page, u64 number, u64 written) {
    const u64 base = mix(mix(mix(seed) ^ number) ^ written);
    page[0] = written;
    u64 step = 0;
    for (uint32_t i = 1; i < WORDS; i++) page[i] = base ^ (step += STEP);
}

struct run {
    u64 page, generation;
};
struct sample {
    u64 page, word, words[SAMPLE_WORDS];
};
/* A read's reply: the head, then `runs` runs of pages of one generation (the first RUNS of them; a run ends where the
 * next begins), then SAMPLES samples. */
static struct {
    u64 pages, wrong_words, first_wrong_page, sum, generation, runs, runs_in_all, samples;
} head;
static struct run runs[RUNS];
static struct sample samples[SAMPLES];

static void begin_read(u64 first, u64 pages, u64 salt) {
    head.pages = pages;
    head.wrong_words = head.sum = head.runs = head.runs_in_all = 0;
    head.first_wrong_page = ~0ull;
    head.generation = generation;
    head.samples = pages ? SAMPLES : 0;
    for (uint32_t i = 0; i < head.samples; i++) {
        const u64 dice = mix(salt + i);
        samples[i].page = first + dice % pages;
        samples[i].word = (dice >> 40) % (WORDS - SAMPLE_WORDS + 1);
    }
}

static void check(const u64 *page, u64 number) {
    static u64 last;
    const u64 written = page[0];
    const u64 base = mix(mix(mix(seed) ^ number) ^ written);
    u64 step = 0, wrong = 0, sum = written;
    if (written) {
        for (uint32_t i = 1; i < WORDS; i++) {
            wrong += page[i] != (base ^ (step += STEP));
            sum += page[i];
        }
    } else {
        for (uint32_t i = 1; i < WORDS; i++) {
            wrong += page[i] != 0;
            sum += page[i];
        }
    }
    head.sum += sum;
    if (wrong && !head.wrong_words) head.first_wrong_page = number;
    head.wrong_words += wrong;
    if (!head.runs_in_all || written != last) {
        if (head.runs < RUNS) {
            runs[head.runs].page = number;
            runs[head.runs++].generation = written;
        }
        head.runs_in_all++;
        last = written;
    }
    for (uint32_t i = 0; i < head.samples; i++)
        if (samples[i].page == number)
            for (uint32_t w = 0; w < SAMPLE_WORDS; w++) samples[i].words[w] = page[samples[i].word + w];
}

static void end_read(void) {
    ic0_msg_reply_data_append(&head, sizeof head);
    ic0_msg_reply_data_append(runs, (uint32_t)head.runs * sizeof runs[0]);
    ic0_msg_reply_data_append(samples, (uint32_t)head.samples * sizeof samples[0]);
    ic0_msg_reply();
}

static void grow_stable(u64 bytes) {
    const u64 want = (bytes + WASM_PAGE - 1) / WASM_PAGE, have = ic0_stable64_size();
    if (want > have && ic0_stable64_grow(want - have) == ~0ull)
        fail("hammer: stable64_grow was refused; the canister or the subnet is at its memory limit");
}

/* [bytes]: makes stable memory at least that large and touches nothing. Replies its size in bytes. */
EXPORT("canister_update grow") void grow(void) {
    u64 bytes;
    arguments(&bytes, 1);
    grow_stable(bytes);
    reply_raw(ic0_stable64_size() * WASM_PAGE);
}

/* [offset, bytes]: writes those pages of stable memory, growing it when needed. Replies the generation. */
EXPORT("canister_update write") void write(void) {
    u64 range[2];
    arguments(range, 2);
    check_range(range[0], range[1]);
    grow_stable(range[0] + range[1]);
    ++generation;
    for (u64 at = range[0], end = range[0] + range[1]; at < end;) {
        const u64 piece = end - at < WASM_PAGE ? end - at : WASM_PAGE;
        for (u64 page = 0; page < piece / PAGE; page++) fill(scratch + page * WORDS, at / PAGE + page, generation);
        ic0_stable64_write(at, (uint32_t)scratch, piece);
        at += piece;
    }
    reply_raw(generation);
}

/* [offset, bytes, salt]: reads and checks those pages of stable memory; the salt chooses the samples. */
static void read(void) {
    u64 range[3];
    arguments(range, 3);
    check_range(range[0], range[1]);
    begin_read(range[0] / PAGE, range[1] / PAGE, range[2]);
    for (u64 at = range[0], end = range[0] + range[1]; at < end;) {
        const u64 piece = end - at < WASM_PAGE ? end - at : WASM_PAGE;
        ic0_stable64_read((uint32_t)scratch, at, piece);
        for (u64 page = 0; page < piece / PAGE; page++) check(scratch + page * WORDS, at / PAGE + page);
        at += piece;
    }
    end_read();
}
EXPORT("canister_query read") void read_query(void) { read(); }
EXPORT("canister_update read_update") void read_update(void) { read(); }

static void grow_heap(u64 bytes) {
    if (!heap_base) heap_base = (uint32_t)__builtin_wasm_memory_size(0) * WASM_PAGE;
    const u64 have = heap_bytes();
    if (bytes > have && __builtin_wasm_memory_grow(0, (uint32_t)((bytes - have + WASM_PAGE - 1) / WASM_PAGE)) == (__SIZE_TYPE__)-1)
        fail("hammer: memory.grow was refused; the canister or the subnet is at its memory limit");
}

/* [bytes]: makes the heap region at least that large and touches nothing. Replies its size in bytes. */
EXPORT("canister_update heap_grow") void heap_grow(void) {
    u64 bytes;
    arguments(&bytes, 1);
    grow_heap(bytes);
    reply_raw(heap_bytes());
}

/* As `write`, in the heap region. */
EXPORT("canister_update heap_write") void heap_write(void) {
    u64 range[2];
    arguments(range, 2);
    check_range(range[0], range[1]);
    grow_heap(range[0] + range[1]);
    ++generation;
    for (u64 page = range[0] / PAGE, end = page + range[1] / PAGE; page < end; page++)
        fill((u64 *)(heap_base + (uint32_t)page * PAGE), HEAP_PAGES | page, generation);
    reply_raw(generation);
}

/* As `read`, in the heap region. */
static void read_heap(void) {
    u64 range[3];
    arguments(range, 3);
    check_range(range[0], range[1]);
    if (range[0] + range[1] > heap_bytes()) fail("hammer: the range ends beyond the heap region");
    begin_read(HEAP_PAGES | range[0] / PAGE, range[1] / PAGE, range[2]);
    for (u64 page = range[0] / PAGE, end = page + range[1] / PAGE; page < end; page++)
        check((const u64 *)(heap_base + (uint32_t)page * PAGE), HEAP_PAGES | page);
    end_read();
}
EXPORT("canister_query heap_read") void heap_read_query(void) { read_heap(); }
EXPORT("canister_update heap_read_update") void heap_read_update(void) { read_heap(); }

/* ---- calls ---- */

/* The argument of `chain` and `fan`: the head, then `members` principals of 30 bytes each (length, then bytes), then
 * any payload. */
struct ring {
    u64 hops_left; /* chain: calls still to make; fan: calls to each member */
    u64 hop;       /* chain: 0 when a client calls; fan: members called at once */
    u64 member;    /* the ring's member that is being called */
    u64 members;
    u64 timeout;   /* seconds of a best-effort call; 0 is a guaranteed response */
};
enum { PRINCIPAL = 30, MEMBERS_MAX = 64 };
static struct {
    struct ring ring;
    uint8_t members[MEMBERS_MAX * PRINCIPAL];
} route;

/* Reads the argument's head and ring; returns where the payload begins. */
static uint32_t read_route(void) {
    arguments((u64 *)&route.ring, sizeof route.ring / 8);
    if (!route.ring.members || route.ring.members > MEMBERS_MAX) fail("hammer: a ring has 1 to 64 members");
    const uint32_t bytes = (uint32_t)route.ring.members * PRINCIPAL;
    if (ic0_msg_arg_data_size() < sizeof route.ring + bytes) fail("hammer: the argument is too short");
    ic0_msg_arg_data_copy(route.members, sizeof route.ring, bytes);
    return sizeof route.ring + bytes;
}

/* Appends the rest of the own argument to the call being made. */
static void append_payload(uint32_t from) {
    for (uint32_t end = ic0_msg_arg_data_size(); from < end;) {
        const uint32_t piece = end - from < WASM_PAGE ? end - from : WASM_PAGE;
        ic0_msg_arg_data_copy(scratch, from, piece);
        ic0_call_data_append(scratch, piece);
        from += piece;
    }
}

static void reject_with(const char *text, u64 number) {
    char *out = (char *)scratch;
    uint32_t n = 0;
    while (text[n]) {
        out[n] = text[n];
        n++;
    }
    char digits[20];
    uint32_t many = 0;
    do digits[many++] = (char)('0' + number % 10);
    while (number /= 10);
    while (many) out[n++] = digits[--many];
    ic0_msg_reject(out, n);
}

/* Forwards the callee's reply, [hops made, replies passed on], with one more reply counted. */
static void chain_replied(uint32_t unused) {
    (void)unused;
    u64 words[2];
    arguments(words, 2);
    words[1]++;
    reply_words(words, 2);
    ic0_msg_reply();
}

static void chain_rejected(uint32_t unused) {
    (void)unused;
    const uint32_t size = ic0_msg_reject_msg_size(), shown = size < 8192 ? size : 8192;
    ic0_msg_reject_msg_copy(scratch, 0, shown);
    ic0_msg_reject(scratch, shown);
}

/* Calls the next member of the ring until no hop is left. Every call counts one in `hops` of its callee. */
EXPORT("canister_update chain") void chain(void) {
    const uint32_t payload = read_route();
    if (route.ring.hop) hops++;
    if (!route.ring.hops_left) {
        const u64 words[2] = {route.ring.hop, 0};
        reply_words(words, 2);
        ic0_msg_reply();
        return;
    }
    route.ring.hops_left--;
    route.ring.hop++;
    route.ring.member = (route.ring.member + 1) % route.ring.members;
    const uint8_t *callee = route.members + route.ring.member * PRINCIPAL;
    ic0_call_new(callee + 1, callee[0], "chain", 5, chain_replied, 0, chain_rejected, 0);
    ic0_call_data_append(&route.ring, sizeof route.ring);
    ic0_call_data_append(route.members, (uint32_t)route.ring.members * PRINCIPAL);
    append_payload(payload);
    if (route.ring.timeout) ic0_call_with_best_effort_response((uint32_t)route.ring.timeout);
    const uint32_t code = ic0_call_perform();
    if (code) reject_with("hammer: call_perform returned ", code);
}

/* What `fan` waits for, one per message in progress. */
static struct context {
    uint32_t used, outstanding, replied, rejected, not_sent, text_size;
    char text[192];
} contexts[CONTEXTS];

/* Replies [replied, rejected, not sent] and the first reject's text. */
static void fan_done(struct context *context) {
    const u64 words[3] = {context->replied, context->rejected, context->not_sent};
    reply_words(words, 3);
    ic0_msg_reply_data_append(context->text, context->text_size);
    ic0_msg_reply();
    context->used = 0;
}

static void fan_returned(uint32_t index) {
    struct context *context = contexts + index;
    if (--context->outstanding == 0) fan_done(context);
}

static void fan_replied(uint32_t index) {
    contexts[index].replied++;
    fan_returned(index);
}

static void fan_rejected(uint32_t index) {
    struct context *context = contexts + index;
    if (!context->text_size) {
        const uint32_t size = ic0_msg_reject_msg_size();
        context->text_size = size < sizeof context->text ? size : sizeof context->text;
        ic0_msg_reject_msg_copy(context->text, 0, context->text_size);
    }
    context->rejected++;
    fan_returned(index);
}

/* Counts one call in `hops` and replies the count; any argument. */
EXPORT("canister_update ping") void ping(void) { reply_raw(++hops); }

/* Calls `hop` members after the own one, `hops_left` times each, all at once, with the payload. */
EXPORT("canister_update fan") void fan(void) {
    const uint32_t payload = read_route();
    uint32_t index = 0;
    while (index < CONTEXTS && contexts[index].used) index++;
    if (index == CONTEXTS) {
        reject_with("hammer: too many messages wait for their calls; the limit is ", CONTEXTS);
        return;
    }
    struct context *context = contexts + index;
    context->used = 1;
    context->outstanding = context->replied = context->rejected = context->not_sent = context->text_size = 0;
    for (u64 round = 0; round < route.ring.hops_left; round++)
        for (u64 i = 1; i <= route.ring.hop; i++) {
            const uint8_t *callee = route.members + (route.ring.member + i) % route.ring.members * PRINCIPAL;
            ic0_call_new(callee + 1, callee[0], "ping", 4, fan_replied, index, fan_rejected, index);
            append_payload(payload);
            if (route.ring.timeout) ic0_call_with_best_effort_response((uint32_t)route.ring.timeout);
            if (ic0_call_perform())
                context->not_sent++;
            else
                context->outstanding++;
        }
    if (!context->outstanding) fan_done(context);
}
