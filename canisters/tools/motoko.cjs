// Compiles one Motoko file, with the others of its folder that it imports:
// node motoko.cjs <npm package> <source.mo> <out.wasm> <out.did>
// The npm package is the whole compiler; its standard library comes bundled, so nothing is fetched.
const fs = require('fs');
const path = require('path');

const [packageName, source, wasmPath, didPath] = process.argv.slice(2);
const module_ = require(packageName);
const motoko = module_.default ?? module_;

const bundled = path.join(path.dirname(require.resolve(`${packageName}/package.json`)), 'packages', 'latest');
for (const file of fs.readdirSync(bundled)) {
    motoko.loadPackage(JSON.parse(fs.readFileSync(path.join(bundled, file), 'utf8')));
}
// The older package offers this on the compiler only.
const setPublicMetadata = motoko.setPublicMetadata ?? motoko.compiler.setPublicMetadata;
setPublicMetadata(['candid:service', 'candid:args', 'motoko:stable-types']);
const folder = path.dirname(source);
const main = path.basename(source);
for (const file of fs.readdirSync(folder).filter(file => file.endsWith('.mo'))) {
    motoko.write(file, fs.readFileSync(path.join(folder, file), 'utf8'));
}
const problems = motoko.check(main);
for (const diagnostic of problems.diagnostics ?? problems) {
    const line = (diagnostic.range?.start.line ?? 0) + 1;
    console.error(`${diagnostic.source ?? source}:${line}: ${diagnostic.message}`);
}
const { wasm, candid } = motoko.wasm(main, 'ic');
fs.writeFileSync(wasmPath, wasm);
fs.writeFileSync(didPath, candid);
