// The canisters of a local network, worked on by the published clients of the public network's:
// cycles minting, ICP ledger, cycles ledger.
//
//   node canisters.mjs --url URL --fixtures DIR
import { IcpLedgerCanister, AccountIdentifier, SubAccount } from '@icp-sdk/canisters/ledger/icp';
import { IcrcLedgerCanister } from '@icp-sdk/canisters/ledger/icrc';
import { CmcCanister } from '@icp-sdk/canisters/cmc';
import { Actor, Certificate, HttpAgent, lookup_path, LookupPathStatus, reconstruct } from '@icp-sdk/core/agent';
import { Cbor } from '@icp-sdk/core/agent';
import { IDL } from '@icp-sdk/core/candid';
import { Ed25519KeyIdentity } from '@icp-sdk/core/identity';
import { Principal } from '@icp-sdk/core/principal';
import { Steps, hex, holds, readOptions, refused, same } from '../node/common.mjs';

const options = readOptions();
const steps = new Steps(options.skip);
const CYCLES_MINTING = Principal.fromText('rkp4c-7iaaa-aaaaa-aaaca-cai');
const ICP_LEDGER = Principal.fromText('ryjl3-tyaaa-aaaaa-aaaba-cai');
const CYCLES_LEDGER = Principal.fromText('um5iw-rqaaa-aaaaq-qaaba-cai');
const T = 1_000_000_000_000n;
const OPENING_CYCLES = 1_000n * T;
const CYCLES_FEE = 100_000_000n;
const OPENING_ICP = 100_000_000_000_000n;
const ICP_FEE = 10_000n;
const MEMO_TOP_UP = 0x50555054n;

async function person() {
    const identity = Ed25519KeyIdentity.generate();
    const agent = await HttpAgent.create({ host: options.url, identity, shouldFetchRootKey: true });
    const at = (make, canisterId) => make.create({ agent, canisterId });
    return {
        agent,
        owner: identity.getPrincipal(),
        cycles: at(IcrcLedgerCanister, CYCLES_LEDGER),
        icp: at(IcpLedgerCanister, ICP_LEDGER),
        icpTokens: at(IcrcLedgerCanister, ICP_LEDGER),
        minting: at(CmcCanister, CYCLES_MINTING),
        ledger: Actor.createActor(ledgerInterface, { agent, canisterId: CYCLES_LEDGER }),
        management: Actor.createActor(managementInterface, {
            agent,
            canisterId: Principal.managementCanister(),
            effectiveCanisterId: CYCLES_LEDGER
        })
    };
}

