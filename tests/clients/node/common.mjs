// Common code of both client programs: options, steps, a fetch that remembers which endpoints were used, and interfaces.
// The client library is imported from outside and is used as published.
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

const USAGE = `usage: node <program> --url URL --fixtures DIR [options]

  --url URL                    the node's public endpoint, for example http://127.0.0.1:8080
  --fixtures DIR               the directory of the modules, canisters/wasm
  --effective-canister-id ID   an id in the subnet's range, where canisters are created
                               (default: rwlgt-iiaaa-aaaaa-aaaaa-cai, one that every node hosts)
  --skip NAME,...              leave out the steps whose name starts with one of these

Prints a line for each step and exits with 0 only if all of them held.`;

/** The options of every program, and `more` that only the calling one has. */
export function readOptions(more = {}) {
    let values;
    try {
        ({ values } = parseArgs({
            options: {
                url: { type: 'string' },
                fixtures: { type: 'string' },
                'effective-canister-id': { type: 'string', default: 'rwlgt-iiaaa-aaaaa-aaaaa-cai' },
                skip: { type: 'string', default: '' },
                help: { type: 'boolean', default: false },
                ...more
            }
        }));
    } catch (error) {
        console.error(`${error.message}\n\n${USAGE}`);
        process.exit(2);
    }
    if (values.help) {
        console.log(USAGE);
        process.exit(0);
    }
    if (!values.url || !values.fixtures) {
        console.error(USAGE);
        process.exit(2);
    }
    return {
        ...values,
        fixture: (name) => new Uint8Array(readFileSync(join(values.fixtures, name))),
        effectiveCanisterId: values['effective-canister-id'],
        skip: values.skip.split(',').filter((name) => name !== '')
    };
}

/** Runs the steps one after another; a failed step ends the program, because later ones build on it. */
export class Steps {
    constructor(skip = []) {
        this.skip = skip;
        this.done = 0;
    }

    async run(name, body) {
        if (this.skip.some((prefix) => name.startsWith(prefix))) {
            console.log(`skip  ${name}`);
            return undefined;
        }
        const start = performance.now();
        try {
            const value = await body();
            this.done += 1;
            console.log(`ok    ${name} (${Math.round(performance.now() - start)} ms)`);
            return value;
        } catch (error) {
            console.log(`FAIL  ${name}: ${error?.stack ?? error}`);
            process.exit(1);
        }
    }
}

const show = (value) => JSON.stringify(value, (_, v) => (typeof v === 'bigint' ? `${v}n` : v));

export function same(actual, expected, what) {
    if (show(actual) !== show(expected)) {
        throw new Error(`${what}: expected ${show(expected)}, got ${show(actual)}`);
    }
}

export function holds(condition, what) {
    if (!condition) throw new Error(what);
}

/** Expects a rejection whose text matches; returns the error. */
export async function refused(promise, pattern, what) {
    let value;
    try {
        value = await promise;
    } catch (error) {
        holds(pattern.test(String(error)), `${what}: refused for another reason: ${error}`);
        return error;
    }
    throw new Error(`${what}: was not refused but returned ${show(value)}`);
}

