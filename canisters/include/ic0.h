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