// Methods of the cycles ledger that the library above lacks.
function ledgerInterface({ IDL }) {
    const account = IDL.Record({ owner: IDL.Principal, subaccount: IDL.Opt(IDL.Vec(IDL.Nat8)) });
    const selection = IDL.Variant({
        Filter: IDL.Record({ subnet_type: IDL.Opt(IDL.Text) }),
        Subnet: IDL.Record({ subnet: IDL.Principal })
    });
    const settings = IDL.Record({ controllers: IDL.Opt(IDL.Vec(IDL.Principal)) });
    const creation = IDL.Record({ settings: IDL.Opt(settings), subnet_selection: IDL.Opt(selection) });
    const code = IDL.Variant({
        NoError: IDL.Null,
        CanisterError: IDL.Null,
        SysTransient: IDL.Null,
        DestinationInvalid: IDL.Null,
        Unknown: IDL.Null,
        SysFatal: IDL.Null,
        CanisterReject: IDL.Null
    });
    const generic = IDL.Record({ message: IDL.Text, error_code: IDL.Nat });
    const refusals = {
        GenericError: generic,
        TemporarilyUnavailable: IDL.Null,
        CreatedInFuture: IDL.Record({ ledger_time: IDL.Nat64 }),
        TooOld: IDL.Null,
        InsufficientFunds: IDL.Record({ balance: IDL.Nat })
    };
    const duplicate = IDL.Record({ duplicate_of: IDL.Nat });
    const duplicateCreation = IDL.Record({ duplicate_of: IDL.Nat, canister_id: IDL.Opt(IDL.Principal) });
    const created = IDL.Record({ block_id: IDL.Nat, canister_id: IDL.Principal });
    const failedFrom = (what) =>
        IDL.Record({
            [what]: IDL.Opt(IDL.Nat),
            refund_block: IDL.Opt(IDL.Nat),
            approval_refund_block: IDL.Opt(IDL.Nat),
            rejection_code: code,
            rejection_reason: IDL.Text
        });
    const allowance = IDL.Record({ allowance: IDL.Nat });
    const receiver = IDL.Record({ receiver: IDL.Principal });
    const result = (ok, err) => IDL.Variant({ Ok: ok, Err: IDL.Variant(err) });
    return IDL.Service({
        icrc1_balance_of: IDL.Func([account], [IDL.Nat], ['query']),
        withdraw: IDL.Func(
            [
                IDL.Record({
                    amount: IDL.Nat,
                    from_subaccount: IDL.Opt(IDL.Vec(IDL.Nat8)),
                    to: IDL.Principal,
                    created_at_time: IDL.Opt(IDL.Nat64)
                })
            ],
            [
                result(IDL.Nat, {
                    ...refusals,
                    Duplicate: duplicate,
                    BadFee: IDL.Record({ expected_fee: IDL.Nat }),
                    InvalidReceiver: receiver,
                    FailedToWithdraw: IDL.Record({
                        fee_block: IDL.Opt(IDL.Nat),
                        rejection_code: code,
                        rejection_reason: IDL.Text
                    })
                })
            ]
        ),
        withdraw_from: IDL.Func(
            [
                IDL.Record({
                    spender_subaccount: IDL.Opt(IDL.Vec(IDL.Nat8)),
                    from: account,
                    to: IDL.Principal,
                    amount: IDL.Nat,
                    created_at_time: IDL.Opt(IDL.Nat64)
                })
            ],
            [
                result(IDL.Nat, {
                    ...refusals,
                    Duplicate: duplicate,
                    InsufficientAllowance: allowance,
                    InvalidReceiver: receiver,
                    FailedToWithdrawFrom: failedFrom('withdraw_from_block')
                })
            ]
        ),
        create_canister: IDL.Func(
            [
                IDL.Record({
                    from_subaccount: IDL.Opt(IDL.Vec(IDL.Nat8)),
                    created_at_time: IDL.Opt(IDL.Nat64),
                    amount: IDL.Nat,
                    creation_args: IDL.Opt(creation)
                })
            ],
            [
                result(created, {
                    ...refusals,
                    Duplicate: duplicateCreation,
                    FailedToCreate: IDL.Record({
                        fee_block: IDL.Opt(IDL.Nat),
                        refund_block: IDL.Opt(IDL.Nat),
                        error: IDL.Text
                    })
                })
            ]
        ),
        create_canister_from: IDL.Func(
            [
                IDL.Record({
                    from: account,
                    spender_subaccount: IDL.Opt(IDL.Vec(IDL.Nat8)),
                    created_at_time: IDL.Opt(IDL.Nat64),
                    amount: IDL.Nat,
                    creation_args: IDL.Opt(creation)
                })
            ],
            [
                result(created, {
                    ...refusals,
                    Duplicate: duplicateCreation,
                    InsufficientAllowance: allowance,
                    FailedToCreateFrom: failedFrom('create_from_block')
                })
            ]
        )
    });
}

function managementInterface({ IDL }) {
    const target = IDL.Record({ canister_id: IDL.Principal });
    return IDL.Service({
        canister_status: IDL.Func(
            [target],
            [IDL.Record({ cycles: IDL.Nat, settings: IDL.Record({ controllers: IDL.Vec(IDL.Principal) }) })],
            []
        )
    });
}

const statusOf = (who, canister_id) =>
    who.management.canister_status.withOptions({ effectiveCanisterId: canister_id })({ canister_id });
const account = (who) => ({ owner: who.owner, subaccount: [] });
const balance = (who, of = who) => who.cycles.balance({ owner: of.owner });
const nanosNow = () => BigInt(Date.now()) * 1_000_000n;
const creation = (args = {}) => ({
    from_subaccount: [],
    created_at_time: [],
    amount: 2n * T,
    creation_args: [],
    ...args
});

const [alice, bob, carol] = await Promise.all([person(), person(), person()]);
let canister;

await steps.run('cycles minting names the one subnet', async () => {
    const subnet = Principal.selfAuthenticating(alice.agent.rootKey);
    for (const certified of [false, true]) {
        const subnets = await alice.minting.getDefaultSubnets({ certified });
        same(subnets.map(String), [String(subnet)], 'subnets');
    }
    same(await alice.minting.getSubnetTypesToSubnets(), { data: [] }, 'types of subnets');
});