/** Remembers "METHOD path -> status" with the canister id taken out, so that a step can ask which endpoint was used. */
export class Recorder {
    constructor() {
        this.log = [];
        this.fetch = async (input, init) => {
            const response = await globalThis.fetch(input, init);
            const { pathname } = new URL(String(input?.url ?? input));
            const path = pathname.replace(/(canister|subnet)\/[a-z0-9-]+\//, '$1/');
            this.log.push(`${path} ${response.status}`);
            return response;
        };
    }

    async during(body) {
        const from = this.log.length;
        const value = await body();
        return { value, used: this.log.slice(from) };
    }
}

export const sha256 = (bytes) => new Uint8Array(createHash('sha256').update(bytes).digest());
export const hex = (bytes) => Buffer.from(bytes).toString('hex');

export const managementInterface = ({ IDL }) => {
    const settings = IDL.Record({
        controllers: IDL.Opt(IDL.Vec(IDL.Principal)),
        compute_allocation: IDL.Opt(IDL.Nat),
        memory_allocation: IDL.Opt(IDL.Nat),
        freezing_threshold: IDL.Opt(IDL.Nat)
    });
    const target = IDL.Record({ canister_id: IDL.Principal });
    const mode = IDL.Variant({
        install: IDL.Null,
        reinstall: IDL.Null,
        upgrade: IDL.Opt(
            IDL.Record({
                skip_pre_upgrade: IDL.Opt(IDL.Bool),
                wasm_memory_persistence: IDL.Opt(IDL.Variant({ keep: IDL.Null, replace: IDL.Null }))
            })
        )
    });
    const chunkHash = IDL.Record({ hash: IDL.Vec(IDL.Nat8) });
    return IDL.Service({
        provisional_create_canister_with_cycles: IDL.Func(
            [IDL.Record({ amount: IDL.Opt(IDL.Nat), settings: IDL.Opt(settings) })],
            [target]
        ),
        install_code: IDL.Func(
            [
                IDL.Record({
                    mode,
                    canister_id: IDL.Principal,
                    wasm_module: IDL.Vec(IDL.Nat8),
                    arg: IDL.Vec(IDL.Nat8)
                })
            ],
            []
        ),
        upload_chunk: IDL.Func([IDL.Record({ canister_id: IDL.Principal, chunk: IDL.Vec(IDL.Nat8) })], [chunkHash]),
        install_chunked_code: IDL.Func(
            [
                IDL.Record({
                    mode,
                    target_canister: IDL.Principal,
                    store_canister: IDL.Opt(IDL.Principal),
                    chunk_hashes_list: IDL.Vec(chunkHash),
                    wasm_module_hash: IDL.Vec(IDL.Nat8),
                    arg: IDL.Vec(IDL.Nat8)
                })
            ],
            []
        ),
        canister_status: IDL.Func(
            [target],
            [
                IDL.Record({
                    status: IDL.Variant({ running: IDL.Null, stopping: IDL.Null, stopped: IDL.Null }),
                    settings: IDL.Record({ controllers: IDL.Vec(IDL.Principal) }),
                    module_hash: IDL.Opt(IDL.Vec(IDL.Nat8)),
                    memory_size: IDL.Nat,
                    cycles: IDL.Nat
                })
            ]
        ),
        start_canister: IDL.Func([target], []),
        stop_canister: IDL.Func([target], []),
        delete_canister: IDL.Func([target], [])
    });
};

export const motokoInterface = ({ IDL }) =>
    IDL.Service({
        get: IDL.Func([], [IDL.Nat], ['query']),
        inc: IDL.Func([], [IDL.Nat]),
        add: IDL.Func([IDL.Nat], [IDL.Nat]),
        set: IDL.Func([IDL.Nat], []),
        whoami: IDL.Func([], [IDL.Principal]),
        greet: IDL.Func([IDL.Text], [IDL.Text], ['query']),
        callInc: IDL.Func([IDL.Principal], [IDL.Nat]),
        boom: IDL.Func([], []),
        nowhere: IDL.Func([], [], ['query'])
    });

export const azleInterface = ({ IDL }) =>
    IDL.Service({
        greet: IDL.Func([IDL.Text], [IDL.Text], ['query']),
        greetStored: IDL.Func([], [IDL.Text], ['query']),
        setName: IDL.Func([IDL.Text], []),
        inc: IDL.Func([], [IDL.Nat64]),
        get: IDL.Func([], [IDL.Nat64], ['query'])
    });

export const workbenchInterface = ({ IDL }) =>
    IDL.Service({
        forbidden: IDL.Func([], [IDL.Text]),
        set_certified: IDL.Func([IDL.Vec(IDL.Nat8)], []),
        get_certified: IDL.Func([], [IDL.Vec(IDL.Nat8), IDL.Opt(IDL.Vec(IDL.Nat8))], ['query']),
        raw_rand_via_mgmt: IDL.Func([], [IDL.Vec(IDL.Nat8)])
    });

const INITIAL_CYCLES = 10_000_000_000_000n;

/** The management canister as one identity sees it. */
export class Management {
    constructor({ Actor, Principal, IDL }, agent, effectiveCanisterId) {
        this.Principal = Principal;
        this.noArguments = new Uint8Array(IDL.encode([], []));
        this.actor = Actor.createActor(managementInterface, { agent, canisterId: 'aaaaa-aa' });
        this.effectiveCanisterId = Principal.fromText(effectiveCanisterId);
    }

    async create() {
        const create = this.actor.provisional_create_canister_with_cycles.withOptions({
            effectiveCanisterId: this.effectiveCanisterId
        });
        const { canister_id } = await create({ amount: [INITIAL_CYCLES], settings: [] });
        return canister_id;
    }

    on(canisterId, method) {
        return this.actor[method].withOptions({ effectiveCanisterId: canisterId });
    }

    async install(canisterId, module, mode = { install: null }) {
        await this.on(canisterId, 'install_code')({
            mode,
            canister_id: canisterId,
            wasm_module: module,
            arg: this.noArguments
        });
    }

    async installInChunks(canisterId, module, mode) {
        const chunkBytes = 1024 * 1024;
        const hashes = [];
        for (let at = 0; at < module.length; at += chunkBytes) {
            const chunk = module.subarray(at, at + chunkBytes);
            hashes.push(await this.on(canisterId, 'upload_chunk')({ canister_id: canisterId, chunk }));
        }
        await this.on(canisterId, 'install_chunked_code')({
            mode,
            target_canister: canisterId,
            store_canister: [],
            chunk_hashes_list: hashes,
            wasm_module_hash: sha256(module),
            arg: this.noArguments
        });
    }

    status(canisterId) {
        return this.on(canisterId, 'canister_status')({ canister_id: canisterId });
    }

    async remove(canisterId) {
        await this.on(canisterId, 'stop_canister')({ canister_id: canisterId });
        await this.on(canisterId, 'delete_canister')({ canister_id: canisterId });
    }
}

/** An upgrade that keeps the heap, which a module with enhanced orthogonal persistence requires. */
export const upgradeKeepingHeap = {
    upgrade: [{ skip_pre_upgrade: [], wasm_memory_persistence: [{ keep: null }] }]
};

export const upgrade = { upgrade: [] };
