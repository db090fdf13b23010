// Reads and extends Wasm modules by their section structure alone.
//
//   node wasm.mjs add-section <module> <section name> <content file>    appends a custom section, in place
//   node wasm.mjs drop-section <module> <section name>                 removes a custom section, in place
//   node wasm.mjs candid <module>                                      prints what get_candid_pointer points to
//   node wasm.mjs describe <module>...                                 prints the two Markdown tables of README.md
import { createHash } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { basename } from 'node:path';
import { gunzipSync } from 'node:zlib';

function encodeLeb(value) {
    const bytes = [];
    do {
        const rest = Math.floor(value / 128);
        bytes.push((value % 128) | (rest > 0 ? 128 : 0));
        value = rest;
    } while (value > 0);
    return Buffer.from(bytes);
}

class Reader {
    constructor(bytes, at = 0) {
        this.bytes = bytes;
        this.at = at;
    }
    byte() {
        return this.bytes[this.at++];
    }
    leb() {
        let value = 0;
        let scale = 1;
        for (;;) {
            const byte = this.byte();
            value += (byte & 127) * scale;
            if (byte < 128) return value;
            scale *= 128;
        }
    }
    text() {
        const length = this.leb();
        this.at += length;
        return this.bytes.toString('utf8', this.at - length, this.at);
    }
    limits() {
        const flags = this.leb();
        this.leb();
        if (flags & 1) this.leb();
        return flags;
    }
}

function load(path) {
    const bytes = readFileSync(path);
    return bytes[0] === 0x1f ? gunzipSync(bytes) : bytes;
}

function read(bytes) {
    const module_ = { imports: [], customs: [], memory64: false };
    const reader = new Reader(bytes, 8);
    while (reader.at < bytes.length) {
        const id = reader.byte();
        const size = reader.leb();
        const end = reader.at + size;
        if (id === 0) {
            module_.customs.push(reader.text());
        } else if (id === 2) {
            for (let left = reader.leb(); left > 0; left--) {
                const from = reader.text();
                const name = reader.text();
                const kind = reader.byte();
                if (kind === 0) reader.leb();
                else throw new Error(`import ${from}.${name} is not a function`);
                module_.imports.push(`${from}.${name}`);
            }
        } else if (id === 5) {
            for (let left = reader.leb(); left > 0; left--) module_.memory64 = (reader.limits() & 4) !== 0;
        }
        reader.at = end;
    }
    return module_;
}

function addSection(path, name, contentPath) {
    const encodedName = Buffer.from(name);
    const body = Buffer.concat([encodeLeb(encodedName.length), encodedName, readFileSync(contentPath)]);
    writeFileSync(path, Buffer.concat([readFileSync(path), Buffer.from([0]), encodeLeb(body.length), body]));
}

function dropSection(path, name) {
    const bytes = readFileSync(path);
    const kept = [bytes.subarray(0, 8)];
    const reader = new Reader(bytes, 8);
    while (reader.at < bytes.length) {
        const start = reader.at;
        const id = reader.byte();
        const size = reader.leb();
        const end = reader.at + size;
        if (id !== 0 || reader.text() !== name) kept.push(bytes.subarray(start, end));
        reader.at = end;
    }
    writeFileSync(path, Buffer.concat(kept));
}

async function candid(path) {
    const compiled = await WebAssembly.compile(readFileSync(path));
    const imports = {};
    for (const { module: from, name } of WebAssembly.Module.imports(compiled)) {
        imports[from] ??= {};
        imports[from][name] = () => {
            throw new Error(`${from}.${name} was called`);
        };
    }
    const { exports } = await WebAssembly.instantiate(compiled, imports);
    const start = exports.get_candid_pointer();
    // Only now: the call may have grown memory, which detaches an earlier view.
    const memory = Buffer.from(exports.memory.buffer);
    const text = memory.toString('utf8', start, memory.indexOf(0, start));
    if (text.trim() === '') throw new Error(`${path} exports an empty interface`);
    return text;
}

function describe(paths) {
    const modules = paths.map((path) => {
        const file = readFileSync(path);
        const bytes = load(path);
        return { name: basename(path), file, bytes, ...read(bytes) };
    });
    console.log('| file | bytes | module bytes | memory | public metadata | sha256 of the file |');
    console.log('|---|---|---|---|---|---|');
    for (const { name, file, bytes, memory64, customs } of modules) {
        const metadata = customs.filter((c) => c.startsWith('icp:public ')).map((c) => c.slice(11)).join(', ');
        const hash = createHash('sha256').update(file).digest('hex');
        const width = memory64 ? 64 : 32;
        console.log(`| ${name} | ${file.length} | ${bytes.length} | ${width} bit | ${metadata} | \`${hash}\` |`);
    }
    console.log('\n| file | count | imported from `ic0` |\n|---|---|---|');
    for (const { name, imports } of modules) {
        const other = imports.filter((i) => !i.startsWith('ic0.'));
        if (other.length > 0) throw new Error(`${name} imports ${other}`);
        const names = [...new Set(imports)].map((i) => i.slice(4)).sort();
        console.log(`| ${name} | ${names.length} | ${names.join(', ')} |`);
    }
    const union = new Set(modules.flatMap((m) => m.imports));
    console.log(`| all | ${union.size} | |`);
}

const [command, ...args] = process.argv.slice(2);
if (command === 'add-section') addSection(...args);
else if (command === 'drop-section') dropSection(...args);
else if (command === 'candid') console.log(await candid(...args));
else if (command === 'describe') describe(args);
else throw new Error(`unknown command ${command}`);