await steps.run('the rate is certified', async () => {
    const rate = await alice.minting.getIcpToCyclesConversionRate();
    same(rate, 40_000n, 'cycles for an e8s');
    const data = IDL.Record({ timestamp_seconds: IDL.Nat64, xdr_permyriad_per_icp: IDL.Nat64 });
    const bytes = IDL.Vec(IDL.Nat8);
    const answer = IDL.Record({ data, hash_tree: bytes, certificate: bytes });
    const service = ({ IDL }) =>
        IDL.Service({ get_icp_xdr_conversion_rate: IDL.Func([], [answer], ['query']) });
    const actor = Actor.createActor(service, { agent: alice.agent, canisterId: CYCLES_MINTING });
    const told = await actor.get_icp_xdr_conversion_rate();
    const certificate = await Certificate.create({
        certificate: new Uint8Array(told.certificate),
        rootKey: alice.agent.rootKey,
        principal: { canisterId: CYCLES_MINTING }
    });
    const path = ['canister', CYCLES_MINTING.toUint8Array(), 'certified_data'];
    const certified = certificate.lookup_path(path);
    const tree = Cbor.decode(new Uint8Array(told.hash_tree));
    same(hex(await reconstruct(tree)), hex(certified.value), 'the root of the tree');
    const found = lookup_path(['ICP_XDR_CONVERSION_RATE'], tree);
    same(found.status, LookupPathStatus.Found, 'the rate in the tree');
    same(IDL.decode([data], found.value), [told.data], 'the rate that is certified');
});

await steps.run('everybody begins with cycles, in the default account', async () => {
    same(await balance(alice), OPENING_CYCLES, 'opening balance');
    const subaccount = new Uint8Array(32).fill(7);
    same(await alice.cycles.balance({ owner: alice.owner, subaccount }), 0n, 'of a subaccount');
    const zeros = new Uint8Array(32);
    same(await alice.cycles.balance({ owner: alice.owner, subaccount: zeros }), OPENING_CYCLES, 'of the default');
    const short = new Uint8Array(31);
    await refused(alice.cycles.balance({ owner: alice.owner, subaccount: short }), /32 bytes, and one of 31/, 'short');
});

await steps.run('cycles are transferred', async () => {
    const metadata = Object.fromEntries(await alice.cycles.metadata({}));
    same(metadata['icrc1:fee'], { Nat: CYCLES_FEE }, 'the fee');
    await alice.cycles.transfer({ to: account(bob), amount: 5n * T });
    same(await balance(alice), OPENING_CYCLES - 5n * T - CYCLES_FEE, 'who paid');
    same(await balance(bob), OPENING_CYCLES + 5n * T, 'who was paid');
    const wrong = alice.cycles.transfer({ to: account(bob), amount: 1n, fee: 1n });
    await refused(wrong, /./, 'another fee');
    const much = alice.cycles.transfer({ to: account(bob), amount: OPENING_CYCLES });
    await refused(much, /./, 'more than there is');
    same(await balance(bob), OPENING_CYCLES + 5n * T, 'nothing was paid');
});

await steps.run('a transfer with a time happens once', async () => {
    const transfer = { to: account(bob), amount: T, created_at_time: nanosNow() };
    const block = await alice.cycles.transfer(transfer);
    const again = await refused(alice.cycles.transfer(transfer), /./, 'again');
    same(again.errorType?.Duplicate?.duplicate_of, block, 'of which block');
    const day = 86_400_000_000_000n;
    const old = alice.cycles.transfer({ ...transfer, created_at_time: nanosNow() - day - day });
    holds('TooOld' in (await refused(old, /./, 'old')).errorType, 'too old');
    const early = alice.cycles.transfer({ ...transfer, created_at_time: nanosNow() + day });
    holds('CreatedInFuture' in (await refused(early, /./, 'early')).errorType, 'in the future');
    same(await balance(bob), OPENING_CYCLES + 6n * T, 'one transfer');
});

await steps.run('allowances are used up', async () => {
    await bob.cycles.approve({ spender: account(carol), amount: 3n * T });
    const from = { from: account(bob), to: account(carol), amount: 2n * T };
    await carol.cycles.transferFrom(from);
    const left = await bob.cycles.allowance({ account: account(bob), spender: account(carol) });
    same(left.allowance, T - CYCLES_FEE, 'what is left');
    const over = await refused(carol.cycles.transferFrom(from), /./, 'over');
    same(over.errorType?.InsufficientAllowance?.allowance, T - CYCLES_FEE, 'refused for');
    same(await balance(carol), OPENING_CYCLES + 2n * T, 'who was paid');
    const expired = { spender: account(carol), amount: 1n, expires_at: 1n };
    holds('Expired' in (await refused(bob.cycles.approve(expired), /./, 'expired')).errorType, 'expired');
});

await steps.run('canisters are made for cycles', async () => {
    const before = await balance(alice);
    const made = await alice.ledger.create_canister(creation());
    canister = made.Ok.canister_id;
    same(await balance(alice), before - 2n * T - CYCLES_FEE, 'who paid');
    const { settings, cycles } = await statusOf(alice, canister);
    same(settings.controllers.map(String), [String(alice.owner)], 'controllers');
    holds(cycles > T && cycles < 2n * T, `cycles of the new canister: ${cycles}`);
    const elsewhere = [{ settings: [], subnet_selection: [{ Subnet: { subnet: ICP_LEDGER } }] }];
    const refusal = await alice.ledger.create_canister(creation({ creation_args: elsewhere }));
    holds(/no subnet/.test(refusal.Err.GenericError.message), 'another subnet');
    same(await balance(alice), before - 2n * T - CYCLES_FEE, 'nothing was paid');
});

