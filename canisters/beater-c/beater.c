/* Counts its heartbeats. A heartbeat export costs an execution in every round, so it lives here and nowhere else. */
#include "../include/ic0.h"

static uint64_t beats;

EXPORT("canister_heartbeat") void heartbeat(void) { ++beats; }

EXPORT("canister_query beats") void beats_query(void) { reply_candid(beats); }
