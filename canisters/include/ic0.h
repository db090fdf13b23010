/* The part of the System API that the C canisters import, and the two helpers they share. No libc. */
#ifndef IC0_H
#define IC0_H

typedef unsigned char uint8_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

#define IC0(name) __attribute__((import_module("ic0"), import_name(#name)))
#define EXPORT(name) __attribute__((export_name(name)))

extern void ic0_msg_reply_data_append(const void *source, uint32_t size) IC0(msg_reply_data_append);
extern void ic0_msg_reply(void) IC0(msg_reply);
extern uint32_t ic0_msg_arg_data_size(void) IC0(msg_arg_data_size);
extern void ic0_msg_arg_data_copy(void *destination, uint32_t offset, uint32_t size) IC0(msg_arg_data_copy);
extern void ic0_msg_reject(const void *text, uint32_t size) IC0(msg_reject);
extern uint32_t ic0_msg_reject_msg_size(void) IC0(msg_reject_msg_size);
extern void ic0_msg_reject_msg_copy(void *destination, uint32_t offset, uint32_t size) IC0(msg_reject_msg_copy);
extern void ic0_trap(const void *text, uint32_t size) IC0(trap) __attribute__((noreturn));
extern uint64_t ic0_performance_counter(uint32_t type) IC0(performance_counter);
/* Callbacks are entries of the module's table: pass the address of a `void (*)(uint32_t)`. */
extern void ic0_call_new(const void *callee, uint32_t callee_size, const char *name, uint32_t name_size,
                         void (*on_reply)(uint32_t), uint32_t reply_environment, void (*on_reject)(uint32_t),
                         uint32_t reject_environment) IC0(call_new);
extern void ic0_call_data_append(const void *source, uint32_t size) IC0(call_data_append);
extern void ic0_call_with_best_effort_response(uint32_t timeout_seconds) IC0(call_with_best_effort_response);
extern uint32_t ic0_call_perform(void) IC0(call_perform);
extern uint64_t ic0_stable64_size(void) IC0(stable64_size);
extern uint64_t ic0_stable64_grow(uint64_t pages) IC0(stable64_grow);
extern void ic0_stable64_read(uint64_t destination, uint64_t offset, uint64_t size) IC0(stable64_read);
extern void ic0_stable64_write(uint64_t offset, uint64_t source, uint64_t size) IC0(stable64_write);

/* Replies with the eight bytes of `value`, least significant first, and nothing else. */
static inline void reply_raw(uint64_t value) {
    ic0_msg_reply_data_append(&value, sizeof value);
    ic0_msg_reply();
}

/* Replies with `value` as Candid: magic, no type table, one value of type nat64. */
static inline void reply_candid(uint64_t value) {
    static const uint8_t header[7] = {'D', 'I', 'D', 'L', 0, 1, 0x78};
    ic0_msg_reply_data_append(header, sizeof header);
    reply_raw(value);
}

#endif