await steps.run('what fails is given back, less the fee', async () => {
    const before = await balance(alice);
    const failed = await alice.ledger.create_canister(creation({ amount: 5n }));
    holds(/requires a fee/.test(failed.Err.FailedToCreate.error), 'too few cycles');
    const to = { amount: T, from_subaccount: [], created_at_time: [] };
    const nobody = Principal.fromUint8Array(new Uint8Array([0, 0, 0, 0, 0, 0, 0, 99, 1, 1]));
    const missing = await alice.ledger.withdraw({ ...to, to: nobody }).catch((error) => ({ error }));
    holds(missing.Err?.FailedToWithdraw?.rejection_code, `no such canister: ${missing.error}`);
    const person = await alice.ledger.withdraw({ ...to, to: bob.owner });
    same(String(person.Err.InvalidReceiver.receiver), String(bob.owner), 'no canister');
    same(await balance(alice), before - 2n * CYCLES_FEE, 'two fees');
});

await steps.run('an allowance pays for canisters', async () => {
    await bob.cycles.approve({ spender: account(carol), amount: 4n * T });
    const from = { from: account(bob), spender_subaccount: [], created_at_time: [] };
    const before = await balance(bob);
    const made = await carol.ledger.create_canister_from({ ...from, amount: 2n * T, creation_args: [] });
    const { settings, cycles } = await statusOf(carol, made.Ok.canister_id);
    same(settings.controllers.map(String), [String(carol.owner)], 'controllers');
    const paid = await carol.ledger.withdraw_from({ ...from, to: made.Ok.canister_id, amount: T });
    holds('Ok' in paid, 'a withdrawal');
    const after = await statusOf(carol, made.Ok.canister_id);
    holds(after.cycles > cycles + T / 2n, 'cycles came');
    same(await balance(bob), before - 3n * T - 2n * CYCLES_FEE, 'who paid');
    const over = await carol.ledger.withdraw_from({ ...from, to: made.Ok.canister_id, amount: T });
    same(over.Err.InsufficientAllowance.allowance, T - 2n * CYCLES_FEE, 'what is left');
});

await steps.run('ICP move between account identifiers', async () => {
    same(await alice.icpTokens.balance({ owner: alice.owner }), OPENING_ICP, 'opening balance');
    same(await alice.icp.transactionFee(), ICP_FEE, 'fee');
    const subAccount = SubAccount.fromID(3);
    const to = AccountIdentifier.fromPrincipal({ principal: bob.owner, subAccount });
    const block = await alice.icp.transfer({ to, amount: 500n });
    same(await alice.icp.accountBalance({ accountIdentifier: to, certified: true }), 500n, 'by identifier');
    const subaccount = subAccount.toUint8Array();
    same(await alice.icpTokens.balance({ owner: bob.owner, subaccount }), 500n, 'by owner');
    same(await alice.icpTokens.balance({ owner: alice.owner }), OPENING_ICP - 500n - ICP_FEE, 'who paid');
    const createdAt = nanosNow();
    const first = await alice.icp.transfer({ to, amount: 1n, createdAt });
    holds(first > block, 'blocks are numbered');
    await refused(alice.icp.transfer({ to, amount: 1n, createdAt }), /./, 'twice');
});

await steps.run('ICP top a canister up, once', async () => {
    const subAccount = SubAccount.fromPrincipal(canister);
    const to = AccountIdentifier.fromPrincipal({ principal: CYCLES_MINTING, subAccount });
    const wrong = await alice.icp.transfer({ to, amount: 100_000_000n, memo: 1n });
    const told = { canister_id: canister, block_index: wrong };
    await refused(alice.minting.notifyTopUp(told), /memo 1/, 'another memo');
    const block_index = await alice.icp.transfer({ to, amount: 100_000_000n, memo: MEMO_TOP_UP });
    const { cycles } = await statusOf(alice, canister);
    const notify = () => bob.minting.notifyTopUp({ canister_id: canister, block_index });
    same(await notify(), 4n * T, 'cycles for one ICP');
    same(await notify(), 4n * T, 'the same answer');
    const after = await statusOf(alice, canister);
    holds(after.cycles > cycles + 3n * T && after.cycles <= cycles + 4n * T, 'cycles came once');
    const nothing = { canister_id: canister, block_index: 1_000_000n };
    await refused(alice.minting.notifyTopUp(nothing), /no block 1000000|no block 1_000_000/, 'no such block');
});

console.log(`${steps.done} steps held`);
