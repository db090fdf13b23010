/* Functions of the System API that a module with 32-bit memory may import: those of the table
 * "Overview of imports" of the interface specification, without the others that the node
 * offers (docs/reference/system-api.md).
 *
 *     EACH(result, name, number of parameters, types of the parameters)
 *
 * The operation that calls a function is IMPORTS plus the function's place in this list, counted
 * from 0. Tests and load drivers rely on these numbers, so a new function goes to the end of the
 * list, whatever its width. TABLE in node/thimble/tests/it/conformance/imports.rs has the same
 * order. */
#ifndef IMPORTS_H
#define IMPORTS_H

#define EACH_IMPORT(EACH) \
    EACH(w, msg_arg_data_size, 0) \
    EACH(none, msg_arg_data_copy, 3, w, w, w) \
    EACH(w, msg_caller_size, 0) \
    EACH(none, msg_caller_copy, 3, w, w, w) \
    EACH(w, msg_caller_info_data_size, 0) \
    EACH(none, msg_caller_info_data_copy, 3, w, w, w) \
    EACH(w, msg_caller_info_signer_size, 0) \
    EACH(none, msg_caller_info_signer_copy, 3, w, w, w) \
    EACH(w, msg_reject_code, 0) \
    EACH(w, msg_reject_msg_size, 0) \
    EACH(none, msg_reject_msg_copy, 3, w, w, w) \
    EACH(d, msg_deadline, 0) \
    EACH(none, msg_reply_data_append, 2, w, w) \
    EACH(none, msg_reply, 0) \
    EACH(none, msg_reject, 2, w, w) \
    EACH(none, msg_cycles_available128, 1, w) \
    EACH(none, msg_cycles_refunded128, 1, w) \
    EACH(none, msg_cycles_accept128, 3, d, d, w) \
    EACH(none, cycles_burn128, 3, d, d, w) \
    EACH(w, canister_self_size, 0) \
    EACH(none, canister_self_copy, 3, w, w, w) \
    EACH(none, canister_cycle_balance128, 1, w) \
    EACH(none, canister_liquid_cycle_balance128, 1, w) \
    EACH(w, canister_status, 0) \
    EACH(d, canister_version, 0) \
    EACH(w, subnet_self_size, 0) \
    EACH(none, subnet_self_copy, 3, w, w, w) \
    EACH(w, msg_method_name_size, 0) \
    EACH(none, msg_method_name_copy, 3, w, w, w) \
    EACH(none, accept_message, 0) \
    EACH(none, call_new, 8, w, w, w, w, w, w, w, w) \
    EACH(none, call_on_cleanup, 2, w, w) \
    EACH(none, call_data_append, 2, w, w) \
    EACH(none, call_with_best_effort_response, 1, w) \
    EACH(none, call_cycles_add128, 2, d, d) \
    EACH(w, call_perform, 0) \
    EACH(d, stable64_size, 0) \
    EACH(d, stable64_grow, 1, d) \
    EACH(none, stable64_write, 3, d, d, d) \
    EACH(none, stable64_read, 3, d, d, d) \
    EACH(w, root_key_size, 0) \
    EACH(none, root_key_copy, 3, w, w, w) \
    EACH(none, certified_data_set, 2, w, w) \
    EACH(w, data_certificate_present, 0) \
    EACH(w, data_certificate_size, 0) \
    EACH(none, data_certificate_copy, 3, w, w, w) \
    EACH(d, time, 0) \
    EACH(d, global_timer_set, 1, d) \
    EACH(d, performance_counter, 1, w) \
    EACH(w, is_controller, 2, w, w) \
    EACH(w, in_replicated_execution, 0) \
    EACH(none, cost_call, 3, d, d, w) \
    EACH(none, cost_create_canister, 1, w) \
    EACH(none, cost_http_request, 3, d, d, w) \
    EACH(w, cost_sign_with_ecdsa, 4, w, w, w, w) \
    EACH(w, cost_sign_with_schnorr, 4, w, w, w, w) \
    EACH(w, cost_vetkd_derive_key, 4, w, w, w, w) \
    EACH(w, env_var_count, 0) \
    EACH(w, env_var_name_size, 1, w) \
    EACH(none, env_var_name_copy, 4, w, w, w, w) \
    EACH(w, env_var_name_exists, 2, w, w) \
    EACH(w, env_var_value_size, 2, w, w) \
    EACH(none, env_var_value_copy, 5, w, w, w, w, w) \
    EACH(none, debug_print, 2, w, w) \
    EACH(none, trap, 2, w, w) \
    EACH(d, msg_cycles_available, 0) \
    EACH(d, msg_cycles_refunded, 0) \
    EACH(d, msg_cycles_accept, 1, d) \
    EACH(d, canister_cycle_balance, 0) \
    EACH(none, call_cycles_add, 1, d) \
    EACH(w, stable_size, 0) \
    EACH(w, stable_grow, 1, w) \
    EACH(none, stable_write, 3, w, w, w) \
    EACH(none, stable_read, 3, w, w, w)

#endif
