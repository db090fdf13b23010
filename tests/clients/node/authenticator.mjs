// A WebAuthn authenticator in software behind `navigator.credentials`, which the client library expects from a browser.
// It makes P-256 keys and assertions of the form every browser makes, without a button press.
import { createHash, createSign, generateKeyPairSync, randomBytes } from 'node:crypto';

const ORIGIN = 'https://localhost';
const FLAG_USER_PRESENT = 0x01;
const FLAG_ATTESTED_KEY = 0x40;

const sha256 = (bytes) => createHash('sha256').update(bytes).digest();

// CBOR for what is needed here: byte strings and text below 64 kB, small maps written by hand.
const head = (major, length) =>
    length < 24
        ? Buffer.from([major | length])
        : length < 256
          ? Buffer.from([major | 24, length])
          : Buffer.from([major | 25, length >> 8, length & 255]);
const cborBytes = (bytes) => Buffer.concat([head(0x40, bytes.length), bytes]);
const cborText = (text) => Buffer.concat([head(0x60, text.length), Buffer.from(text)]);

function coseKey(publicKey) {
    const { x, y } = publicKey.export({ format: 'jwk' });
    return Buffer.concat([
        Buffer.from([0xa5, 0x01, 0x02, 0x03, 0x26, 0x20, 0x01, 0x21]), // EC2, ES256, P-256, then x and y
        cborBytes(Buffer.from(x, 'base64url')),
        Buffer.from([0x22]),
        cborBytes(Buffer.from(y, 'base64url'))
    ]);
}

function authenticatorData(flags, rest = Buffer.alloc(0)) {
    return Buffer.concat([sha256('localhost'), Buffer.from([flags, 0, 0, 0, 1]), rest]);
}

function clientData(type, bytes) {
    const challenge = Buffer.from(bytes).toString('base64url');
    return Buffer.from(JSON.stringify({ type, challenge, origin: ORIGIN, crossOrigin: false }));
}

const copy = (buffer) => Uint8Array.from(buffer).buffer;

export function installSoftwareAuthenticator() {
    const keys = new Map();
    const credentials = {
        async create({ publicKey: { challenge } }) {
            const { publicKey, privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
            const rawId = randomBytes(16);
            keys.set(rawId.toString('hex'), privateKey);
            const idLength = Buffer.from([0, rawId.length]);
            const attested = Buffer.concat([Buffer.alloc(16), idLength, rawId, coseKey(publicKey)]);
            const attestationObject = Buffer.concat([
                Buffer.from([0xa3]),
                cborText('fmt'),
                cborText('none'),
                cborText('attStmt'),
                Buffer.from([0xa0]),
                cborText('authData'),
                cborBytes(authenticatorData(FLAG_USER_PRESENT | FLAG_ATTESTED_KEY, attested))
            ]);
            return {
                id: rawId.toString('base64url'),
                rawId: copy(rawId),
                type: 'public-key',
                authenticatorAttachment: 'platform',
                response: {
                    attestationObject: copy(attestationObject),
                    clientDataJSON: copy(clientData('webauthn.create', challenge))
                },
                getClientExtensionResults: () => ({}),
                toJSON: () => ({})
            };
        },

        async get({ publicKey: { challenge, allowCredentials } }) {
            const id = Buffer.from(allowCredentials[0].id);
            const clientDataJSON = clientData('webauthn.get', challenge);
            const data = authenticatorData(FLAG_USER_PRESENT);
            const signature = createSign('sha256')
                .update(Buffer.concat([data, sha256(clientDataJSON)]))
                .sign(keys.get(id.toString('hex')));
            return {
                id: id.toString('base64url'),
                rawId: copy(id),
                type: 'public-key',
                authenticatorAttachment: 'platform',
                response: {
                    authenticatorData: copy(data),
                    clientDataJSON: copy(clientDataJSON),
                    signature: copy(signature)
                }
            };
        }
    };
    Object.defineProperty(globalThis, 'navigator', { value: { credentials }, configurable: true });
}
