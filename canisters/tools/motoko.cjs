// Compiles one Motoko file: node motoko.cjs <npm package> <main.mo> <out.wasm> <out.did>
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
motoko.write('main.mo', fs.readFileSync(source, 'utf8'));
for (const diagnostic of motoko.check('main.mo')) {
    console.error(`${source}: ${diagnostic.message}`);
}
const { wasm, candid } = motoko.wasm('main.mo', 'ic');
fs.writeFileSync(wasmPath, wasm);
fs.writeFileSync(didPath, candid);
