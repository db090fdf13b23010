/* The smallest useful canister: a counter whose cost is the replica's own overhead and hardly anything else.
 * `inc` and `get` ignore their argument and reply eight bytes, least significant first; `inc_candid` and `get_candid`
 * reply a Candid nat64. The value survives an upgrade through the first eight bytes of stable memory. */
#include "../include/ic0.h"

static uint64_t count;

EXPORT("canister_update inc") void inc(void) { reply_raw(++count); }

EXPORT("canister_query get") void get(void) { reply_raw(count); }

EXPORT("canister_update inc_candid") void inc_candid(void) { reply_candid(++count); }

EXPORT("canister_query get_candid") void get_candid(void) { reply_candid(count); }

EXPORT("canister_pre_upgrade") void pre_upgrade(void) {
    /* A failed growth shows itself in the write, which traps out of bounds and so refuses the upgrade. */
    if (ic0_stable64_size() == 0) ic0_stable64_grow(1);
    ic0_stable64_write(0, (uint32_t)&count, sizeof count);
}

EXPORT("canister_post_upgrade") void post_upgrade(void) {
    if (ic0_stable64_size() > 0) ic0_stable64_read((uint32_t)&count, 0, sizeof count);
}
