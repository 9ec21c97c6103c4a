// What stands between a script and the columns of a batch: these files, in the order in which
// `interpreter.py` puts them into one function.
//
// Everything used here is kept before the script runs, and nothing is assigned to an element or a
// key that does not exist already: a script may change every prototype without reaching us.

const keep = Function.prototype.bind.bind(Function.prototype.call);
const { parse, stringify, rawJSON } = JSON;
const { defineProperty, ownKeys, has, get: reflectGet, set: reflectSet } = Reflect;
const { deleteProperty, preventExtensions, getOwnPropertyDescriptor } = Reflect;
const { isArray } = Array;
const { isFinite, isSafeInteger } = Number;
const { keys, setPrototypeOf } = Object;
const [BigIntOf, StringOf, MapOf, ProxyOf, Ints] = [BigInt, String, Map, Proxy, Int32Array];
const [Floats, Bytes, Failure, TypeFailure] = [Float64Array, Uint8Array, Error, TypeError];
const BufferOf = ArrayBuffer;
const cut = keep(String.prototype.substring);
const codeAt = keep(String.prototype.charCodeAt);
const holds = keep(String.prototype.includes);
const isWellFormed = keep(String.prototype.isWellFormed);
const toWellFormed = keep(String.prototype.toWellFormed);
const matches = keep(RegExp.prototype.exec);
const mapGet = keep(Map.prototype.get);
const mapSet = keep(Map.prototype.set);
const mapSize = keep(getOwnPropertyDescriptor(Map.prototype, "size").get);
const copyBuffer = keep(ArrayBuffer.prototype.slice);
const digits = keep(BigInt.prototype.toString);
const shown = keep(Number.prototype.toString);

const UNREAD = {};
const ALWAYS = { __proto__: null, before: 1, after: 1, source: 1, op: 1, ts_ms: 1, event_id: 1,
  tenant_id: 1 };
const KNOWN = { __proto__: null, ...ALWAYS, transaction: 1, schema_version: 1,
  schema_sequence: 1, ddl: 1, trace_id: 1, tags: 1, synthetic: 1, tx_end: 1, __routing: 1 };
const OPS = { __proto__: null, c: 1, u: 1, d: 1, r: 1, t: 1, ddl: 1 };
const ROUTE_KEYS = { __proto__: null, topic: 1, key: 1, headers: 1, raw_payload: 1 };
const LONG = /\d{16}/;
// Half a surrogate pair, as JSON is written.
const HALF = /(?:^|[^\\])(?:\\\\)*\\u[dD][89a-fA-F]/;
const ENDS = /[,\]}\s]/;
const WHOLE = /^-?\d+$/;
const HEX = [];
for (let i = 0; i < 256; i++) HEX.push((i < 16 ? "0" : "") + i.toString(16));
const MOST_RETURNED = 5000000;

// ---- Numbers: integers that a double cannot hold are BigInts, and are written as numbers ----

function exact(key, value, context) {
  if (typeof value !== "number" || isSafeInteger(value) || context.source === undefined) {
    return value;
  }
  if (matches(WHOLE, context.source) !== null) return BigIntOf(context.source);
  return isFinite(value) ? value : rawJSON(context.source);
}

// Read JSON that has escapes in its keys. V8 compares a key as it is written with the key that an
// earlier object had in its place: behind {"\\":1} it takes {"\n":1} for another {"\\":1}.
// A token alone is safe.
function readByToken(text) {
  let at = 0;
  const skipSpace = () => {
    while (codeAt(text, at) <= 32) at++;
  };
  const token = () => {
    const from = at;
    if (codeAt(text, at) === 34) {
      do at += codeAt(text, at) === 92 ? 2 : 1; while (codeAt(text, at) !== 34);
      at++;
    } else {
      while (at < text.length && matches(ENDS, text[at]) === null) at++;
    }
    return parse(cut(text, from, at), exact);
  };
  const value = () => {
    skipSpace();
    const isObject = codeAt(text, at) === 123;
    if (!isObject && codeAt(text, at) !== 91) return token();
    const found = isObject ? {} : [];
    at++;
    skipSpace();
    for (let i = 0; codeAt(text, at) !== 125 && codeAt(text, at) !== 93; i++) {
      let key = i;
      if (isObject) {
        key = token();
        skipSpace();
        at++;
      }
      put(found, key, value());
      skipSpace();
      if (codeAt(text, at) === 44) at++;
      skipSpace();
    }
    at++;
    return found;
  };
  return value();
}

defineProperty(BigInt.prototype, "toJSON", { __proto__: null, writable: true,
  configurable: true, value: function toJSON() { return rawJSON(digits(this)); } });
defineProperty(JSON, "parse", { __proto__: null, writable: true, configurable: true,
  value: function (text, reviver) {
    if (reviver !== undefined) return parse(text, reviver);
    const whole = StringOf(text);
    return matches(LONG, whole) === null ? parse(whole) : parse(whole, exact);
  } });
