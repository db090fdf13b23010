// TypeScript compiled into a JavaScript engine inside the canister: a module of several megabytes that executes
// millions of instructions in its start function and in every upgrade.
import { IDL, postUpgrade, preUpgrade, query, StableBTreeMap, update } from 'azle';

// Azle's own stable map keeps the state over upgrades; the fields below live on the heap.
const saved = new StableBTreeMap<string, string>(0);

export default class {
    name: string = 'world';
    count: bigint = 0n;

    @query([IDL.Text], IDL.Text)
    greet(name: string): string {
        return `Hello, ${name}!`;
    }

    @query([], IDL.Text)
    greetStored(): string {
        return `Hello, ${this.name}!`;
    }

    @update([IDL.Text])
    setName(name: string): void {
        this.name = name;
    }

    @update([], IDL.Nat64)
    inc(): bigint {
        this.count += 1n;
        return this.count;
    }

    @query([], IDL.Nat64)
    get(): bigint {
        return this.count;
    }

    @preUpgrade
    save(): void {
        saved.insert('name', this.name);
        saved.insert('count', this.count.toString());
    }

    @postUpgrade([])
    load(): void {
        this.name = saved.get('name') ?? 'world';
        this.count = BigInt(saved.get('count') ?? '0');
    }
}
